"""Optax 0.2.8's private modules, without ``optax.``, and what ``import *`` takes.

``python -m tests.golden.make_private_paths`` writes this file.
"""

MODULES: dict[str, str] = {
    "_src.alias": (
        "Any MaskOrFn adabelief adadelta adafactor adagrad adam adamax adamaxw adamw adan amsgrad "
        "base combine factorized fromage jax jnp lamb lars lbfgs lion nadam nadamw noisy_sgd "
        "novograd optimistic_adam optimistic_adam_v2 optimistic_gradient_descent polyak_sgd radam "
        "rmsprop rprop sgd sign_sgd signum sm3 transform wrappers yogi"
    ),
    "_src.base": (
        "Any ArrayTree EmptyState GradientTransformation GradientTransformationExtraArgs "
        "NO_PARAMS_MSG OptState PRNGKey Params PyTree ScalarOrSchedule Schedule Shape "
        "StatefulSchedule TransformInitFn TransformUpdateExtraArgsFn TransformUpdateFn Updates "
        "identity init_empty_state jax jnp set_to_zero stateless stateless_with_tree_map "
        "with_extra_args_support"
    ),
    "_src.clipping": (
        "adaptive_grad_clip base clip clip_by_block_rms clip_by_global_norm jax jnp numerics "
        "per_example_global_norm_clip per_example_layer_norm_clip unitwise_clip unitwise_norm "
        "utils"
    ),
    "_src.combine": "MultiTransformState chain multi_transform named_chain partition",
    "_src.constrain": "NonNegativeParamsState ZeroNansState keep_params_nonnegative zero_nans",
    "_src.deprecations": "Any",
    "_src.factorized": "FactoredState base jax jnp np numerics scale_by_factored_rms",
    "_src.linear_algebra": "base global_norm jax jnp power_iteration",
    "_src.linesearch": (
        "Any BacktrackingLinesearchInfo ScaleByBacktrackingLinesearchState "
        "ScaleByZoomLinesearchState ZoomLinesearchInfo ZoomLinesearchState base jax jnp numerics "
        "scale_by_backtracking_linesearch scale_by_zoom_linesearch value_and_grad_from_state "
        "zoom_linesearch"
    ),
    "_src.lookahead": "LookaheadParams LookaheadState base jax jnp lookahead",
    "_src.numerics": (
        "abs_sq jax jnp np safe_increment safe_int32_increment safe_norm safe_root_mean_squares"
    ),
    "_src.schedule": (
        "InjectHyperparamsState constant_schedule cosine_decay_schedule cosine_onecycle_schedule "
        "exponential_decay inject_hyperparams join_schedules linear_onecycle_schedule "
        "linear_schedule piecewise_constant_schedule piecewise_interpolate_schedule "
        "polynomial_schedule sgdr_schedule warmup_constant_schedule warmup_cosine_decay_schedule "
        "warmup_exponential_decay_schedule"
    ),
    "_src.transform": (
        "AddDecayedWeightsState AddNoiseState ApplyEvery EmaState ScaleByAdaDeltaState "
        "ScaleByAdamState ScaleByAdanState ScaleByAmsgradState ScaleByBeliefState "
        "ScaleByDistanceOverGradientsState ScaleByLBFGSState ScaleByLionState "
        "ScaleByNovogradState ScaleByOptimisticGradientState ScaleByRStdDevState "
        "ScaleByRStdDevWithCountState ScaleByRmsState ScaleByRmsWithCountState ScaleByRpropState "
        "ScaleByRssState ScaleBySM3State ScaleByScheduleState ScaleByTrustRatioState ScaleState "
        "TraceState abs_sq add_decayed_weights add_noise apply_every base centralize ema jax jnp "
        "normalize_by_update_norm numerics scale scale_by_adadelta scale_by_adam scale_by_adamax "
        "scale_by_adan scale_by_amsgrad scale_by_belief scale_by_distance_over_gradients "
        "scale_by_lbfgs scale_by_learning_rate scale_by_lion scale_by_novograd "
        "scale_by_optimistic_gradient scale_by_param_block_norm scale_by_param_block_rms "
        "scale_by_polyak scale_by_radam scale_by_rms scale_by_rprop scale_by_rss "
        "scale_by_schedule scale_by_sign scale_by_sm3 scale_by_stddev scale_by_trust_ratio "
        "scale_by_yogi trace utils"
    ),
    "_src.update": "apply_updates base incremental_update jax jnp periodic_update",
    "_src.utils": (
        "base canonicalize_dtype canonicalize_key jax jnp np numerics safe_int32_increment "
        "safe_norm scale_gradient"
    ),
    "_src.wrappers": (
        "ApplyIfFiniteState ConditionFn ConditionallyMaskState ConditionallyTransformState "
        "MaskedNode MaskedState MultiSteps MultiStepsState ShouldSkipUpdateFunction "
        "apply_if_finite conditionally_mask conditionally_transform flatten masked "
        "skip_large_updates skip_not_finite"
    ),
    "assignment._hungarian_algorithm": "base_hungarian_algorithm hungarian_algorithm jax jnp",
    "contrib._acprop": "Any acprop base combine jax jnp numerics scale_by_acprop transform",
    "contrib._ademamix": (
        "Any ScaleByAdemamixState ScaleBySimplifiedAdEMAMixState ademamix base combine jax jnp "
        "lerp numerics scale_by_ademamix scale_by_simplified_ademamix simplified_ademamix "
        "transform utils"
    ),
    "contrib._adopt": "Any adopt base combine jax jnp numerics scale_by_adopt transform utils",
    "contrib._cocob": "Any COCOBState base cocob combine jax jnp scale_by_cocob transform",
    "contrib._complex_valued": (
        "SplitRealAndImaginaryArrays SplitRealAndImaginaryState base jax jnp "
        "split_real_and_imaginary"
    ),
    "contrib._dadapt_adamw": "DAdaptAdamWState base dadapt_adamw jax jnp numerics",
    "contrib._dog": (
        "Any DoGState DoWGState base combine dog dowg jax jnp scale_by_dog scale_by_dowg transform"
    ),
    "contrib._galore": (
        "Any GaLoreDimensionNumbers GaLoreState base combine galore jax jnp numerics "
        "scale_by_galore transform"
    ),
    "contrib._madgrad": (
        "MadgradState base combine jax jnp madgrad numerics scale_by_madgrad transform"
    ),
    "contrib._mechanic": "Any MechanicState base jax jnp mechanize numerics",
    "contrib._momo": "MomoAdamState MomoState base jax jnp momo momo_adam numerics",
    "contrib._muon": (
        "Any MuonDimensionNumbers MuonState alias base combine jax jnp muon numerics "
        "orthogonalize_via_newton_schulz scale_by_muon scale_by_shape transform utils"
    ),
    "contrib._privacy": (
        "DifferentiallyPrivateAggregateState base combine differentially_private_aggregate dpsgd "
        "jax transform utils"
    ),
    "contrib._prodigy": "ProdigyState base jax jnp numerics prodigy",
    "contrib._reduce_on_plateau": (
        "ReduceLROnPlateauState base jax jnp numerics reduce_on_plateau"
    ),
    "contrib._sam": "NormalizeState SAMState base jax jnp normalize sam update",
    "contrib._schedule_free": (
        "ScheduleFreeState alias base combine jax jnp numerics schedule_free schedule_free_adamw "
        "schedule_free_eval_params schedule_free_sgd transform"
    ),
    "contrib._sophia": (
        "Any HutchinsonState SophiaState base combine hutchinson_estimator_diag_hessian jax jnp "
        "numerics scale_by_sophia sophia transform utils"
    ),
    "losses._classification": (
        "convex_kl_divergence ctc_loss ctc_loss_with_forward_probs generalized_kl_divergence "
        "hinge_loss jax jnp kl_divergence kl_divergence_with_log_targets multiclass_hinge_loss "
        "multiclass_perceptron_loss multiclass_sparsemax_loss perceptron_loss "
        "poly_loss_cross_entropy safe_softmax_cross_entropy sigmoid_binary_cross_entropy "
        "sigmoid_focal_loss softmax_cross_entropy softmax_cross_entropy_with_integer_labels "
        "sparsemax_loss utils"
    ),
    "losses._fenchel_young": "Any jax jnp make_fenchel_young_loss",
    "losses._ranking": "jax jnp ranking_softmax_loss utils",
    "losses._regression": (
        "cosine_distance cosine_similarity huber_loss jax jnp l2_loss log_cosh squared_error utils"
    ),
    "losses._segmentation": (
        "binary_dice_loss dice_loss jax jnp multiclass_generalized_dice_loss utils"
    ),
    "losses._self_supervised": "jax jnp ntxent triplet_margin_loss utils",
    "losses._smoothing": "jax jnp smooth_labels utils",
    "microbatching._microbatching": (
        "AccumulationType Accumulator Any base jax jnp micro_grad micro_vmap microbatch "
        "reshape_batch_axis"
    ),
    "perturbations._make_pert": "Gumbel Normal base jax jnp make_perturbed_fun",
    "projections._projections": (
        "Any jax jnp projection_box projection_halfspace projection_hypercube "
        "projection_hyperplane projection_l1_ball projection_l1_sphere projection_l2_ball "
        "projection_l2_sphere projection_linf_ball projection_non_negative projection_simplex "
        "projection_vector"
    ),
    "schedules._inject": (
        "InjectHyperparamsState InjectStatefulHyperparamsState WrappedSchedule "
        "WrappedScheduleState base inject_hyperparams inject_stateful_hyperparams jax jnp np "
        "numerics"
    ),
    "schedules._join": "base jax jnp join_schedules",
    "schedules._schedule": (
        "base constant_schedule cosine_decay_schedule cosine_onecycle_schedule exponential_decay "
        "jax jnp linear_onecycle_schedule linear_schedule piecewise_constant_schedule "
        "piecewise_interpolate_schedule polynomial_schedule sgdr_schedule "
        "warmup_constant_schedule warmup_cosine_decay_schedule warmup_exponential_decay_schedule"
    ),
    "transforms._accumulation": (
        "Any EmaState MultiSteps MultiStepsState ShouldSkipUpdateFunction TraceState base ema jax "
        "jnp numerics skip_large_updates skip_not_finite trace utils"
    ),
    "transforms._adding": (
        "AddNoiseState Any WeightDecaySchedule add_decayed_weights add_noise base jax jnp "
        "numerics utils wrappers"
    ),
    "transforms._clipping": (
        "adaptive_grad_clip base clip clip_by_block_rms clip_by_global_norm jax jnp numerics "
        "per_example_global_norm_clip per_example_layer_norm_clip unitwise_clip unitwise_norm "
        "utils"
    ),
    "transforms._combining": "PartitionState base chain jax named_chain partition wrappers",
    "transforms._conditionality": (
        "Any ApplyIfFiniteState ConditionFn ConditionallyMaskState ConditionallyTransformState "
        "apply_if_finite base conditionally_mask conditionally_transform jax jnp numerics"
    ),
    "transforms._constraining": (
        "Any NonNegativeParamsState ZeroNansState base jax jnp keep_params_nonnegative zero_nans"
    ),
    "transforms._freezing": "base freeze jax masked partition selective_transform",
    "transforms._layouts": "base flatten jax jnp np",
    "transforms._masking": "Any MaskedNode MaskedState base jax masked",
    "transforms._monitoring": (
        "Any MonitorState SnapshotState base jax measure_with_ema monitor snapshot"
    ),
    "tree_utils._casting": "base jax jnp tree_cast tree_cast_like tree_dtype",
    "tree_utils._random": (
        "base jax tree_random_like tree_split_key_like tree_unwrap_random_key_data"
    ),
    "tree_utils._state_utils": (
        "Any NamedTupleKey base jax tree_get tree_get_all_with_path tree_map_params tree_set"
    ),
    "tree_utils._tree_math": (
        "Any jax jnp numerics tree_add tree_add_scale tree_allclose tree_batch_shape "
        "tree_bias_correction tree_clip tree_conj tree_div tree_full_like tree_max tree_min "
        "tree_mul tree_norm tree_ones_like tree_real tree_scale tree_size tree_sub tree_sum "
        "tree_update_infinity_moment tree_update_moment tree_update_moment_per_elem_norm "
        "tree_vdot tree_where tree_zeros_like"
    ),
}
