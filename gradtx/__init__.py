"""gradtx: gradient transformations on JAX, written once and run everywhere."""

from gradtx import projections, tree
from gradtx.apply import apply_updates, incremental_update, periodic_update
from gradtx.checks import (
    Count,
    Decay,
    Fraction,
    Limit,
    NonNegative,
    Number,
    Positive,
    PositiveCount,
)
from gradtx.compose import (
    NamedStates,
    chain,
    identity,
    named_chain,
    set_to_zero,
    stateless,
    stateless_with_tree_map,
)
from gradtx.config import from_config, to_config
from gradtx.engine import Stored, elementwise, leafwise
from gradtx.inspection import (
    Description,
    describe,
    get_slot,
    hyperparams,
    replace,
    set_slot,
    slot_names,
)
from gradtx.make_step import TrainStep, make_step
from gradtx.masking import MaskedState, masked
from gradtx.minimize import apply_gradients, compute_gradients, minimize
from gradtx.numerics import Step
from gradtx.optimizers.acprop import acprop, scale_by_acprop
from gradtx.optimizers.adabelief import ScaleByBeliefState, adabelief, scale_by_belief
from gradtx.optimizers.adabound import ScaleByAdaboundState, adabound, scale_by_adabound
from gradtx.optimizers.adadelta import ScaleByAdaDeltaState, adadelta, scale_by_adadelta
from gradtx.optimizers.adafactor import FactoredState, adafactor, scale_by_factored_rms
from gradtx.optimizers.adagrad import ScaleByRssState, adagrad, scale_by_rss
from gradtx.optimizers.adam import ScaleByAdamState, adam, adamw, scale_by_adam
from gradtx.optimizers.adam_mini import adam_mini, scale_by_adam_mini
from gradtx.optimizers.adamax import adamax, adamaxw, scale_by_adamax
from gradtx.optimizers.adan import ScaleByAdanState, adan, scale_by_adan
from gradtx.optimizers.ademamix import (
    ScaleByAdemamixState,
    ScaleBySimplifiedAdEMAMixState,
    ademamix,
    scale_by_ademamix,
    scale_by_simplified_ademamix,
    simplified_ademamix,
)
from gradtx.optimizers.adopt import adopt, scale_by_adopt
from gradtx.optimizers.amsgrad import ScaleByAmsgradState, amsgrad, scale_by_amsgrad
from gradtx.optimizers.asgd import AsgdState, asgd
from gradtx.optimizers.came import ScaleByCameState, came, scale_by_came
from gradtx.optimizers.diffgrad import ScaleByDiffgradState, diffgrad, scale_by_diffgrad
from gradtx.optimizers.fromage import fromage
from gradtx.optimizers.ftrl import FtrlState, ftrl
from gradtx.optimizers.galore import GaLoreDimensionNumbers, GaLoreState, galore, scale_by_galore
from gradtx.optimizers.lamb import lamb
from gradtx.optimizers.laprop import ScaleByLapropState, laprop, scale_by_laprop
from gradtx.optimizers.lars import lars
from gradtx.optimizers.lbfgs import ScaleByLBFGSState, lbfgs, scale_by_lbfgs
from gradtx.optimizers.lion import ScaleByLionState, lion, scale_by_lion
from gradtx.optimizers.madgrad import MadgradState, madgrad, scale_by_madgrad
from gradtx.optimizers.muon import MuonDimensionNumbers, MuonState, muon, scale_by_muon
from gradtx.optimizers.nadam import ScaleByNadamState, nadam, nadamw, scale_by_nadam
from gradtx.optimizers.noise import noisy_sgd
from gradtx.optimizers.novograd import ScaleByNovogradState, novograd, scale_by_novograd
from gradtx.optimizers.optimistic import (
    ScaleByOptimisticGradientState,
    optimistic_adam,
    optimistic_adam_v2,
    optimistic_gradient_descent,
    scale_by_optimistic_gradient,
)
from gradtx.optimizers.qhadam import ScaleByQhadamState, qhadam, scale_by_qhadam
from gradtx.optimizers.radam import radam, scale_by_radam
from gradtx.optimizers.rmsprop import (
    ScaleByRmsState,
    ScaleByRmsWithCountState,
    ScaleByRStdDevState,
    ScaleByRStdDevWithCountState,
    rmsprop,
    scale_by_rms,
    scale_by_stddev,
)
from gradtx.optimizers.rprop import ScaleByRpropState, rprop, scale_by_rprop
from gradtx.optimizers.sgd import scale_by_sign, sgd, sign_sgd
from gradtx.optimizers.signum import signum
from gradtx.optimizers.sm3 import ScaleBySM3State, scale_by_sm3, sm3
from gradtx.optimizers.stable_adamw import scale_by_stable_adamw, stable_adamw
from gradtx.optimizers.tiger import ScaleByTigerState, scale_by_tiger, tiger
from gradtx.optimizers.yogi import scale_by_yogi, yogi
from gradtx.partition import (
    PartitionState,
    freeze,
    multi_transform,
    partition,
    regroup,
    reset_group,
    selective_transform,
)
from gradtx.paths import select
from gradtx.rows import Rows
from gradtx.schedule import schedule
from gradtx.schedules.decay import (
    constant_schedule,
    cosine_decay_schedule,
    exponential_decay,
    linear_schedule,
    polynomial_schedule,
)
from gradtx.schedules.piecewise import (
    cosine_onecycle_schedule,
    join_schedules,
    linear_onecycle_schedule,
    piecewise_constant_schedule,
    piecewise_interpolate_schedule,
    sgdr_schedule,
    warmup_constant_schedule,
    warmup_cosine_decay_schedule,
    warmup_exponential_decay_schedule,
)
from gradtx.solve import Solution, Status, solve
from gradtx.state_dict import (
    StateMatch,
    load_state_dict,
    match_state_dict,
    saved_config,
    state_dict,
)
from gradtx.transformation import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    ScheduledState,
    optimizer,
    transformation,
    with_extra_args_support,
)
from gradtx.transforms.averaging import EmaState, TraceState, TraceWithCountState, ema, trace
from gradtx.transforms.backtracking import (
    BacktrackingLinesearchInfo,
    ScaleByBacktrackingLinesearchState,
    scale_by_backtracking_linesearch,
)
from gradtx.transforms.cleaning import ZeroNansState, centralize, zero_nans
from gradtx.transforms.clipping import clip, clip_by_block_rms, clip_by_global_norm, clip_by_norm
from gradtx.transforms.constraints import keep_params_nonnegative
from gradtx.transforms.decay import WeightDecaySchedule, add_decayed_weights
from gradtx.transforms.linesearch import value_and_grad_from_state
from gradtx.transforms.noise import AddNoiseState, add_noise
from gradtx.transforms.norms import (
    adaptive_grad_clip,
    normalize_by_update_norm,
    unitwise_clip,
    unitwise_norm,
)
from gradtx.transforms.projecting import project
from gradtx.transforms.scaling import (
    ScaleByScheduleState,
    scale,
    scale_by_learning_rate,
    scale_by_schedule,
)
from gradtx.transforms.trust import (
    norm,
    rms,
    scale_by_param_block_norm,
    scale_by_param_block_rms,
    scale_by_trust_ratio,
)
from gradtx.transforms.zoom import (
    ScaleByZoomLinesearchState,
    ZoomLinesearchInfo,
    scale_by_zoom_linesearch,
)
from gradtx.tree import global_norm
from gradtx.types import EmptyState, Schedule, Slots
from gradtx.wrappers.accumulation import (
    AccumulateState,
    ApplyEvery,
    MultiSteps,
    MultiStepsState,
    accumulate,
    apply_every,
    has_updated,
    multi_steps,
)
from gradtx.wrappers.averaging import (
    EmaParamsState,
    SwaParamsState,
    ema_params,
    eval_params,
    swa_params,
)
from gradtx.wrappers.complex import (
    SplitRealAndImaginaryArrays,
    SplitRealAndImaginaryState,
    split_real_and_imaginary,
)
from gradtx.wrappers.conditional import (
    ConditionallyMaskState,
    ConditionallyTransformState,
    conditionally_mask,
    conditionally_transform,
)
from gradtx.wrappers.finite import (
    ApplyIfFiniteState,
    apply_if_finite,
    skip_large_updates,
    skip_not_finite,
)
from gradtx.wrappers.flatten import flatten
from gradtx.wrappers.inject import (
    InjectStatefulHyperparamsState,
    WrappedScheduleState,
    inject_hyperparams,
    inject_stateful_hyperparams,
    injected,
)
from gradtx.wrappers.lookahead import LookaheadParams, LookaheadState, lookahead
from gradtx.wrappers.monitoring import (
    MeasureWithEmaState,
    MonitorState,
    SnapshotState,
    measure_with_ema,
    monitor,
    snapshot,
)
from gradtx.wrappers.plateau import ReduceLROnPlateauState, reduce_on_plateau
from gradtx.wrappers.privacy import per_example_global_norm_clip, per_example_layer_norm_clip
from gradtx.wrappers.sam import SAMState, normalize, sam

__all__ = [
    "AccumulateState",
    "AddNoiseState",
    "ApplyEvery",
    "ApplyIfFiniteState",
    "AsgdState",
    "BacktrackingLinesearchInfo",
    "ConditionallyMaskState",
    "ConditionallyTransformState",
    "Count",
    "Decay",
    "Description",
    "EmaParamsState",
    "EmaState",
    "EmptyState",
    "FactoredState",
    "Fraction",
    "FtrlState",
    "GaLoreDimensionNumbers",
    "GaLoreState",
    "GradientTransformation",
    "GradientTransformationExtraArgs",
    "InjectStatefulHyperparamsState",
    "Limit",
    "LookaheadParams",
    "LookaheadState",
    "MadgradState",
    "MaskedState",
    "MeasureWithEmaState",
    "MonitorState",
    "MultiSteps",
    "MultiStepsState",
    "MuonDimensionNumbers",
    "MuonState",
    "NamedStates",
    "NonNegative",
    "Number",
    "PartitionState",
    "Positive",
    "PositiveCount",
    "ReduceLROnPlateauState",
    "Rows",
    "SAMState",
    "ScaleByAdaDeltaState",
    "ScaleByAdaboundState",
    "ScaleByAdamState",
    "ScaleByAdanState",
    "ScaleByAdemamixState",
    "ScaleByAmsgradState",
    "ScaleByBacktrackingLinesearchState",
    "ScaleByBeliefState",
    "ScaleByCameState",
    "ScaleByDiffgradState",
    "ScaleByLBFGSState",
    "ScaleByLapropState",
    "ScaleByLionState",
    "ScaleByNadamState",
    "ScaleByNovogradState",
    "ScaleByOptimisticGradientState",
    "ScaleByQhadamState",
    "ScaleByRStdDevState",
    "ScaleByRStdDevWithCountState",
    "ScaleByRmsState",
    "ScaleByRmsWithCountState",
    "ScaleByRpropState",
    "ScaleByRssState",
    "ScaleBySM3State",
    "ScaleByScheduleState",
    "ScaleBySimplifiedAdEMAMixState",
    "ScaleByTigerState",
    "ScaleByZoomLinesearchState",
    "Schedule",
    "ScheduledState",
    "Slots",
    "SnapshotState",
    "Solution",
    "SplitRealAndImaginaryArrays",
    "SplitRealAndImaginaryState",
    "StateMatch",
    "Status",
    "Step",
    "Stored",
    "SwaParamsState",
    "TraceState",
    "TraceWithCountState",
    "TrainStep",
    "WeightDecaySchedule",
    "WrappedScheduleState",
    "ZeroNansState",
    "ZoomLinesearchInfo",
    "accumulate",
    "acprop",
    "adabelief",
    "adabound",
    "adadelta",
    "adafactor",
    "adagrad",
    "adam",
    "adam_mini",
    "adamax",
    "adamaxw",
    "adamw",
    "adan",
    "adaptive_grad_clip",
    "add_decayed_weights",
    "add_noise",
    "ademamix",
    "adopt",
    "amsgrad",
    "apply_every",
    "apply_gradients",
    "apply_if_finite",
    "apply_updates",
    "asgd",
    "came",
    "centralize",
    "chain",
    "clip",
    "clip_by_block_rms",
    "clip_by_global_norm",
    "clip_by_norm",
    "compute_gradients",
    "conditionally_mask",
    "conditionally_transform",
    "constant_schedule",
    "cosine_decay_schedule",
    "cosine_onecycle_schedule",
    "describe",
    "diffgrad",
    "elementwise",
    "ema",
    "ema_params",
    "eval_params",
    "exponential_decay",
    "flatten",
    "freeze",
    "from_config",
    "fromage",
    "ftrl",
    "galore",
    "get_slot",
    "global_norm",
    "has_updated",
    "hyperparams",
    "identity",
    "incremental_update",
    "inject_hyperparams",
    "inject_stateful_hyperparams",
    "injected",
    "join_schedules",
    "keep_params_nonnegative",
    "lamb",
    "laprop",
    "lars",
    "lbfgs",
    "leafwise",
    "linear_onecycle_schedule",
    "linear_schedule",
    "lion",
    "load_state_dict",
    "lookahead",
    "madgrad",
    "make_step",
    "masked",
    "match_state_dict",
    "measure_with_ema",
    "minimize",
    "monitor",
    "multi_steps",
    "multi_transform",
    "muon",
    "nadam",
    "nadamw",
    "named_chain",
    "noisy_sgd",
    "norm",
    "normalize",
    "normalize_by_update_norm",
    "novograd",
    "optimistic_adam",
    "optimistic_adam_v2",
    "optimistic_gradient_descent",
    "optimizer",
    "partition",
    "per_example_global_norm_clip",
    "per_example_layer_norm_clip",
    "periodic_update",
    "piecewise_constant_schedule",
    "piecewise_interpolate_schedule",
    "polynomial_schedule",
    "project",
    "projections",
    "qhadam",
    "radam",
    "reduce_on_plateau",
    "regroup",
    "replace",
    "reset_group",
    "rms",
    "rmsprop",
    "rprop",
    "sam",
    "saved_config",
    "scale",
    "scale_by_acprop",
    "scale_by_adabound",
    "scale_by_adadelta",
    "scale_by_adam",
    "scale_by_adam_mini",
    "scale_by_adamax",
    "scale_by_adan",
    "scale_by_ademamix",
    "scale_by_adopt",
    "scale_by_amsgrad",
    "scale_by_backtracking_linesearch",
    "scale_by_belief",
    "scale_by_came",
    "scale_by_diffgrad",
    "scale_by_factored_rms",
    "scale_by_galore",
    "scale_by_laprop",
    "scale_by_lbfgs",
    "scale_by_learning_rate",
    "scale_by_lion",
    "scale_by_madgrad",
    "scale_by_muon",
    "scale_by_nadam",
    "scale_by_novograd",
    "scale_by_optimistic_gradient",
    "scale_by_param_block_norm",
    "scale_by_param_block_rms",
    "scale_by_qhadam",
    "scale_by_radam",
    "scale_by_rms",
    "scale_by_rprop",
    "scale_by_rss",
    "scale_by_schedule",
    "scale_by_sign",
    "scale_by_simplified_ademamix",
    "scale_by_sm3",
    "scale_by_stable_adamw",
    "scale_by_stddev",
    "scale_by_tiger",
    "scale_by_trust_ratio",
    "scale_by_yogi",
    "scale_by_zoom_linesearch",
    "schedule",
    "select",
    "selective_transform",
    "set_slot",
    "set_to_zero",
    "sgd",
    "sgdr_schedule",
    "sign_sgd",
    "signum",
    "simplified_ademamix",
    "skip_large_updates",
    "skip_not_finite",
    "slot_names",
    "sm3",
    "snapshot",
    "solve",
    "split_real_and_imaginary",
    "stable_adamw",
    "state_dict",
    "stateless",
    "stateless_with_tree_map",
    "swa_params",
    "tiger",
    "to_config",
    "trace",
    "transformation",
    "tree",
    "unitwise_clip",
    "unitwise_norm",
    "value_and_grad_from_state",
    "warmup_constant_schedule",
    "warmup_cosine_decay_schedule",
    "warmup_exponential_decay_schedule",
    "with_extra_args_support",
    "yogi",
    "zero_nans",
]

__version__ = "0.1.0"
