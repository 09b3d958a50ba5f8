# The classes of states, and of what stands in them.

from gradtx.composition.chain import NamedStates as NamedStates
from gradtx.composition.groups import (
    MultiTransformState as MultiTransformState,
    PartitionState as PartitionState,
)
from gradtx.composition.masking import MaskedState as MaskedState
from gradtx.declarations.scheduled import ScheduledState as ScheduledState
from gradtx.distributed.aggregation import AggregateState as AggregateState
from gradtx.distributed.compression import (
    CompressionState as CompressionState,
    PowerSGDState as PowerSGDState,
)
from gradtx.distributed.local import DiLoCoState as DiLoCoState, LocalSGDState as LocalSGDState
from gradtx.distributed.streaming import StreamingDiLoCoState as StreamingDiLoCoState
from gradtx.optimizers.adabelief import ScaleByBeliefState as ScaleByBeliefState
from gradtx.optimizers.adabound import ScaleByAdaboundState as ScaleByAdaboundState
from gradtx.optimizers.adadelta import ScaleByAdaDeltaState as ScaleByAdaDeltaState
from gradtx.optimizers.adafactor import FactoredState as FactoredState
from gradtx.optimizers.adagrad import ScaleByRssState as ScaleByRssState
from gradtx.optimizers.adagrad_decay import ScaleByAdagradDecayState as ScaleByAdagradDecayState
from gradtx.optimizers.adahessian import AdahessianState as AdahessianState
from gradtx.optimizers.adam import ScaleByAdamState as ScaleByAdamState
from gradtx.optimizers.adamuon import AdamuonState as AdamuonState
from gradtx.optimizers.adan import ScaleByAdanState as ScaleByAdanState
from gradtx.optimizers.ademamix import (
    ScaleByAdemamixState as ScaleByAdemamixState,
    ScaleBySimplifiedAdEMAMixState as ScaleBySimplifiedAdEMAMixState,
)
from gradtx.optimizers.amsgrad import ScaleByAmsgradState as ScaleByAmsgradState
from gradtx.optimizers.apollo import ScaleByApolloState as ScaleByApolloState
from gradtx.optimizers.asgd import AsgdState as AsgdState
from gradtx.optimizers.bfgs import ScaleByBFGSState as ScaleByBFGSState
from gradtx.optimizers.came import ScaleByCameState as ScaleByCameState
from gradtx.optimizers.cocob import COCOBState as COCOBState
from gradtx.optimizers.conda import ScaleByCondaState as ScaleByCondaState
from gradtx.optimizers.dadapt import DAdaptAdamWState as DAdaptAdamWState
from gradtx.optimizers.diffgrad import ScaleByDiffgradState as ScaleByDiffgradState
from gradtx.optimizers.dion import Dion2State as Dion2State, Dion3State as Dion3State
from gradtx.optimizers.dion_low_rank import DionState as DionState
from gradtx.optimizers.dog import (
    DoGState as DoGState,
    DoWGState as DoWGState,
    ScaleByDistanceOverGradientsState as ScaleByDistanceOverGradientsState,
)
from gradtx.optimizers.fira import ScaleByFiraState as ScaleByFiraState
from gradtx.optimizers.ftrl import FtrlState as FtrlState
from gradtx.optimizers.galore import GaLoreState as GaLoreState
from gradtx.optimizers.kl_shampoo import ScaleByKLState as ScaleByKLState
from gradtx.optimizers.kron import ScaleByKronState as ScaleByKronState
from gradtx.optimizers.laprop import ScaleByLapropState as ScaleByLapropState
from gradtx.optimizers.lbfgs import ScaleByLBFGSState as ScaleByLBFGSState
from gradtx.optimizers.lion import ScaleByLionState as ScaleByLionState
from gradtx.optimizers.madgrad import MadgradState as MadgradState
from gradtx.optimizers.mars import MarsState as MarsState
from gradtx.optimizers.momo import MomoAdamState as MomoAdamState, MomoState as MomoState
from gradtx.optimizers.muon import MuonState as MuonState
from gradtx.optimizers.muon2 import (
    FactoredMuon2State as FactoredMuon2State,
    Muon2State as Muon2State,
)
from gradtx.optimizers.muown import SizesAndDirectionsState as SizesAndDirectionsState
from gradtx.optimizers.nadam import ScaleByNadamState as ScaleByNadamState
from gradtx.optimizers.normuon import NormuonState as NormuonState
from gradtx.optimizers.novograd import ScaleByNovogradState as ScaleByNovogradState
from gradtx.optimizers.optimistic import (
    ScaleByOptimisticGradientState as ScaleByOptimisticGradientState,
)
from gradtx.optimizers.polargrad import PolargradState as PolargradState
from gradtx.optimizers.prodigy import ProdigyState as ProdigyState
from gradtx.optimizers.proximal import AdagradDaState as AdagradDaState
from gradtx.optimizers.psgd_lra import ScaleByPSGDLRAState as ScaleByPSGDLRAState
from gradtx.optimizers.qhadam import ScaleByQhadamState as ScaleByQhadamState
from gradtx.optimizers.rmsprop import (
    ScaleByRStdDevState as ScaleByRStdDevState,
    ScaleByRStdDevWithCountState as ScaleByRStdDevWithCountState,
    ScaleByRmsState as ScaleByRmsState,
    ScaleByRmsWithCountState as ScaleByRmsWithCountState,
)
from gradtx.optimizers.rowwise import (
    ScaleByRowwiseAdamState as ScaleByRowwiseAdamState,
    ScaleByRowwiseRssState as ScaleByRowwiseRssState,
)
from gradtx.optimizers.rprop import ScaleByRpropState as ScaleByRpropState
from gradtx.optimizers.shampoo import ScaleByShampooState as ScaleByShampooState
from gradtx.optimizers.sm3 import ScaleBySM3State as ScaleBySM3State
from gradtx.optimizers.soap import ScaleBySoapState as ScaleBySoapState
from gradtx.optimizers.sophia import SophiaState as SophiaState
from gradtx.optimizers.splus import ScaleBySplusState as ScaleBySplusState
from gradtx.optimizers.stable_spam import ScaleByStableSpamState as ScaleByStableSpamState
from gradtx.optimizers.tiger import ScaleByTigerState as ScaleByTigerState
from gradtx.sparse.exact import ExactRowsState as ExactRowsState
from gradtx.training.estimated import EstimatedGradientsState as EstimatedGradientsState
from gradtx.training.rounding import StochasticRoundingState as StochasticRoundingState
from gradtx.transforms.apply_every import ApplyEvery as ApplyEvery
from gradtx.transforms.backtracking import (
    BacktrackingLinesearchInfo as BacktrackingLinesearchInfo,
    ScaleByBacktrackingLinesearchState as ScaleByBacktrackingLinesearchState,
)
from gradtx.transforms.cleaning import ZeroNansState as ZeroNansState
from gradtx.transforms.decay import WeightDecaySchedule as WeightDecaySchedule
from gradtx.transforms.ema_nesterov import EmaNesterovState as EmaNesterovState
from gradtx.transforms.grokfast import (
    GrokfastEmaState as GrokfastEmaState,
    GrokfastMaState as GrokfastMaState,
)
from gradtx.transforms.hessian import HutchinsonState as HutchinsonState
from gradtx.transforms.input_moments import InputMomentsState as InputMomentsState
from gradtx.transforms.momentum import (
    EmaState as EmaState,
    TraceState as TraceState,
    TraceWithCountState as TraceWithCountState,
)
from gradtx.transforms.monitoring import (
    CountStepsState as CountStepsState,
    MeasureWithEmaState as MeasureWithEmaState,
    MonitorState as MonitorState,
    SnapshotState as SnapshotState,
)
from gradtx.transforms.noise import AddNoiseState as AddNoiseState
from gradtx.transforms.parameter_averages import (
    EmaParamsState as EmaParamsState,
    SwaParamsState as SwaParamsState,
)
from gradtx.transforms.plateau import ReduceLROnPlateauState as ReduceLROnPlateauState
from gradtx.transforms.primal_averaging import PrimalAveragingState as PrimalAveragingState
from gradtx.transforms.qk_clip import ClippedHeads as ClippedHeads
from gradtx.transforms.row_decay import RowDecayState as RowDecayState
from gradtx.transforms.scaling import ScaleByScheduleState as ScaleByScheduleState
from gradtx.transforms.zoom import (
    ScaleByZoomLinesearchState as ScaleByZoomLinesearchState,
    ZoomLinesearchInfo as ZoomLinesearchInfo,
)
from gradtx.types import (
    AdaptiveGradClipState as AdaptiveGradClipState,
    AddDecayedWeightsState as AddDecayedWeightsState,
    ClipByGlobalNormState as ClipByGlobalNormState,
    ClipState as ClipState,
    EmptyState as EmptyState,
    NonNegativeParamsState as NonNegativeParamsState,
    NormalizeState as NormalizeState,
    ScaleByTrustRatioState as ScaleByTrustRatioState,
    ScaleState as ScaleState,
)
from gradtx.wrappers.accumulation import (
    AccumulateState as AccumulateState,
    MultiStepsState as MultiStepsState,
)
from gradtx.wrappers.compensated import CompensatedState as CompensatedState
from gradtx.wrappers.complex import (
    SplitRealAndImaginaryArrays as SplitRealAndImaginaryArrays,
    SplitRealAndImaginaryState as SplitRealAndImaginaryState,
)
from gradtx.wrappers.conditional import (
    ConditionallyMaskState as ConditionallyMaskState,
    ConditionallyTransformState as ConditionallyTransformState,
)
from gradtx.wrappers.extragradient import ExtragradientState as ExtragradientState
from gradtx.wrappers.finite import ApplyIfFiniteState as ApplyIfFiniteState
from gradtx.wrappers.guard import GuardState as GuardState
from gradtx.wrappers.hyperball import HyperballState as HyperballState
from gradtx.wrappers.inject import (
    InjectHyperparamsState as InjectHyperparamsState,
    InjectStatefulHyperparamsState as InjectStatefulHyperparamsState,
    WrappedScheduleState as WrappedScheduleState,
)
from gradtx.wrappers.lookahead import (
    LookaheadParams as LookaheadParams,
    LookaheadState as LookaheadState,
)
from gradtx.wrappers.loss_scaling import DynamicLossScaleState as DynamicLossScaleState
from gradtx.wrappers.master_weights import MasterWeightsState as MasterWeightsState
from gradtx.wrappers.mechanic import MechanicState as MechanicState
from gradtx.wrappers.offload import OffloadState as OffloadState
from gradtx.wrappers.privacy import (
    DifferentiallyPrivateAggregateState as DifferentiallyPrivateAggregateState,
)
from gradtx.wrappers.proximal import ProximalState as ProximalState
from gradtx.wrappers.sam import GSAMState as GSAMState, SAMState as SAMState
from gradtx.wrappers.schedule_free import ScheduleFreeState as ScheduleFreeState
from gradtx.wrappers.split import SplitLeavesState as SplitLeavesState
from gradtx.wrappers.trust_gate import TrustGateState as TrustGateState
