# The public names of optax.contrib.

from gradtx.composition.matrices import MuonDimensionNumbers as MuonDimensionNumbers
from gradtx.optimizers.acprop import acprop as acprop, scale_by_acprop as scale_by_acprop
from gradtx.optimizers.ademamix import (
    ScaleByAdemamixState as ScaleByAdemamixState,
    ScaleBySimplifiedAdEMAMixState as ScaleBySimplifiedAdEMAMixState,
    ademamix as ademamix,
    scale_by_ademamix as scale_by_ademamix,
    scale_by_simplified_ademamix as scale_by_simplified_ademamix,
    simplified_ademamix as simplified_ademamix,
)
from gradtx.optimizers.adopt import adopt as adopt, scale_by_adopt as scale_by_adopt
from gradtx.optimizers.cocob import (
    COCOBState as COCOBState,
    cocob as cocob,
    scale_by_cocob as scale_by_cocob,
)
from gradtx.optimizers.dadapt import (
    DAdaptAdamWState as DAdaptAdamWState,
    dadapt_adamw as dadapt_adamw,
)
from gradtx.optimizers.dog import (
    DoGState as DoGState,
    DoWGState as DoWGState,
    dog as dog,
    dowg as dowg,
)
from gradtx.optimizers.galore import (
    GaLoreDimensionNumbers as GaLoreDimensionNumbers,
    GaLoreState as GaLoreState,
    galore as galore,
    scale_by_galore as scale_by_galore,
)
from gradtx.optimizers.madgrad import (
    MadgradState as MadgradState,
    madgrad as madgrad,
    scale_by_madgrad as scale_by_madgrad,
)
from gradtx.optimizers.momo import (
    MomoAdamState as MomoAdamState,
    MomoState as MomoState,
    momo as momo,
    momo_adam as momo_adam,
)
from gradtx.optimizers.muon import (
    MuonState as MuonState,
    muon as muon,
    scale_by_muon as scale_by_muon,
)
from gradtx.optimizers.normuon import (
    NormuonState as NormuonState,
    normuon as normuon,
    scale_by_normuon as scale_by_normuon,
)
from gradtx.optimizers.prodigy import ProdigyState as ProdigyState, prodigy as prodigy
from gradtx.optimizers.sophia import SophiaState as SophiaState, sophia as sophia
from gradtx.transforms.hessian import (
    HutchinsonState as HutchinsonState,
    hutchinson_estimator_diag_hessian as hutchinson_estimator_diag_hessian,
)
from gradtx.transforms.norms import normalize as normalize
from gradtx.transforms.plateau import (
    ReduceLROnPlateauState as ReduceLROnPlateauState,
    reduce_on_plateau as reduce_on_plateau,
)
from gradtx.types import NormalizeState as NormalizeState
from gradtx.wrappers.complex import (
    SplitRealAndImaginaryState as SplitRealAndImaginaryState,
    split_real_and_imaginary as split_real_and_imaginary,
)
from gradtx.wrappers.mechanic import MechanicState as MechanicState, mechanize as mechanize
from gradtx.wrappers.privacy import (
    DifferentiallyPrivateAggregateState as DifferentiallyPrivateAggregateState,
    differentially_private_aggregate as differentially_private_aggregate,
    dpsgd as dpsgd,
)
from gradtx.wrappers.sam import SAMState as SAMState, sam as sam
from gradtx.wrappers.schedule_free import (
    ScheduleFreeState as ScheduleFreeState,
    schedule_free as schedule_free,
    schedule_free_adamw as schedule_free_adamw,
    schedule_free_eval_params as schedule_free_eval_params,
    schedule_free_sgd as schedule_free_sgd,
)

__all__: list[str]
