# The public names of gradtx: type checkers read this file, and so does names/namespace.py.

# Modules of names.
from gradtx import (
    checks as checks,
    contrib as contrib,
    interop as interop,
    losses as losses,
    projections as projections,
    schedules as schedules,
    sparse as sparse,
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
    ConditionFn as ConditionFn,
    EmptyState as EmptyState,
    MaskedNode as MaskedNode,
    OptState as OptState,
    Params as Params,
    ScalarOrSchedule as ScalarOrSchedule,
    Schedule as Schedule,
    ShouldSkipUpdateFunction as ShouldSkipUpdateFunction,
    StatefulSchedule as StatefulSchedule,
    TransformInitFn as TransformInitFn,
    TransformUpdateExtraArgsFn as TransformUpdateExtraArgsFn,
    TransformUpdateFn as TransformUpdateFn,
    Updates as Updates,
    init_empty_state as init_empty_state,
)

# Composition: chains, masks and groups.
from gradtx.composition.chain import (
    NamedStates as NamedStates,
    chain as chain,
    identity as identity,
    named_chain as named_chain,
    set_to_zero as set_to_zero,
    stateless as stateless,
    stateless_with_tree_map as stateless_with_tree_map,
)
from gradtx.composition.groups import (
    MultiTransformState as MultiTransformState,
    PartitionState as PartitionState,
    freeze as freeze,
    multi_transform as multi_transform,
    partition as partition,
    regroup as regroup,
    reset_group as reset_group,
    selective_transform as selective_transform,
)
from gradtx.composition.masking import MaskedState as MaskedState, masked as masked
from gradtx.composition.matrices import MuonDimensionNumbers as MuonDimensionNumbers
from gradtx.composition.multipliers import Multipliers as Multipliers
from gradtx.composition.roles import ByRole as ByRole, Role as Role
from gradtx.leaves.paths import MaskOrFn as MaskOrFn, select as select

# Optimizers, each with its rule and the state that it keeps.
from gradtx.optimizers.acprop import acprop as acprop, scale_by_acprop as scale_by_acprop
from gradtx.optimizers.adabelief import (
    ScaleByBeliefState as ScaleByBeliefState,
    adabelief as adabelief,
    scale_by_belief as scale_by_belief,
)
from gradtx.optimizers.adabound import (
    ScaleByAdaboundState as ScaleByAdaboundState,
    adabound as adabound,
    scale_by_adabound as scale_by_adabound,
)
from gradtx.optimizers.adadelta import (
    ScaleByAdaDeltaState as ScaleByAdaDeltaState,
    adadelta as adadelta,
    scale_by_adadelta as scale_by_adadelta,
)
from gradtx.optimizers.adafactor import (
    FactoredState as FactoredState,
    adafactor as adafactor,
    scale_by_factored_rms as scale_by_factored_rms,
)
from gradtx.optimizers.adagrad import (
    ScaleByRssState as ScaleByRssState,
    adagrad as adagrad,
    scale_by_rss as scale_by_rss,
)
from gradtx.optimizers.adagrad_decay import (
    ScaleByAdagradDecayState as ScaleByAdagradDecayState,
    adagrad_decay as adagrad_decay,
    scale_by_adagrad_decay as scale_by_adagrad_decay,
)
from gradtx.optimizers.adahessian import (
    AdahessianState as AdahessianState,
    adahessian as adahessian,
    scale_by_adahessian as scale_by_adahessian,
)
from gradtx.optimizers.adam import (
    ScaleByAdamState as ScaleByAdamState,
    adam as adam,
    adamw as adamw,
    scale_by_adam as scale_by_adam,
)
from gradtx.optimizers.adam_mini import (
    adam_mini as adam_mini,
    scale_by_adam_mini as scale_by_adam_mini,
)
from gradtx.optimizers.adamax import (
    adamax as adamax,
    adamaxw as adamaxw,
    scale_by_adamax as scale_by_adamax,
)
from gradtx.optimizers.adamp import (
    adamp as adamp,
    scale_by_adamp as scale_by_adamp,
)
from gradtx.optimizers.adamuon import (
    AdamuonState as AdamuonState,
    adamuon as adamuon,
    scale_by_adamuon as scale_by_adamuon,
)
from gradtx.optimizers.adan import (
    ScaleByAdanState as ScaleByAdanState,
    adan as adan,
    scale_by_adan as scale_by_adan,
)
from gradtx.optimizers.ademamix import (
    ScaleByAdemamixState as ScaleByAdemamixState,
    ScaleBySimplifiedAdEMAMixState as ScaleBySimplifiedAdEMAMixState,
    ademamix as ademamix,
    scale_by_ademamix as scale_by_ademamix,
    scale_by_simplified_ademamix as scale_by_simplified_ademamix,
    simplified_ademamix as simplified_ademamix,
)
from gradtx.optimizers.adopt import adopt as adopt, scale_by_adopt as scale_by_adopt
from gradtx.optimizers.amsgrad import (
    ScaleByAmsgradState as ScaleByAmsgradState,
    amsgrad as amsgrad,
    scale_by_amsgrad as scale_by_amsgrad,
)
from gradtx.optimizers.apollo import (
    ScaleByApolloState as ScaleByApolloState,
    apollo as apollo,
    scale_by_apollo as scale_by_apollo,
)
from gradtx.optimizers.asgd import AsgdState as AsgdState, asgd as asgd
from gradtx.optimizers.bfgs import (
    ScaleByBFGSState as ScaleByBFGSState,
    bfgs as bfgs,
    scale_by_bfgs as scale_by_bfgs,
    scale_by_ssbroyden as scale_by_ssbroyden,
    ssbroyden as ssbroyden,
)
from gradtx.optimizers.came import (
    ScaleByCameState as ScaleByCameState,
    came as came,
    scale_by_came as scale_by_came,
)
from gradtx.optimizers.cocob import (
    COCOBState as COCOBState,
    cocob as cocob,
    scale_by_cocob as scale_by_cocob,
)
from gradtx.optimizers.conda import (
    ScaleByCondaState as ScaleByCondaState,
    conda as conda,
    scale_by_conda as scale_by_conda,
)
from gradtx.optimizers.dadapt import (
    DAdaptAdamWState as DAdaptAdamWState,
    dadapt_adamw as dadapt_adamw,
)
from gradtx.optimizers.diffgrad import (
    ScaleByDiffgradState as ScaleByDiffgradState,
    diffgrad as diffgrad,
    scale_by_diffgrad as scale_by_diffgrad,
)
from gradtx.optimizers.dion import (
    Dion2State as Dion2State,
    Dion3State as Dion3State,
    dion2 as dion2,
    dion3 as dion3,
    scale_by_dion2 as scale_by_dion2,
    scale_by_dion3 as scale_by_dion3,
)
from gradtx.optimizers.dion_low_rank import (
    DionState as DionState,
    dion as dion,
    scale_by_dion as scale_by_dion,
)
from gradtx.optimizers.dog import (
    DoGState as DoGState,
    DoWGState as DoWGState,
    ScaleByDistanceOverGradientsState as ScaleByDistanceOverGradientsState,
    dog as dog,
    dowg as dowg,
    scale_by_distance_over_gradients as scale_by_distance_over_gradients,
    scale_by_dog as scale_by_dog,
    scale_by_dowg as scale_by_dowg,
)
from gradtx.optimizers.fira import (
    ScaleByFiraState as ScaleByFiraState,
    fira as fira,
    scale_by_fira as scale_by_fira,
)
from gradtx.optimizers.fromage import fromage as fromage
from gradtx.optimizers.ftrl import FtrlState as FtrlState, ftrl as ftrl
from gradtx.optimizers.galore import (
    GaLoreDimensionNumbers as GaLoreDimensionNumbers,
    GaLoreState as GaLoreState,
    galore as galore,
    scale_by_galore as scale_by_galore,
)
from gradtx.optimizers.kl_shampoo import (
    ScaleByKLState as ScaleByKLState,
    kl_shampoo as kl_shampoo,
    kl_soap as kl_soap,
    scale_by_kl_shampoo as scale_by_kl_shampoo,
    scale_by_kl_soap as scale_by_kl_soap,
)
from gradtx.optimizers.kron import (
    ScaleByKronState as ScaleByKronState,
    kron as kron,
    scale_by_kron as scale_by_kron,
)
from gradtx.optimizers.lamb import lamb as lamb, scale_by_lamb as scale_by_lamb
from gradtx.optimizers.laprop import (
    ScaleByLapropState as ScaleByLapropState,
    laprop as laprop,
    scale_by_laprop as scale_by_laprop,
)
from gradtx.optimizers.lars import lars as lars, scale_by_lars as scale_by_lars
from gradtx.optimizers.lbfgs import (
    ScaleByLBFGSState as ScaleByLBFGSState,
    lbfgs as lbfgs,
    scale_by_lbfgs as scale_by_lbfgs,
)
from gradtx.optimizers.lbfgsb import lbfgsb as lbfgsb, scale_by_lbfgsb as scale_by_lbfgsb
from gradtx.optimizers.lion import (
    ScaleByLionState as ScaleByLionState,
    lion as lion,
    scale_by_lion as scale_by_lion,
)
from gradtx.optimizers.lora import (
    lora_fa as lora_fa,
    lora_plus as lora_plus,
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
from gradtx.optimizers.mars import (
    MarsState as MarsState,
    mars as mars,
    mars_adamw as mars_adamw,
    mars_lion as mars_lion,
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
    scale_by_shape as scale_by_shape,
)
from gradtx.optimizers.muon2 import (
    FactoredMuon2State as FactoredMuon2State,
    Muon2State as Muon2State,
    muon2 as muon2,
    scale_by_muon2 as scale_by_muon2,
)
from gradtx.optimizers.newton_muon import newton_muon as newton_muon
from gradtx.optimizers.muown import (
    SizesAndDirectionsState as SizesAndDirectionsState,
    muown as muown,
    sizes_and_directions as sizes_and_directions,
)
from gradtx.optimizers.nadam import (
    ScaleByNadamState as ScaleByNadamState,
    nadam as nadam,
    nadamw as nadamw,
    scale_by_nadam as scale_by_nadam,
)
from gradtx.optimizers.noise import noisy_sgd as noisy_sgd
from gradtx.optimizers.normuon import (
    NormuonState as NormuonState,
    normuon as normuon,
    scale_by_normuon as scale_by_normuon,
)
from gradtx.optimizers.novograd import (
    ScaleByNovogradState as ScaleByNovogradState,
    novograd as novograd,
    scale_by_novograd as scale_by_novograd,
)
from gradtx.optimizers.optimistic import (
    ScaleByOptimisticGradientState as ScaleByOptimisticGradientState,
    optimistic_adam as optimistic_adam,
    optimistic_adam_v2 as optimistic_adam_v2,
    optimistic_gradient_descent as optimistic_gradient_descent,
    scale_by_optimistic_gradient as scale_by_optimistic_gradient,
)
from gradtx.optimizers.orthogonalize import orthogonalize as orthogonalize
from gradtx.optimizers.polargrad import (
    PolargradState as PolargradState,
    polargrad as polargrad,
    scale_by_polargrad as scale_by_polargrad,
)
from gradtx.optimizers.polyak import polyak_sgd as polyak_sgd, scale_by_polyak as scale_by_polyak
from gradtx.optimizers.prodigy import ProdigyState as ProdigyState, prodigy as prodigy
from gradtx.optimizers.proximal import (
    AdagradDaState as AdagradDaState,
    adagrad_da as adagrad_da,
    proximal_adagrad as proximal_adagrad,
    proximal_gradient_descent as proximal_gradient_descent,
)
from gradtx.optimizers.psgd_lra import (
    ScaleByPSGDLRAState as ScaleByPSGDLRAState,
    psgd_lra as psgd_lra,
    scale_by_psgd_lra as scale_by_psgd_lra,
)
from gradtx.optimizers.qhadam import (
    ScaleByQhadamState as ScaleByQhadamState,
    qhadam as qhadam,
    scale_by_qhadam as scale_by_qhadam,
)
from gradtx.optimizers.radam import radam as radam, scale_by_radam as scale_by_radam
from gradtx.optimizers.rmsprop import (
    ScaleByRStdDevState as ScaleByRStdDevState,
    ScaleByRStdDevWithCountState as ScaleByRStdDevWithCountState,
    ScaleByRmsState as ScaleByRmsState,
    ScaleByRmsWithCountState as ScaleByRmsWithCountState,
    rmsprop as rmsprop,
    scale_by_rms as scale_by_rms,
    scale_by_stddev as scale_by_stddev,
)
from gradtx.optimizers.rowwise import (
    ScaleByRowwiseAdamState as ScaleByRowwiseAdamState,
    ScaleByRowwiseRssState as ScaleByRowwiseRssState,
    rowwise_adagrad as rowwise_adagrad,
    rowwise_adam as rowwise_adam,
    scale_by_rowwise_adam as scale_by_rowwise_adam,
    scale_by_rowwise_rss as scale_by_rowwise_rss,
)
from gradtx.optimizers.rprop import (
    ScaleByRpropState as ScaleByRpropState,
    rprop as rprop,
    scale_by_rprop as scale_by_rprop,
)
from gradtx.optimizers.scion import scion as scion
from gradtx.optimizers.sgd import scale_by_sign as scale_by_sign, sgd as sgd, sign_sgd as sign_sgd
from gradtx.optimizers.shampoo import (
    ScaleByShampooState as ScaleByShampooState,
    scale_by_shampoo as scale_by_shampoo,
    shampoo as shampoo,
)
from gradtx.optimizers.signum import signum as signum
from gradtx.optimizers.sm3 import (
    ScaleBySM3State as ScaleBySM3State,
    scale_by_sm3 as scale_by_sm3,
    sm3 as sm3,
)
from gradtx.optimizers.soap import (
    ScaleBySoapState as ScaleBySoapState,
    scale_by_soap as scale_by_soap,
    soap as soap,
)
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
from gradtx.optimizers.splus import (
    ScaleBySplusState as ScaleBySplusState,
    scale_by_splus as scale_by_splus,
    splus as splus,
)
from gradtx.optimizers.stable_adamw import (
    scale_by_stable_adamw as scale_by_stable_adamw,
    stable_adamw as stable_adamw,
)
from gradtx.optimizers.stable_spam import (
    ScaleByStableSpamState as ScaleByStableSpamState,
    scale_by_stable_spam as scale_by_stable_spam,
    stable_spam as stable_spam,
)
from gradtx.optimizers.tiger import (
    ScaleByTigerState as ScaleByTigerState,
    scale_by_tiger as scale_by_tiger,
    tiger as tiger,
)
from gradtx.optimizers.yogi import scale_by_yogi as scale_by_yogi, yogi as yogi

# Transforms of updates.
from gradtx.transforms.apply_every import ApplyEvery as ApplyEvery, apply_every as apply_every
from gradtx.transforms.backtracking import (
    BacktrackingLinesearchInfo as BacktrackingLinesearchInfo,
    ScaleByBacktrackingLinesearchState as ScaleByBacktrackingLinesearchState,
    scale_by_backtracking_linesearch as scale_by_backtracking_linesearch,
)
from gradtx.transforms.cleaning import (
    ZeroNansState as ZeroNansState,
    centralize as centralize,
    zero_nans as zero_nans,
)
from gradtx.transforms.batch_size import scale_by_batch_size as scale_by_batch_size
from gradtx.transforms.clipping import (
    clip as clip,
    clip_by_block_rms as clip_by_block_rms,
    clip_by_global_norm as clip_by_global_norm,
    clip_by_last_norm as clip_by_last_norm,
    clip_by_norm as clip_by_norm,
)
from gradtx.transforms.constraints import keep_params_nonnegative as keep_params_nonnegative
from gradtx.transforms.decay import (
    WeightDecaySchedule as WeightDecaySchedule,
    add_cautious_decayed_weights as add_cautious_decayed_weights,
    add_decayed_weights as add_decayed_weights,
)
from gradtx.transforms.ema_nesterov import (
    EmaNesterovState as EmaNesterovState,
    ema_nesterov as ema_nesterov,
)
from gradtx.transforms.grokfast import (
    GrokfastEmaState as GrokfastEmaState,
    GrokfastMaState as GrokfastMaState,
    grokfast_ema as grokfast_ema,
    grokfast_ma as grokfast_ma,
)
from gradtx.transforms.linesearch import value_and_grad_from_state as value_and_grad_from_state
from gradtx.transforms.monitoring import (
    CountStepsState as CountStepsState,
    count_steps as count_steps,
)
from gradtx.transforms.hessian import (
    HutchinsonState as HutchinsonState,
    gnb_estimator_diag_hessian as gnb_estimator_diag_hessian,
    hutchinson_estimator_diag_hessian as hutchinson_estimator_diag_hessian,
)
from gradtx.transforms.momentum import (
    EmaState as EmaState,
    TraceState as TraceState,
    TraceWithCountState as TraceWithCountState,
    ema as ema,
    trace as trace,
)
from gradtx.transforms.monitoring import (
    MeasureWithEmaState as MeasureWithEmaState,
    MonitorState as MonitorState,
    SnapshotState as SnapshotState,
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
    EmaParamsState as EmaParamsState,
    SwaParamsState as SwaParamsState,
    ema_params as ema_params,
    eval_params as eval_params,
    swa_params as swa_params,
)
from gradtx.transforms.per_example import (
    per_example_global_norm_clip as per_example_global_norm_clip,
    per_example_layer_norm_clip as per_example_layer_norm_clip,
)
from gradtx.transforms.plateau import (
    ReduceLROnPlateauState as ReduceLROnPlateauState,
    reduce_on_plateau as reduce_on_plateau,
)
from gradtx.transforms.primal_averaging import (
    PrimalAveragingState as PrimalAveragingState,
    primal_averaging as primal_averaging,
)
from gradtx.transforms.projecting import project as project
from gradtx.transforms.radius import (
    floor_update_ratio as floor_update_ratio,
    keep_radius as keep_radius,
    radial_brake as radial_brake,
)
from gradtx.transforms.row_decay import (
    RowDecayState as RowDecayState,
    add_row_decayed_weights as add_row_decayed_weights,
)
from gradtx.transforms.scaling import (
    ScaleByScheduleState as ScaleByScheduleState,
    scale as scale,
    scale_by_learning_rate as scale_by_learning_rate,
    scale_by_schedule as scale_by_schedule,
    scale_gradient as scale_gradient,
)
from gradtx.transforms.input_moments import (
    InputMomentsState as InputMomentsState,
    input_moments as input_moments,
    scale_by_input_moments as scale_by_input_moments,
)
from gradtx.transforms.qk_clip import ClippedHeads as ClippedHeads, qk_clip as qk_clip
from gradtx.transforms.shrinking import shrink_params as shrink_params
from gradtx.transforms.single_examples import per_example as per_example
from gradtx.transforms.trust import (
    scale_by_param_block_norm as scale_by_param_block_norm,
    scale_by_param_block_rms as scale_by_param_block_rms,
    scale_by_trust_ratio as scale_by_trust_ratio,
)
from gradtx.transforms.zoom import (
    ScaleByZoomLinesearchState as ScaleByZoomLinesearchState,
    ZoomLinesearchInfo as ZoomLinesearchInfo,
    scale_by_zoom_linesearch as scale_by_zoom_linesearch,
)

# Wrappers of any transformation.
from gradtx.wrappers.accumulation import (
    AccumulateState as AccumulateState,
    MultiStepsState as MultiStepsState,
    accumulate as accumulate,
    has_updated as has_updated,
)
from gradtx.wrappers.cautious import cautious as cautious
from gradtx.wrappers.compensated import (
    CompensatedState as CompensatedState,
    compensated as compensated,
)
from gradtx.wrappers.complex import (
    SplitRealAndImaginaryArrays as SplitRealAndImaginaryArrays,
    SplitRealAndImaginaryState as SplitRealAndImaginaryState,
    split_real_and_imaginary as split_real_and_imaginary,
)
from gradtx.wrappers.conditional import (
    ConditionallyMaskState as ConditionallyMaskState,
    ConditionallyTransformState as ConditionallyTransformState,
    conditionally_mask as conditionally_mask,
    conditionally_transform as conditionally_transform,
    skip_if_none as skip_if_none,
)
from gradtx.wrappers.extragradient import (
    ExtragradientState as ExtragradientState,
    extragradient as extragradient,
)
from gradtx.wrappers.finite import (
    ApplyIfFiniteState as ApplyIfFiniteState,
    apply_if_finite as apply_if_finite,
    skip_large_updates as skip_large_updates,
    skip_not_finite as skip_not_finite,
)
from gradtx.wrappers.flatten import flatten as flatten
from gradtx.wrappers.hyperball import HyperballState as HyperballState, hyperball as hyperball
from gradtx.wrappers.guard import GuardState as GuardState, guard as guard
from gradtx.wrappers.inject import (
    InjectHyperparamsState as InjectHyperparamsState,
    InjectStatefulHyperparamsState as InjectStatefulHyperparamsState,
    WrappedSchedule as WrappedSchedule,
    WrappedScheduleState as WrappedScheduleState,
    inject_hyperparams as inject_hyperparams,
    inject_stateful_hyperparams as inject_stateful_hyperparams,
    injected as injected,
)
from gradtx.wrappers.layerwise_rate import layerwise_rate_decay as layerwise_rate_decay
from gradtx.wrappers.lookahead import (
    LookaheadParams as LookaheadParams,
    LookaheadState as LookaheadState,
    lookahead as lookahead,
)
from gradtx.wrappers.loss_scaling import (
    DynamicLossScaleState as DynamicLossScaleState,
    dynamic_loss_scale as dynamic_loss_scale,
    loss_scale as loss_scale,
)
from gradtx.wrappers.master_weights import (
    MasterWeightsState as MasterWeightsState,
    master_weights as master_weights,
)
from gradtx.wrappers.mechanic import MechanicState as MechanicState, mechanize as mechanize
from gradtx.wrappers.multi_steps import MultiSteps as MultiSteps, multi_steps as multi_steps
from gradtx.wrappers.offload import OffloadState as OffloadState, offload as offload
from gradtx.wrappers.predecay import decay_first as decay_first
from gradtx.wrappers.privacy import (
    DifferentiallyPrivateAggregateState as DifferentiallyPrivateAggregateState,
    differentially_private as differentially_private,
    differentially_private_aggregate as differentially_private_aggregate,
    dpsgd as dpsgd,
)
from gradtx.wrappers.proximal import ProximalState as ProximalState, proximal as proximal
from gradtx.wrappers.sam import (
    GSAMState as GSAMState,
    SAMState as SAMState,
    asam as asam,
    gsam as gsam,
    sam as sam,
)
from gradtx.wrappers.schedule_free import (
    ScheduleFreeState as ScheduleFreeState,
    schedule_free as schedule_free,
    schedule_free_adamw as schedule_free_adamw,
    schedule_free_eval_params as schedule_free_eval_params,
    schedule_free_sgd as schedule_free_sgd,
)
from gradtx.wrappers.split import (
    SplitLeaf as SplitLeaf,
    SplitLeavesState as SplitLeavesState,
    split_leaves as split_leaves,
)
from gradtx.wrappers.static import static as static
from gradtx.wrappers.transfer import (
    transfer as transfer,
    transfer_initial as transfer_initial,
    transfer_multipliers as transfer_multipliers,
)
from gradtx.storage.format import Codec as Codec
from gradtx.wrappers.store import in_storage_of as in_storage_of, store as store
from gradtx.wrappers.trust_gate import (
    TrustGateState as TrustGateState,
    trust_gate as trust_gate,
)

# Schedules.
from gradtx.schedules.half_life import half_life_schedule as half_life_schedule
from gradtx.schedules.cyclic import (
    cosine_restarts_schedule as cosine_restarts_schedule,
    cyclic_schedule as cyclic_schedule,
)
from gradtx.schedules.decay import (
    constant_schedule as constant_schedule,
    cosine_decay_schedule as cosine_decay_schedule,
    exponential_decay as exponential_decay,
    inverse_time_decay as inverse_time_decay,
    linear_schedule as linear_schedule,
    polynomial_schedule as polynomial_schedule,
    power_cooldown_schedule as power_cooldown_schedule,
    relative_step_schedule as relative_step_schedule,
)
from gradtx.schedules.piecewise import (
    cosine_onecycle_schedule as cosine_onecycle_schedule,
    join_schedules as join_schedules,
    linear_onecycle_schedule as linear_onecycle_schedule,
    piecewise_constant_schedule as piecewise_constant_schedule,
    piecewise_interpolate_schedule as piecewise_interpolate_schedule,
    sgdr_schedule as sgdr_schedule,
    warmup_constant_schedule as warmup_constant_schedule,
    warmup_cosine_decay_schedule as warmup_cosine_decay_schedule,
    warmup_exponential_decay_schedule as warmup_exponential_decay_schedule,
    wsd_schedule as wsd_schedule,
)
from gradtx.schedules.products import (
    multiplicative_schedule as multiplicative_schedule,
    multiply_schedules as multiply_schedules,
    stretch_schedule as stretch_schedule,
)

# Losses.
from gradtx.losses.classification import (
    hinge_loss as hinge_loss,
    multiclass_hinge_loss as multiclass_hinge_loss,
    multiclass_perceptron_loss as multiclass_perceptron_loss,
    multiclass_sparsemax_loss as multiclass_sparsemax_loss,
    perceptron_loss as perceptron_loss,
    poly_loss_cross_entropy as poly_loss_cross_entropy,
    safe_softmax_cross_entropy as safe_softmax_cross_entropy,
    sigmoid_binary_cross_entropy as sigmoid_binary_cross_entropy,
    sigmoid_focal_loss as sigmoid_focal_loss,
    softmax_cross_entropy as softmax_cross_entropy,
    softmax_cross_entropy_with_integer_labels as softmax_cross_entropy_with_integer_labels,
    sparsemax_loss as sparsemax_loss,
)
from gradtx.losses.ctc import (
    ctc_loss as ctc_loss,
    ctc_loss_with_forward_probs as ctc_loss_with_forward_probs,
)
from gradtx.losses.divergence import (
    convex_kl_divergence as convex_kl_divergence,
    generalized_kl_divergence as generalized_kl_divergence,
    kl_divergence as kl_divergence,
    kl_divergence_with_log_targets as kl_divergence_with_log_targets,
)
from gradtx.losses.embedding import (
    cosine_distance as cosine_distance,
    cosine_similarity as cosine_similarity,
    ntxent as ntxent,
    triplet_margin_loss as triplet_margin_loss,
)
from gradtx.losses.fenchel_young import make_fenchel_young_loss as make_fenchel_young_loss
from gradtx.losses.linear import linear_softmax_cross_entropy as linear_softmax_cross_entropy
from gradtx.losses.ranking import ranking_softmax_loss as ranking_softmax_loss
from gradtx.losses.regression import (
    absolute_error as absolute_error,
    huber_loss as huber_loss,
    l2_loss as l2_loss,
    log_cosh as log_cosh,
    squared_error as squared_error,
)
from gradtx.losses.segmentation import (
    binary_dice_loss as binary_dice_loss,
    dice_loss as dice_loss,
    multiclass_generalized_dice_loss as multiclass_generalized_dice_loss,
)
from gradtx.losses.smoothing import smooth_labels as smooth_labels

# Gradients without a backward pass.
from gradtx.estimators.estimator import Estimator as Estimator
from gradtx.estimators.evolution_strategies import (
    evolution_strategies as evolution_strategies,
)
from gradtx.estimators.forward_gradients import forward_gradients as forward_gradients
from gradtx.estimators.spsa import spsa as spsa
from gradtx.training.estimated import (
    EstimatedGradientsState as EstimatedGradientsState,
    estimated_gradients as estimated_gradients,
)

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
from gradtx.training.coordinates import (
    CoordinateCheck as CoordinateCheck,
    coordinate_check as coordinate_check,
)
from gradtx.training.rates import RateSweep as RateSweep, find_rate as find_rate
from gradtx.training.rounding import (
    StochasticRoundingState as StochasticRoundingState,
    stochastic_rounding as stochastic_rounding,
)
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
from gradtx.sparse.exact import (
    ExactRowsState as ExactRowsState,
    dense_rows as dense_rows,
    exact_rows as exact_rows,
)

# Many devices.
from gradtx.distributed.aggregation import (
    AggregateState as AggregateState,
    aggregate as aggregate,
    share_value as share_value,
)
from gradtx.distributed.chunks import (
    aggregate_chunked_top_k as aggregate_chunked_top_k,
    aggregate_dct as aggregate_dct,
)
from gradtx.distributed.compression import (
    CompressionState as CompressionState,
    PowerSGDState as PowerSGDState,
    aggregate_bf16 as aggregate_bf16,
    aggregate_int8 as aggregate_int8,
    aggregate_power_sgd as aggregate_power_sgd,
    aggregate_top_k as aggregate_top_k,
)
from gradtx.distributed.dion import (
    distributed_dion as distributed_dion,
    scale_by_distributed_dion as scale_by_distributed_dion,
)
from gradtx.distributed.local import (
    DiLoCoState as DiLoCoState,
    LocalSGDState as LocalSGDState,
    diloco as diloco,
    local_sgd as local_sgd,
)
from gradtx.distributed.low_communication import (
    demo as demo,
    muloco as muloco,
    sparse_loco as sparse_loco,
)
from gradtx.sharding.padding import Padded as Padded
from gradtx.distributed.streaming import (
    StreamingDiLoCoState as StreamingDiLoCoState,
    streaming_diloco as streaming_diloco,
)
from gradtx.sharding.planning import (
    Link as Link,
    StepPlan as StepPlan,
    plan_step as plan_step,
)
from gradtx.sharding.sharding import (
    StateSharding as StateSharding,
    init_sharded as init_sharded,
    state_sharding as state_sharding,
)

# What a transformation and its state hold.
from gradtx.inspection.noise_scale import (
    NoiseScale as NoiseScale,
    noise_scale as noise_scale,
)
from gradtx.inspection.rate_law import RateLaw as RateLaw, fit_rate_law as fit_rate_law
from gradtx.inspection.iterations import iterations as iterations
from gradtx.inspection.description import Description as Description, describe as describe
from gradtx.inspection.guards import GuardReport as GuardReport, guard_report as guard_report
from gradtx.inspection.hyperparams import hyperparams as hyperparams, replace as replace
from gradtx.inspection.movement import unmoved as unmoved
from gradtx.inspection.slots import (
    get_slot as get_slot,
    set_slot as set_slot,
    slot_names as slot_names,
)
from gradtx.inspection.tuned import TunedSettings as TunedSettings, tuned_settings as tuned_settings

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
from gradtx.engine.lift import (
    elementwise as elementwise,
    leafwise as leafwise,
    rowwise as rowwise,
)
from gradtx.engine.matrices import matrixwise as matrixwise
from gradtx.leaves.matrix_layout import MatrixDimensions as MatrixDimensions
from gradtx.engine.tree import treewise as treewise
from gradtx.engine.tuples import tuplewise as tuplewise
from gradtx.engine.zero_gradients import ZeroGradient as ZeroGradient
from gradtx.core.pair import optimizer as optimizer, transformation as transformation
from gradtx.types.update_size import UpdateSize as UpdateSize
from gradtx.declarations.scheduled import ScheduledState as ScheduledState
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

# Optax's names for the states of transformations that keep none.
from gradtx.types import (
    AdaptiveGradClipState as AdaptiveGradClipState,
    AddDecayedWeightsState as AddDecayedWeightsState,
    ClipByGlobalNormState as ClipByGlobalNormState,
    ClipState as ClipState,
    NonNegativeParamsState as NonNegativeParamsState,
    NormalizeState as NormalizeState,
    ScaleByTrustRatioState as ScaleByTrustRatioState,
    ScaleState as ScaleState,
)

__all__: list[str]
__version__: str
