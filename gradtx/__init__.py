"""gradtx: gradient transformations on JAX, written once and run everywhere."""

from gradtx import tree
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
from gradtx.optimizers.adagrad import ScaleByRssState, adagrad, scale_by_rss
from gradtx.optimizers.adam import ScaleByAdamState, adam, adamw, scale_by_adam
from gradtx.optimizers.lion import ScaleByLionState, lion, scale_by_lion
from gradtx.optimizers.rmsprop import (
    ScaleByRmsState,
    ScaleByRmsWithCountState,
    ScaleByRStdDevState,
    ScaleByRStdDevWithCountState,
    rmsprop,
    scale_by_rms,
    scale_by_stddev,
)
from gradtx.optimizers.sgd import scale_by_sign, sgd, sign_sgd
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
from gradtx.transformation import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    ScheduledState,
    optimizer,
    transformation,
    with_extra_args_support,
)
from gradtx.transforms.averaging import EmaState, TraceState, ema, trace
from gradtx.transforms.cleaning import ZeroNansState, centralize, zero_nans
from gradtx.transforms.clipping import clip, clip_by_block_rms, clip_by_global_norm, clip_by_norm
from gradtx.transforms.decay import WeightDecaySchedule, add_decayed_weights
from gradtx.transforms.scaling import (
    ScaleByScheduleState,
    scale,
    scale_by_learning_rate,
    scale_by_schedule,
)
from gradtx.tree import global_norm
from gradtx.types import EmptyState, Schedule, Slots

__all__ = [
    "Count",
    "Decay",
    "Description",
    "EmaState",
    "EmptyState",
    "Fraction",
    "GradientTransformation",
    "GradientTransformationExtraArgs",
    "Limit",
    "MaskedState",
    "NamedStates",
    "NonNegative",
    "Number",
    "Positive",
    "PositiveCount",
    "Rows",
    "ScaleByAdamState",
    "ScaleByLionState",
    "ScaleByRStdDevState",
    "ScaleByRStdDevWithCountState",
    "ScaleByRmsState",
    "ScaleByRmsWithCountState",
    "ScaleByRssState",
    "ScaleByScheduleState",
    "Schedule",
    "ScheduledState",
    "Slots",
    "Solution",
    "Status",
    "Step",
    "Stored",
    "TraceState",
    "TrainStep",
    "WeightDecaySchedule",
    "ZeroNansState",
    "adagrad",
    "adam",
    "adamw",
    "add_decayed_weights",
    "apply_gradients",
    "apply_updates",
    "centralize",
    "chain",
    "clip",
    "clip_by_block_rms",
    "clip_by_global_norm",
    "clip_by_norm",
    "compute_gradients",
    "constant_schedule",
    "cosine_decay_schedule",
    "cosine_onecycle_schedule",
    "describe",
    "elementwise",
    "ema",
    "exponential_decay",
    "from_config",
    "get_slot",
    "global_norm",
    "hyperparams",
    "identity",
    "incremental_update",
    "join_schedules",
    "leafwise",
    "linear_onecycle_schedule",
    "linear_schedule",
    "lion",
    "make_step",
    "masked",
    "minimize",
    "named_chain",
    "optimizer",
    "periodic_update",
    "piecewise_constant_schedule",
    "piecewise_interpolate_schedule",
    "polynomial_schedule",
    "replace",
    "rmsprop",
    "scale",
    "scale_by_adam",
    "scale_by_learning_rate",
    "scale_by_lion",
    "scale_by_rms",
    "scale_by_rss",
    "scale_by_schedule",
    "scale_by_sign",
    "scale_by_stddev",
    "schedule",
    "select",
    "set_slot",
    "set_to_zero",
    "sgd",
    "sgdr_schedule",
    "sign_sgd",
    "slot_names",
    "solve",
    "stateless",
    "stateless_with_tree_map",
    "to_config",
    "trace",
    "transformation",
    "tree",
    "warmup_constant_schedule",
    "warmup_cosine_decay_schedule",
    "warmup_exponential_decay_schedule",
    "with_extra_args_support",
    "zero_nans",
]

__version__ = "0.1.0"
