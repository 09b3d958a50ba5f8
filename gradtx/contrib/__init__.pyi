# What is rare or new, and the public names of optax.contrib.

from gradtx.composition.matrices import MuonDimensionNumbers as MuonDimensionNumbers
from gradtx.distributed.chunks import (
    aggregate_chunked_top_k as aggregate_chunked_top_k,
    aggregate_dct as aggregate_dct,
)
from gradtx.distributed.dion import (
    distributed_dion as distributed_dion,
    scale_by_distributed_dion as scale_by_distributed_dion,
)
from gradtx.distributed.low_communication import (
    demo as demo,
    muloco as muloco,
    sparse_loco as sparse_loco,
)
from gradtx.distributed.streaming import streaming_diloco as streaming_diloco
from gradtx.optimizers.acprop import acprop as acprop, scale_by_acprop as scale_by_acprop
from gradtx.optimizers.adabound import adabound as adabound, scale_by_adabound as scale_by_adabound
from gradtx.optimizers.adagrad_decay import (
    adagrad_decay as adagrad_decay,
    scale_by_adagrad_decay as scale_by_adagrad_decay,
)
from gradtx.optimizers.adahessian import (
    adahessian as adahessian,
    scale_by_adahessian as scale_by_adahessian,
)
from gradtx.optimizers.adam_mini import (
    adam_mini as adam_mini,
    scale_by_adam_mini as scale_by_adam_mini,
)
from gradtx.optimizers.adamp import adamp as adamp, scale_by_adamp as scale_by_adamp
from gradtx.optimizers.adamuon import adamuon as adamuon, scale_by_adamuon as scale_by_adamuon
from gradtx.optimizers.ademamix import (
    ScaleByAdemamixState as ScaleByAdemamixState,
    ScaleBySimplifiedAdEMAMixState as ScaleBySimplifiedAdEMAMixState,
    ademamix as ademamix,
    scale_by_ademamix as scale_by_ademamix,
    scale_by_simplified_ademamix as scale_by_simplified_ademamix,
    simplified_ademamix as simplified_ademamix,
)
from gradtx.optimizers.adopt import adopt as adopt, scale_by_adopt as scale_by_adopt
from gradtx.optimizers.apollo import apollo as apollo, scale_by_apollo as scale_by_apollo
from gradtx.optimizers.asgd import asgd as asgd
from gradtx.optimizers.bfgs import scale_by_ssbroyden as scale_by_ssbroyden, ssbroyden as ssbroyden
from gradtx.optimizers.came import came as came, scale_by_came as scale_by_came
from gradtx.optimizers.cocob import (
    COCOBState as COCOBState,
    cocob as cocob,
    scale_by_cocob as scale_by_cocob,
)
from gradtx.optimizers.conda import conda as conda, scale_by_conda as scale_by_conda
from gradtx.optimizers.dadapt import (
    DAdaptAdamWState as DAdaptAdamWState,
    dadapt_adamw as dadapt_adamw,
)
from gradtx.optimizers.diffgrad import diffgrad as diffgrad, scale_by_diffgrad as scale_by_diffgrad
from gradtx.optimizers.dion import (
    dion2 as dion2,
    dion3 as dion3,
    scale_by_dion2 as scale_by_dion2,
    scale_by_dion3 as scale_by_dion3,
)
from gradtx.optimizers.dion_low_rank import dion as dion, scale_by_dion as scale_by_dion
from gradtx.optimizers.dog import (
    DoGState as DoGState,
    DoWGState as DoWGState,
    dog as dog,
    dowg as dowg,
    scale_by_distance_over_gradients as scale_by_distance_over_gradients,
    scale_by_dog as scale_by_dog,
    scale_by_dowg as scale_by_dowg,
)
from gradtx.optimizers.fira import fira as fira, scale_by_fira as scale_by_fira
from gradtx.optimizers.galore import (
    GaLoreDimensionNumbers as GaLoreDimensionNumbers,
    GaLoreState as GaLoreState,
    galore as galore,
    scale_by_galore as scale_by_galore,
)
from gradtx.optimizers.kl_shampoo import (
    kl_shampoo as kl_shampoo,
    kl_soap as kl_soap,
    scale_by_kl_shampoo as scale_by_kl_shampoo,
    scale_by_kl_soap as scale_by_kl_soap,
)
from gradtx.optimizers.kron import kron as kron, scale_by_kron as scale_by_kron
from gradtx.optimizers.laprop import laprop as laprop, scale_by_laprop as scale_by_laprop
from gradtx.optimizers.lora import (
    riemannian_lora as riemannian_lora,
    scale_by_lora_fa as scale_by_lora_fa,
    scale_by_lora_plus as scale_by_lora_plus,
    scale_by_riemannian_lora as scale_by_riemannian_lora,
)
from gradtx.optimizers.madgrad import (
    MadgradState as MadgradState,
    madgrad as madgrad,
    scale_by_madgrad as scale_by_madgrad,
)
from gradtx.optimizers.mars import mars as mars, mars_adamw as mars_adamw, mars_lion as mars_lion
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
from gradtx.optimizers.muon2 import muon2 as muon2, scale_by_muon2 as scale_by_muon2
from gradtx.optimizers.muown import muown as muown, sizes_and_directions as sizes_and_directions
from gradtx.optimizers.newton_muon import newton_muon as newton_muon
from gradtx.optimizers.normuon import (
    NormuonState as NormuonState,
    normuon as normuon,
    scale_by_normuon as scale_by_normuon,
)
from gradtx.optimizers.optimistic import (
    optimistic_adam as optimistic_adam,
    optimistic_adam_v2 as optimistic_adam_v2,
    scale_by_optimistic_gradient as scale_by_optimistic_gradient,
)
from gradtx.optimizers.polargrad import (
    polargrad as polargrad,
    scale_by_polargrad as scale_by_polargrad,
)
from gradtx.optimizers.prodigy import ProdigyState as ProdigyState, prodigy as prodigy
from gradtx.optimizers.proximal import (
    adagrad_da as adagrad_da,
    proximal_adagrad as proximal_adagrad,
    proximal_gradient_descent as proximal_gradient_descent,
)
from gradtx.optimizers.psgd_lra import psgd_lra as psgd_lra, scale_by_psgd_lra as scale_by_psgd_lra
from gradtx.optimizers.qhadam import qhadam as qhadam, scale_by_qhadam as scale_by_qhadam
from gradtx.optimizers.scion import scion as scion
from gradtx.optimizers.soap_muon import (
    scale_by_soap_muon as scale_by_soap_muon,
    soap_muon as soap_muon,
)
from gradtx.optimizers.sophia import (
    SophiaState as SophiaState,
    scale_by_sophia as scale_by_sophia,
    sophia as sophia,
)
from gradtx.optimizers.spectral_sphere import (
    scale_by_spectral_sphere as scale_by_spectral_sphere,
    spectral_sphere as spectral_sphere,
)
from gradtx.optimizers.splus import scale_by_splus as scale_by_splus, splus as splus
from gradtx.optimizers.stable_spam import (
    scale_by_stable_spam as scale_by_stable_spam,
    stable_spam as stable_spam,
)
from gradtx.optimizers.tiger import scale_by_tiger as scale_by_tiger, tiger as tiger
from gradtx.transforms.ema_nesterov import ema_nesterov as ema_nesterov
from gradtx.transforms.grokfast import grokfast_ema as grokfast_ema, grokfast_ma as grokfast_ma
from gradtx.transforms.hessian import (
    HutchinsonState as HutchinsonState,
    gnb_estimator_diag_hessian as gnb_estimator_diag_hessian,
    hutchinson_estimator_diag_hessian as hutchinson_estimator_diag_hessian,
)
from gradtx.transforms.input_moments import (
    input_moments as input_moments,
    scale_by_input_moments as scale_by_input_moments,
)
from gradtx.transforms.norms import normalize as normalize
from gradtx.transforms.plateau import (
    ReduceLROnPlateauState as ReduceLROnPlateauState,
    reduce_on_plateau as reduce_on_plateau,
)
from gradtx.transforms.primal_averaging import primal_averaging as primal_averaging
from gradtx.transforms.qk_clip import qk_clip as qk_clip
from gradtx.transforms.radius import (
    floor_update_ratio as floor_update_ratio,
    keep_radius as keep_radius,
    radial_brake as radial_brake,
)
from gradtx.transforms.row_decay import add_row_decayed_weights as add_row_decayed_weights
from gradtx.transforms.shrinking import shrink_params as shrink_params
from gradtx.types import NormalizeState as NormalizeState
from gradtx.wrappers.complex import (
    SplitRealAndImaginaryState as SplitRealAndImaginaryState,
    split_real_and_imaginary as split_real_and_imaginary,
)
from gradtx.wrappers.extragradient import extragradient as extragradient
from gradtx.wrappers.hyperball import hyperball as hyperball
from gradtx.wrappers.mechanic import MechanicState as MechanicState, mechanize as mechanize
from gradtx.wrappers.privacy import (
    DifferentiallyPrivateAggregateState as DifferentiallyPrivateAggregateState,
    differentially_private_aggregate as differentially_private_aggregate,
    dpsgd as dpsgd,
)
from gradtx.wrappers.sam import SAMState as SAMState, asam as asam, gsam as gsam, sam as sam
from gradtx.wrappers.schedule_free import (
    ScheduleFreeState as ScheduleFreeState,
    schedule_free as schedule_free,
    schedule_free_adamw as schedule_free_adamw,
    schedule_free_eval_params as schedule_free_eval_params,
    schedule_free_sgd as schedule_free_sgd,
)
from gradtx.wrappers.trust_gate import trust_gate as trust_gate
