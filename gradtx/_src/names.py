"""Optax 0.2.8's private modules, without ``optax.``, and what ``import *`` takes.

``python -m tests.golden.make_private_paths`` writes this file.
"""

MODULES: dict[str, str] = {
    "_src.alias": (
        "Any Callable MaskOrFn Optional Union adabelief adadelta adafactor adagrad adam adamax "
        "adamaxw adamw adan amsgrad base combine factorized fromage functools jax jnp lamb lars "
        "lbfgs lion nadam nadamw noisy_sgd novograd optimistic_adam optimistic_adam_v2 "
        "optimistic_gradient_descent polyak_sgd radam rmsprop rprop sgd sign_sgd signum sm3 "
        "transform warnings wrappers yogi"
    ),
    "_src.base": (
        "Any ArrayTree Callable EmptyState GradientTransformation GradientTransformationExtraArgs "
        "Iterable Mapping NO_PARAMS_MSG NamedTuple OptState Optional PRNGKey Params Protocol "
        "PyTree ScalarOrSchedule Schedule ScheduleState Sequence Shape StatefulSchedule "
        "TransformInitFn TransformUpdateExtraArgsFn TransformUpdateFn Union Updates identity "
        "init_empty_state jax jnp runtime_checkable set_to_zero stateless stateless_with_tree_map "
        "with_extra_args_support"
    ),
    "_src.clipping": (
        "Optional Union adaptive_grad_clip base clip clip_by_block_rms clip_by_global_norm jax "
        "jnp numerics optax per_example_global_norm_clip per_example_layer_norm_clip "
        "unitwise_clip unitwise_norm utils"
    ),
    "_src.combine": "MultiTransformState chain multi_transform named_chain partition",
    "_src.constrain": "NonNegativeParamsState ZeroNansState keep_params_nonnegative zero_nans",
    "_src.deprecations": "Any Callable Optional functools warnings",
    "_src.factorized": (
        "Callable FactoredState NamedTuple Optional base dataclasses jax jnp np numerics "
        "scale_by_factored_rms"
    ),
    "_src.linear_algebra": (
        "Callable Optional Union base functools global_norm jax jnp lax optax power_iteration "
        "warnings"
    ),
    "_src.linesearch": (
        "Any BacktrackingLinesearchInfo Callable NamedTuple Optional "
        "ScaleByBacktrackingLinesearchState ScaleByZoomLinesearchState ZoomLinesearchInfo "
        "ZoomLinesearchState base functools inspect jax jnp numerics operator optax "
        "scale_by_backtracking_linesearch scale_by_zoom_linesearch value_and_grad_from_state "
        "zoom_linesearch"
    ),
    "_src.lookahead": "LookaheadParams LookaheadState NamedTuple base jax jnp lookahead",
    "_src.numerics": (
        "Optional Union abs_sq jax jnp np safe_increment safe_int32_increment safe_norm "
        "safe_root_mean_squares"
    ),
    "_src.schedule": (
        "InjectHyperparamsState constant_schedule cosine_decay_schedule cosine_onecycle_schedule "
        "exponential_decay inject_hyperparams join_schedules linear_onecycle_schedule "
        "linear_schedule piecewise_constant_schedule piecewise_interpolate_schedule "
        "polynomial_schedule schedules sgdr_schedule warmup_constant_schedule "
        "warmup_cosine_decay_schedule warmup_exponential_decay_schedule"
    ),
    "_src.transform": (
        "AddDecayedWeightsState AddNoiseState ApplyEvery EmaState Literal NamedTuple Optional "
        "ScaleByAdaDeltaState ScaleByAdamState ScaleByAdanState ScaleByAmsgradState "
        "ScaleByBeliefState ScaleByDistanceOverGradientsState ScaleByLBFGSState ScaleByLionState "
        "ScaleByNovogradState ScaleByOptimisticGradientState ScaleByRStdDevState "
        "ScaleByRStdDevWithCountState ScaleByRmsState ScaleByRmsWithCountState ScaleByRpropState "
        "ScaleByRssState ScaleBySM3State ScaleByScheduleState ScaleByTrustRatioState ScaleState "
        "TraceState abs_sq add_decayed_weights add_noise apply_every base centralize ema "
        "functools jax jnp nn normalize_by_update_norm numerics optax scale scale_by_adadelta "
        "scale_by_adam scale_by_adamax scale_by_adan scale_by_amsgrad scale_by_belief "
        "scale_by_distance_over_gradients scale_by_lbfgs scale_by_learning_rate scale_by_lion "
        "scale_by_novograd scale_by_optimistic_gradient scale_by_param_block_norm "
        "scale_by_param_block_rms scale_by_polyak scale_by_radam scale_by_rms scale_by_rprop "
        "scale_by_rss scale_by_schedule scale_by_sign scale_by_sm3 scale_by_stddev "
        "scale_by_trust_ratio scale_by_yogi trace utils"
    ),
    "_src.update": "apply_updates base incremental_update jax jnp periodic_update",
    "_src.utils": (
        "Optional Sequence base canonicalize_dtype canonicalize_key contextlib jax jnp np "
        "numerics safe_int32_increment safe_norm scale_gradient"
    ),
    "_src.wrappers": (
        "ApplyIfFiniteState ConditionFn ConditionallyMaskState ConditionallyTransformState "
        "MaskedNode MaskedState MultiSteps MultiStepsState ShouldSkipUpdateFunction "
        "apply_if_finite conditionally_mask conditionally_transform flatten masked "
        "skip_large_updates skip_not_finite"
    ),
    "assignment._hungarian_algorithm": (
        "base_hungarian_algorithm functools hungarian_algorithm jax jnp lax"
    ),
    "contrib._acprop": (
        "Any Callable Optional Union acprop base combine jax jnp numerics optax scale_by_acprop "
        "transform"
    ),
    "contrib._ademamix": (
        "Any Callable NamedTuple Optional ScaleByAdemamixState ScaleBySimplifiedAdEMAMixState "
        "Union ademamix base combine jax jnp lerp numerics optax scale_by_ademamix "
        "scale_by_simplified_ademamix simplified_ademamix transform utils"
    ),
    "contrib._adopt": (
        "Any Callable Optional adopt base combine jax jnp numerics optax scale_by_adopt transform "
        "utils"
    ),
    "contrib._cocob": (
        "Any COCOBState Callable NamedTuple Optional Union base cocob combine jax jnp optax "
        "scale_by_cocob transform"
    ),
    "contrib._complex_valued": (
        "NamedTuple SplitRealAndImaginaryArrays SplitRealAndImaginaryState Union base jax jnp "
        "split_real_and_imaginary"
    ),
    "contrib._dadapt_adamw": (
        "DAdaptAdamWState NamedTuple Optional base dadapt_adamw jax jnp numerics optax"
    ),
    "contrib._dog": (
        "Any Callable DoGState DoWGState Literal NamedTuple Optional Union base combine dog dowg "
        "jax jnp optax scale_by_dog scale_by_dowg transform"
    ),
    "contrib._galore": (
        "Any Callable GaLoreDimNumsOrFn GaLoreDimensionNumbers GaLoreState NamedTuple Optional "
        "ReshapeFn Sequence Union base combine galore jax jnp math numerics scale_by_galore "
        "transform"
    ),
    "contrib._madgrad": (
        "MadgradState NamedTuple base combine jax jnp madgrad numerics scale_by_madgrad transform "
        "tree"
    ),
    "contrib._mechanic": (
        "Any MechanicState NamedTuple Optional Union base jax jnp mechanize numerics optax"
    ),
    "contrib._momo": (
        "MomoAdamState MomoState NamedTuple Optional base jax jnp lax momo momo_adam numerics optax"
    ),
    "contrib._muon": (
        "Any Callable Literal MuonDimensionNumbers MuonState NamedTuple Optional ReshapeFn "
        "Sequence Union WeightDimNumOrFn alias base combine functools jax jnp math muon numerics "
        "optax orthogonalize_via_newton_schulz scale_by_muon scale_by_shape transform utils"
    ),
    "contrib._privacy": (
        "DifferentiallyPrivateAggregateState NamedTuple Optional base combine "
        "differentially_private_aggregate dpsgd jax transform transforms utils warnings"
    ),
    "contrib._prodigy": "NamedTuple Optional ProdigyState base jax jnp numerics optax prodigy",
    "contrib._reduce_on_plateau": (
        "NamedTuple ReduceLROnPlateauState base jax jnp numerics optax reduce_on_plateau"
    ),
    "contrib._sam": (
        "Callable NamedTuple NormalizeState Optional SAMState base jax jnp normalize optax sam "
        "update"
    ),
    "contrib._schedule_free": (
        "NamedTuple Optional ScheduleFreeState alias base combine jax jnp numerics optax "
        "schedule_free schedule_free_adamw schedule_free_eval_params schedule_free_sgd transform"
    ),
    "contrib._sophia": (
        "Any Callable HutchinsonState NamedTuple Optional SophiaState Union base combine "
        "hutchinson_estimator_diag_hessian jax jnp numerics optax scale_by_sophia sophia "
        "transform utils"
    ),
    "losses._classification": (
        "Optional Union convex_kl_divergence ctc_loss ctc_loss_with_forward_probs functools "
        "generalized_kl_divergence hinge_loss jax jnp kl_divergence "
        "kl_divergence_with_log_targets multiclass_hinge_loss multiclass_perceptron_loss "
        "multiclass_sparsemax_loss operator perceptron_loss poly_loss_cross_entropy projections "
        "safe_softmax_cross_entropy sigmoid_binary_cross_entropy sigmoid_focal_loss "
        "softmax_cross_entropy softmax_cross_entropy_with_integer_labels sparsemax_loss utils"
    ),
    "losses._fenchel_young": "Any Protocol jax jnp make_fenchel_young_loss",
    "losses._ranking": "Callable Optional jax jnp ranking_softmax_loss utils",
    "losses._regression": (
        "Optional Union cosine_distance cosine_similarity huber_loss jax jnp l2_loss log_cosh "
        "squared_error utils"
    ),
    "losses._segmentation": (
        "Optional binary_dice_loss dice_loss jax jnp multiclass_generalized_dice_loss utils"
    ),
    "losses._self_supervised": "jax jnp lax ntxent triplet_margin_loss utils",
    "losses._smoothing": "Union jax jnp smooth_labels utils",
    "microbatching._microbatching": (
        "AccumulationType Accumulator Any Callable Sequence base collections dataclasses "
        "functools jax jnp micro_grad micro_vmap microbatch reshape_batch_axis"
    ),
    "perturbations._make_pert": "Callable Gumbel Normal base jax jnp make_perturbed_fun optax",
    "projections._projections": (
        "Any flatten_util jax jnp optax projection_box projection_halfspace projection_hypercube "
        "projection_hyperplane projection_l1_ball projection_l1_sphere projection_l2_ball "
        "projection_l2_sphere projection_linf_ball projection_non_negative projection_simplex "
        "projection_vector"
    ),
    "schedules._inject": (
        "Callable InjectHyperparamsState InjectStatefulHyperparamsState Iterable NamedTuple "
        "Optional Union WrappedSchedule WrappedScheduleState base functools inject_hyperparams "
        "inject_stateful_hyperparams inspect jax jnp np numerics optax warnings"
    ),
    "schedules._join": "Sequence base jax jnp join_schedules",
    "schedules._schedule": (
        "Iterable Optional base constant_schedule cosine_decay_schedule cosine_onecycle_schedule "
        "exponential_decay jax jnp linear_onecycle_schedule linear_schedule "
        "piecewise_constant_schedule piecewise_interpolate_schedule polynomial_schedule "
        "sgdr_schedule warmup_constant_schedule warmup_cosine_decay_schedule "
        "warmup_exponential_decay_schedule"
    ),
    "transforms._accumulation": (
        "Any Callable EmaState MultiSteps MultiStepsState NamedTuple Optional Protocol "
        "ShouldSkipUpdateFunction TraceState Union base ema functools jax jnp lax numerics optax "
        "skip_large_updates skip_not_finite trace utils"
    ),
    "transforms._adding": (
        "AddNoiseState Any Callable NamedTuple Optional Union WeightDecaySchedule "
        "add_decayed_weights add_noise base jax jnp numerics optax utils warnings wrappers"
    ),
    "transforms._clipping": (
        "Optional Union adaptive_grad_clip base clip clip_by_block_rms clip_by_global_norm jax "
        "jnp numerics optax per_example_global_norm_clip per_example_layer_norm_clip "
        "unitwise_clip unitwise_norm utils"
    ),
    "transforms._combining": (
        "Callable Hashable Mapping NamedTuple PartitionState Union base chain collections jax "
        "named_chain partition wrappers"
    ),
    "transforms._conditionality": (
        "Any ApplyIfFiniteState ConditionFn ConditionallyMaskState ConditionallyTransformState "
        "NamedTuple Protocol apply_if_finite base conditionally_mask conditionally_transform jax "
        "jnp lax numerics optax"
    ),
    "transforms._constraining": (
        "Any NamedTuple NonNegativeParamsState ZeroNansState base jax jnp keep_params_nonnegative "
        "zero_nans"
    ),
    "transforms._freezing": "Union base freeze jax masked partition selective_transform",
    "transforms._layouts": "base flatten jax jnp np",
    "transforms._masking": "Any Callable MaskedNode MaskedState NamedTuple Union base jax masked",
    "transforms._monitoring": (
        "Any Callable MonitorState NamedTuple SnapshotState base jax measure_with_ema monitor "
        "snapshot"
    ),
    "tree_utils._casting": (
        "Optional TypeVar base functools jax jnp tree_cast tree_cast_like tree_dtype"
    ),
    "tree_utils._random": (
        "Callable Optional Union base inspect jax tree_random_like tree_split_key_like "
        "tree_unwrap_random_key_data"
    ),
    "tree_utils._state_utils": (
        "Any Callable NamedTupleKey Optional Protocol Tuple Union base cast dataclasses functools "
        "jax tree_get tree_get_all_with_path tree_map_params tree_set typing"
    ),
    "tree_utils._tree_math": (
        "Any Optional functools jax jnp numerics operator tree_add tree_add_scale tree_allclose "
        "tree_batch_shape tree_bias_correction tree_clip tree_conj tree_div tree_full_like "
        "tree_max tree_min tree_mul tree_norm tree_ones_like tree_real tree_scale tree_size "
        "tree_sub tree_sum tree_update_infinity_moment tree_update_moment "
        "tree_update_moment_per_elem_norm tree_vdot tree_where tree_zeros_like"
    ),
}
