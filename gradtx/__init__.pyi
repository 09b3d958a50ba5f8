# The public names of gradtx: type checkers read this file, and so does names/namespace.py.
# Those imported by name are the face of gradtx, its `__all__`. A star at the end opens a room.

# Modules of names.
from gradtx import (
    checks as checks,
    contrib as contrib,
    distributed as distributed,
    interop as interop,
    losses as losses,
    measuring as measuring,
    projections as projections,
    schedules as schedules,
    sharding as sharding,
    sparse as sparse,
    states as states,
    storage as storage,
    testing as testing,
    transforms as transforms,
    tree as tree,
    tree_utils as tree_utils,
)

# Pairs, and the types of their parts.
from gradtx.core.pair import (
    GradientTransformation as GradientTransformation,
    GradientTransformationExtraArgs as GradientTransformationExtraArgs,
    with_extra_args_support as with_extra_args_support,
)
from gradtx.types import (
    ArrayTree as ArrayTree,
    EmptyState as EmptyState,
    MaskedNode as MaskedNode,
    OptState as OptState,
    Params as Params,
    ScalarOrSchedule as ScalarOrSchedule,
    Schedule as Schedule,
    TransformInitFn as TransformInitFn,
    TransformUpdateExtraArgsFn as TransformUpdateExtraArgsFn,
    TransformUpdateFn as TransformUpdateFn,
    Updates as Updates,
    init_empty_state as init_empty_state,
)

# Composition: chains, masks and groups.
from gradtx.composition.chain import (
    chain as chain,
    identity as identity,
    named_chain as named_chain,
    set_to_zero as set_to_zero,
    stateless as stateless,
    stateless_with_tree_map as stateless_with_tree_map,
)
from gradtx.composition.groups import (
    freeze as freeze,
    multi_transform as multi_transform,
    partition as partition,
    regroup as regroup,
    reset_group as reset_group,
    selective_transform as selective_transform,
)
from gradtx.composition.masking import masked as masked
from gradtx.composition.matrices import MuonDimensionNumbers as MuonDimensionNumbers
from gradtx.composition.multipliers import Multipliers as Multipliers
from gradtx.composition.roles import ByRole as ByRole, Role as Role
from gradtx.leaves.paths import MaskOrFn as MaskOrFn, select as select

# Optimizers, and the rules that are chained by hand most.
from gradtx.optimizers.adabelief import adabelief as adabelief, scale_by_belief as scale_by_belief
from gradtx.optimizers.adadelta import adadelta as adadelta
from gradtx.optimizers.adafactor import (
    adafactor as adafactor,
    scale_by_factored_rms as scale_by_factored_rms,
)
from gradtx.optimizers.adagrad import adagrad as adagrad
from gradtx.optimizers.adam import adam as adam, adamw as adamw, scale_by_adam as scale_by_adam
from gradtx.optimizers.adamax import (
    adamax as adamax,
    adamaxw as adamaxw,
    scale_by_adamax as scale_by_adamax,
)
from gradtx.optimizers.adan import adan as adan, scale_by_adan as scale_by_adan
from gradtx.optimizers.ademamix import ademamix as ademamix
from gradtx.optimizers.adopt import adopt as adopt
from gradtx.optimizers.amsgrad import amsgrad as amsgrad, scale_by_amsgrad as scale_by_amsgrad
from gradtx.optimizers.bfgs import bfgs as bfgs
from gradtx.optimizers.dog import dog as dog
from gradtx.optimizers.fromage import fromage as fromage
from gradtx.optimizers.ftrl import ftrl as ftrl
from gradtx.optimizers.lamb import lamb as lamb
from gradtx.optimizers.lars import lars as lars
from gradtx.optimizers.lbfgs import lbfgs as lbfgs, scale_by_lbfgs as scale_by_lbfgs
from gradtx.optimizers.lbfgsb import lbfgsb as lbfgsb
from gradtx.optimizers.lion import lion as lion, scale_by_lion as scale_by_lion
from gradtx.optimizers.lora import lora_fa as lora_fa, lora_plus as lora_plus
from gradtx.optimizers.muon import muon as muon, scale_by_muon as scale_by_muon
from gradtx.optimizers.nadam import nadam as nadam, nadamw as nadamw
from gradtx.optimizers.noise import noisy_sgd as noisy_sgd
from gradtx.optimizers.novograd import novograd as novograd
from gradtx.optimizers.optimistic import optimistic_gradient_descent as optimistic_gradient_descent
from gradtx.optimizers.polyak import polyak_sgd as polyak_sgd
from gradtx.optimizers.prodigy import prodigy as prodigy
from gradtx.optimizers.radam import radam as radam, scale_by_radam as scale_by_radam
from gradtx.optimizers.rmsprop import rmsprop as rmsprop, scale_by_rms as scale_by_rms
from gradtx.optimizers.rowwise import (
    rowwise_adagrad as rowwise_adagrad,
    rowwise_adam as rowwise_adam,
)
from gradtx.optimizers.rprop import rprop as rprop
from gradtx.optimizers.sgd import scale_by_sign as scale_by_sign, sgd as sgd, sign_sgd as sign_sgd
from gradtx.optimizers.shampoo import shampoo as shampoo
from gradtx.optimizers.signum import signum as signum
from gradtx.optimizers.sm3 import sm3 as sm3
from gradtx.optimizers.soap import scale_by_soap as scale_by_soap, soap as soap
from gradtx.optimizers.sophia import sophia as sophia
from gradtx.optimizers.stable_adamw import stable_adamw as stable_adamw
from gradtx.optimizers.yogi import scale_by_yogi as scale_by_yogi, yogi as yogi

# Transforms of updates.
from gradtx.transforms.apply_every import apply_every as apply_every
from gradtx.transforms.backtracking import (
    scale_by_backtracking_linesearch as scale_by_backtracking_linesearch,
)
from gradtx.transforms.cleaning import centralize as centralize, zero_nans as zero_nans
from gradtx.transforms.clipping import (
    clip as clip,
    clip_by_block_rms as clip_by_block_rms,
    clip_by_global_norm as clip_by_global_norm,
    clip_by_norm as clip_by_norm,
)
from gradtx.transforms.constraints import keep_params_nonnegative as keep_params_nonnegative
from gradtx.transforms.decay import add_decayed_weights as add_decayed_weights
from gradtx.transforms.linesearch import value_and_grad_from_state as value_and_grad_from_state
from gradtx.transforms.momentum import ema as ema, trace as trace
from gradtx.transforms.monitoring import (
    measure_with_ema as measure_with_ema,
    monitor as monitor,
    snapshot as snapshot,
)
from gradtx.transforms.noise import add_noise as add_noise
from gradtx.transforms.norms import adaptive_grad_clip as adaptive_grad_clip, normalize as normalize
from gradtx.transforms.parameter_averages import (
    ema_params as ema_params,
    eval_params as eval_params,
    swa_params as swa_params,
)
from gradtx.transforms.per_example import (
    per_example_global_norm_clip as per_example_global_norm_clip,
    per_example_layer_norm_clip as per_example_layer_norm_clip,
)
from gradtx.transforms.plateau import reduce_on_plateau as reduce_on_plateau
from gradtx.transforms.projecting import project as project
from gradtx.transforms.scaling import (
    scale as scale,
    scale_by_learning_rate as scale_by_learning_rate,
    scale_by_schedule as scale_by_schedule,
    scale_gradient as scale_gradient,
)
from gradtx.transforms.single_examples import per_example as per_example
from gradtx.transforms.trust import scale_by_trust_ratio as scale_by_trust_ratio
from gradtx.transforms.zoom import scale_by_zoom_linesearch as scale_by_zoom_linesearch

# Wrappers of any transformation.
from gradtx.wrappers.accumulation import accumulate as accumulate, has_updated as has_updated
from gradtx.wrappers.cautious import cautious as cautious
from gradtx.wrappers.compensated import compensated as compensated
from gradtx.wrappers.conditional import (
    conditionally_mask as conditionally_mask,
    conditionally_transform as conditionally_transform,
    skip_if_none as skip_if_none,
)
from gradtx.wrappers.finite import (
    apply_if_finite as apply_if_finite,
    skip_large_updates as skip_large_updates,
    skip_not_finite as skip_not_finite,
)
from gradtx.wrappers.flatten import flatten as flatten
from gradtx.wrappers.guard import guard as guard
from gradtx.wrappers.inject import (
    inject_hyperparams as inject_hyperparams,
    inject_stateful_hyperparams as inject_stateful_hyperparams,
    injected as injected,
)
from gradtx.wrappers.layerwise_rate import layerwise_rate_decay as layerwise_rate_decay
from gradtx.wrappers.lookahead import lookahead as lookahead
from gradtx.wrappers.loss_scaling import (
    dynamic_loss_scale as dynamic_loss_scale,
    loss_scale as loss_scale,
)
from gradtx.wrappers.master_weights import master_weights as master_weights
from gradtx.wrappers.multi_steps import MultiSteps as MultiSteps, multi_steps as multi_steps
from gradtx.wrappers.offload import offload as offload
from gradtx.wrappers.predecay import decay_first as decay_first
from gradtx.wrappers.privacy import (
    differentially_private as differentially_private,
    differentially_private_aggregate as differentially_private_aggregate,
    dpsgd as dpsgd,
)
from gradtx.wrappers.proximal import proximal as proximal
from gradtx.wrappers.sam import sam as sam
from gradtx.wrappers.schedule_free import (
    schedule_free as schedule_free,
    schedule_free_adamw as schedule_free_adamw,
    schedule_free_eval_params as schedule_free_eval_params,
    schedule_free_sgd as schedule_free_sgd,
)
from gradtx.wrappers.split import SplitLeaf as SplitLeaf, split_leaves as split_leaves
from gradtx.wrappers.static import static as static
from gradtx.wrappers.transfer import (
    transfer as transfer,
    transfer_initial as transfer_initial,
    transfer_multipliers as transfer_multipliers,
)
from gradtx.storage.format import Codec as Codec
from gradtx.wrappers.store import in_storage_of as in_storage_of, store as store

# Schedules.
from gradtx.schedules.cyclic import cyclic_schedule as cyclic_schedule
from gradtx.schedules.decay import (
    constant_schedule as constant_schedule,
    cosine_decay_schedule as cosine_decay_schedule,
    exponential_decay as exponential_decay,
    linear_schedule as linear_schedule,
    polynomial_schedule as polynomial_schedule,
)
from gradtx.schedules.piecewise import (
    cosine_onecycle_schedule as cosine_onecycle_schedule,
    join_schedules as join_schedules,
    piecewise_constant_schedule as piecewise_constant_schedule,
    piecewise_interpolate_schedule as piecewise_interpolate_schedule,
    sgdr_schedule as sgdr_schedule,
    warmup_constant_schedule as warmup_constant_schedule,
    warmup_cosine_decay_schedule as warmup_cosine_decay_schedule,
    warmup_exponential_decay_schedule as warmup_exponential_decay_schedule,
    wsd_schedule as wsd_schedule,
)
from gradtx.schedules.products import multiply_schedules as multiply_schedules

# Gradients without a backward pass.
from gradtx.estimators.estimator import Estimator as Estimator
from gradtx.estimators.evolution_strategies import evolution_strategies as evolution_strategies
from gradtx.estimators.forward_gradients import forward_gradients as forward_gradients
from gradtx.estimators.spsa import spsa as spsa
from gradtx.training.estimated import estimated_gradients as estimated_gradients

# Training: steps, loops and solvers.
from gradtx.composition.apply import (
    apply_updates as apply_updates,
    incremental_update as incremental_update,
    periodic_update as periodic_update,
)
from gradtx.training.microbatching import microbatch as microbatch
from gradtx.training.minimize import (
    apply_gradients as apply_gradients,
    compute_gradients as compute_gradients,
    minimize as minimize,
)
from gradtx.training.rates import find_rate as find_rate
from gradtx.training.rounding import stochastic_rounding as stochastic_rounding
from gradtx.training.implicit import Implicit as Implicit
from gradtx.training.plots import plot_runs as plot_runs
from gradtx.training.solve import (
    Solution as Solution,
    Status as Status,
    StopReason as StopReason,
    solve as solve,
)
from gradtx.leaves.packed import Packed as Packed, pack as pack, unpack as unpack
from gradtx.backward.inside import InsidePlan as InsidePlan
from gradtx.training.step import TrainStep as TrainStep, make_step as make_step

# Rows of tables.
from gradtx.leaves.rows import Rows as Rows
from gradtx.sparse.exact import dense_rows as dense_rows, exact_rows as exact_rows

# Many devices.
from gradtx.distributed.aggregation import aggregate as aggregate, share_value as share_value
from gradtx.distributed.local import diloco as diloco, local_sgd as local_sgd
from gradtx.sharding.planning import plan_step as plan_step
from gradtx.sharding.sharding import init_sharded as init_sharded, state_sharding as state_sharding

# What a transformation and its state hold.
from gradtx.inspection.noise_scale import noise_scale as noise_scale
from gradtx.inspection.iterations import iterations as iterations
from gradtx.inspection.description import Description as Description, describe as describe
from gradtx.inspection.guards import GuardReport as GuardReport, guard_report as guard_report
from gradtx.inspection.hyperparams import hyperparams as hyperparams, replace as replace
from gradtx.inspection.slots import (
    get_slot as get_slot,
    set_slot as set_slot,
    slot_names as slot_names,
)
from gradtx.inspection.tuned import tuned_settings as tuned_settings

# Configurations and saved states.
from gradtx.checkpoint.run import (
    Checkpoint as Checkpoint,
    load_checkpoint as load_checkpoint,
    save_checkpoint as save_checkpoint,
)
from gradtx.checkpoint.config import from_config as from_config, to_config as to_config
from gradtx.checkpoint.export import register_serialization as register_serialization
from gradtx.checkpoint.state_dict import (
    StateMatch as StateMatch,
    load_state_dict as load_state_dict,
    match_state_dict as match_state_dict,
    saved_config as saved_config,
    state_dict as state_dict,
)

# Rules and schedules of your own.
from gradtx.declarations.declared_schedule import evaluated as evaluated, schedule as schedule
from gradtx.engine.lift import elementwise as elementwise, leafwise as leafwise, rowwise as rowwise
from gradtx.engine.matrices import matrixwise as matrixwise
from gradtx.leaves.matrix_layout import MatrixDimensions as MatrixDimensions
from gradtx.engine.tree import treewise as treewise
from gradtx.engine.tuples import tuplewise as tuplewise
from gradtx.engine.zero_gradients import ZeroGradient as ZeroGradient
from gradtx.core.pair import optimizer as optimizer, transformation as transformation
from gradtx.types.update_size import UpdateSize as UpdateSize
from gradtx.types import (
    Counter as Counter,
    InnerState as InnerState,
    NonNegativeSlots as NonNegativeSlots,
    Slots as Slots,
    Stored as Stored,
    TreeScalar as TreeScalar,
)

# Steps outside of jit.
from gradtx.core.eager import eager_programs as eager_programs

# Mathematics of trees and arrays.
from gradtx.linalg.linear_algebra import (
    power_iteration as power_iteration,
    safe_norm as safe_norm,
    safe_root_mean_squares as safe_root_mean_squares,
)
from gradtx.numerics import (
    safe_increment as safe_increment,
    safe_int32_increment as safe_int32_increment,
)
from gradtx.tree import (
    bias_correction as bias_correction,
    global_norm as global_norm,
    update_infinity_moment as update_infinity_moment,
    update_moment as update_moment,
    update_moment_per_elem_norm as update_moment_per_elem_norm,
)
from gradtx.tree_utils import tree_map_params as tree_map_params

# Rooms: what only they have can be had as gradtx.<name> too, and is not in `__all__`.
from gradtx.states import *
from gradtx.losses import *
from gradtx.schedules import *
from gradtx.transforms import *
from gradtx.distributed import *
from gradtx.sharding import *
from gradtx.measuring import *
from gradtx.contrib import *

__all__: list[str]
__version__: str
