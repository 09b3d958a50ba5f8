"""Names of Optax that are missing here, or differ: for errors and `python -m gradtx check`."""

# Names as in Optax, without the ``optax.`` before them. A module stands for all that is in it.
LEFT_OUT = {
    "assignment": "use scipy.optimize.linear_sum_assignment, or optax.assignment beside gradtx",
    "experimental": "use gradtx.per_example, gradtx.aggregate and gradtx.accumulate",
    "matrix_inverse_pth_root": (
        "use w, q = jnp.linalg.eigh(matrix), then (q * w ** (-1 / p)) @ q.T"
    ),
    "microbatching": "use gradtx.microbatch, whose accumulators are named by strings",
    "monte_carlo": "Optax has removed it too; use optax.perturbations beside gradtx",
    "multi_normal": "use jax.random.normal and jax.scipy.stats.norm.logpdf",
    "nnls": "use gradtx.solve with gradtx.project('non_negative'), or scipy.optimize.nnls",
    "perturbations": "use optax.perturbations beside gradtx: it needs nothing of it",
    "second_order": (
        "Optax has deprecated it; use jax.jvp(jax.grad(loss), (params,), (v,))[1], or "
        "gradtx.hutchinson_estimator_diag_hessian for a diagonal"
    ),
}

# What means something else here, or gives numbers that differ by more than rounding, in any module.
DIFFERENT = {
    "MaskedNode": "`None` stands where a leaf is masked; `isinstance(None, MaskedNode)` is true",
    "__version__": "gradtx's own version; its names are those of Optax 0.2.8",
    "adadelta": "without a learning rate it descends with rate 1; Optax ascends",
    "apply_if_finite": "beyond the limit too no NaN gets in, unless `accept_at_limit=True`",
    "dadapt_adamw": "keeps its estimate while gradients are 0, where Optax gets NaN",
    "differentially_private_aggregate": "needs a key: noise of a known one can be taken off",
    "dpsgd": "needs a key: noise of a known one can be taken off",
    "momo": "divides the whole step by one plus the decay, as the paper does",
    "momo_adam": "divides the whole step by one plus the decay, as the paper does",
    "prodigy": "keeps its estimate while gradients are 0, where Optax gets NaN",
    "reduce_on_plateau": "a relative tolerance is to the absolute value",
    "schedule_free": "its weights see the schedule from step 0 on, Optax's from step 1",
    "galore": "projects the shorter side of a matrix; `proj_type='reverse_std'` does as Optax",
    "inject_hyperparams": "a function that is no hyperparameter, such as a mask, is passed on",
    "scale_by_galore": "projects the shorter side; `proj_type='reverse_std'` does as Optax",
    "lbfgs": "leaves out pairs with hardly any curvature or a negative one",
    "microbatch": "accumulators are named by strings: 'sum', 'mean', 'concat'",
    "polyak_sgd": "`scaling` multiplies every step",
    "rprop": "the update is that of this step, as in the paper; Optax's is of the one before",
    "scale_by_learning_rate": "None descends with rate 1; Optax ascends",
    "scale_by_rprop": "the update is that of this step; Optax's is of the one before",
    "scale_by_zoom_linesearch": "tries other rates, those of Moré and Thuente",
    "snapshot": "is zero before the first step",
}
