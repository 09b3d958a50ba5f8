# Links of a chain, and the public names of optax.transforms.

from gradtx.composition.chain import chain as chain, named_chain as named_chain
from gradtx.composition.groups import (
    PartitionState as PartitionState,
    freeze as freeze,
    partition as partition,
    selective_transform as selective_transform,
)
from gradtx.composition.masking import MaskedState as MaskedState, masked as masked
from gradtx.optimizers.adabelief import scale_by_belief as scale_by_belief
from gradtx.optimizers.adadelta import scale_by_adadelta as scale_by_adadelta
from gradtx.optimizers.adafactor import scale_by_factored_rms as scale_by_factored_rms
from gradtx.optimizers.adagrad import scale_by_rss as scale_by_rss
from gradtx.optimizers.adam import scale_by_adam as scale_by_adam
from gradtx.optimizers.adamax import scale_by_adamax as scale_by_adamax
from gradtx.optimizers.adan import scale_by_adan as scale_by_adan
from gradtx.optimizers.amsgrad import scale_by_amsgrad as scale_by_amsgrad
from gradtx.optimizers.bfgs import scale_by_bfgs as scale_by_bfgs
from gradtx.optimizers.lamb import scale_by_lamb as scale_by_lamb
from gradtx.optimizers.lars import scale_by_lars as scale_by_lars
from gradtx.optimizers.lbfgs import scale_by_lbfgs as scale_by_lbfgs
from gradtx.optimizers.lbfgsb import scale_by_lbfgsb as scale_by_lbfgsb
from gradtx.optimizers.lion import scale_by_lion as scale_by_lion
from gradtx.optimizers.muon import scale_by_muon as scale_by_muon, scale_by_shape as scale_by_shape
from gradtx.optimizers.nadam import scale_by_nadam as scale_by_nadam
from gradtx.optimizers.novograd import scale_by_novograd as scale_by_novograd
from gradtx.optimizers.orthogonalize import orthogonalize as orthogonalize
from gradtx.optimizers.polyak import scale_by_polyak as scale_by_polyak
from gradtx.optimizers.radam import scale_by_radam as scale_by_radam
from gradtx.optimizers.rmsprop import (
    scale_by_rms as scale_by_rms,
    scale_by_stddev as scale_by_stddev,
)
from gradtx.optimizers.rowwise import (
    scale_by_rowwise_adam as scale_by_rowwise_adam,
    scale_by_rowwise_rss as scale_by_rowwise_rss,
)
from gradtx.optimizers.rprop import scale_by_rprop as scale_by_rprop
from gradtx.optimizers.sgd import scale_by_sign as scale_by_sign
from gradtx.optimizers.shampoo import scale_by_shampoo as scale_by_shampoo
from gradtx.optimizers.sm3 import scale_by_sm3 as scale_by_sm3
from gradtx.optimizers.soap import scale_by_soap as scale_by_soap
from gradtx.optimizers.stable_adamw import scale_by_stable_adamw as scale_by_stable_adamw
from gradtx.optimizers.yogi import scale_by_yogi as scale_by_yogi
from gradtx.transforms.backtracking import (
    scale_by_backtracking_linesearch as scale_by_backtracking_linesearch,
)
from gradtx.transforms.batch_size import scale_by_batch_size as scale_by_batch_size
from gradtx.transforms.cleaning import (
    ZeroNansState as ZeroNansState,
    centralize as centralize,
    zero_nans as zero_nans,
)
from gradtx.transforms.clipping import (
    clip as clip,
    clip_by_block_rms as clip_by_block_rms,
    clip_by_global_norm as clip_by_global_norm,
    clip_by_last_norm as clip_by_last_norm,
    clip_by_norm as clip_by_norm,
)
from gradtx.transforms.constraints import keep_params_nonnegative as keep_params_nonnegative
from gradtx.transforms.decay import (
    add_cautious_decayed_weights as add_cautious_decayed_weights,
    add_decayed_weights as add_decayed_weights,
)
from gradtx.transforms.linesearch import value_and_grad_from_state as value_and_grad_from_state
from gradtx.transforms.momentum import (
    EmaState as EmaState,
    TraceState as TraceState,
    ema as ema,
    trace as trace,
)
from gradtx.transforms.monitoring import (
    MonitorState as MonitorState,
    SnapshotState as SnapshotState,
    count_steps as count_steps,
    measure_with_ema as measure_with_ema,
    monitor as monitor,
    snapshot as snapshot,
)
from gradtx.transforms.noise import AddNoiseState as AddNoiseState, add_noise as add_noise
from gradtx.transforms.norms import (
    adaptive_grad_clip as adaptive_grad_clip,
    adaptive_normalize as adaptive_normalize,
    normalize as normalize,
    normalize_by_update_norm as normalize_by_update_norm,
    unitwise_clip as unitwise_clip,
    unitwise_norm as unitwise_norm,
)
from gradtx.transforms.orthogonal import muon_coefficients as muon_coefficients
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
from gradtx.transforms.trust import (
    scale_by_param_block_norm as scale_by_param_block_norm,
    scale_by_param_block_rms as scale_by_param_block_rms,
    scale_by_trust_ratio as scale_by_trust_ratio,
)
from gradtx.transforms.zoom import scale_by_zoom_linesearch as scale_by_zoom_linesearch
from gradtx.types import (
    ConditionFn as ConditionFn,
    MaskedNode as MaskedNode,
    NonNegativeParamsState as NonNegativeParamsState,
    ShouldSkipUpdateFunction as ShouldSkipUpdateFunction,
)
from gradtx.wrappers.accumulation import MultiStepsState as MultiStepsState
from gradtx.wrappers.conditional import (
    ConditionallyMaskState as ConditionallyMaskState,
    ConditionallyTransformState as ConditionallyTransformState,
    conditionally_mask as conditionally_mask,
    conditionally_transform as conditionally_transform,
)
from gradtx.wrappers.finite import (
    ApplyIfFiniteState as ApplyIfFiniteState,
    apply_if_finite as apply_if_finite,
    skip_large_updates as skip_large_updates,
    skip_not_finite as skip_not_finite,
)
from gradtx.wrappers.flatten import flatten as flatten
from gradtx.wrappers.multi_steps import MultiSteps as MultiSteps
