"""Names of Optax that are missing here, or differ: for errors and `python -m gradtx check`."""

import importlib
from collections.abc import Callable
from typing import Any

# Names as in Optax, without the ``optax.`` before them. A module stands for all that is in it.
LEFT_OUT = {
    "experimental": "use gradtx.per_example, gradtx.aggregate and gradtx.accumulate",
    "matrix_inverse_pth_root": (
        "use w, q = jnp.linalg.eigh(matrix), then (q * w ** (-1 / p)) @ q.T"
    ),
    "monte_carlo": "Optax has removed it too; use gradtx.perturbations",
    "multi_normal": "use jax.random.normal and jax.scipy.stats.norm.logpdf",
    "nnls": "use gradtx.solve with gradtx.project('non_negative'), or scipy.optimize.nnls",
    "second_order": (
        "Optax has deprecated it; use jax.jvp(jax.grad(loss), (params,), (v,))[1], or "
        "gradtx.hutchinson_estimator_diag_hessian for a diagonal"
    ),
}

# Names that Optax has dropped: since which version, and what to use.
_SAMPLED = "use jax.grad of a loss of samples, or gradtx.perturbations"
DROPPED = {
    "AdditiveWeightDecayState": ("0.1.8", "gradtx.add_decayed_weights keeps no numbers"),
    "FactoredParameterStats": ("0.0.91", "gradtx.FactoredState has their arrays"),
    "MaybeUpdateState": ("0.2.5", "gradtx.ConditionallyTransformState is the same"),
    "ScaleByFromageState": ("0.1.5", "gradtx.fromage is a chain"),
    "additive_weight_decay": ("0.1.8", "gradtx.add_decayed_weights is the same"),
    "control_delta_method": ("0.1.8", _SAMPLED),
    "control_variates_jacobians": ("0.1.8", _SAMPLED),
    "fisher_diag": ("0.1.8", LEFT_OUT["second_order"]),
    "hessian_diag": ("0.1.8", LEFT_OUT["second_order"]),
    "hvp": ("0.1.8", LEFT_OUT["second_order"]),
    "maybe_update": ("0.2.5", "gradtx.conditionally_transform is the same"),
    "measure_valued_jacobians": ("0.1.8", _SAMPLED),
    "moving_avg_baseline": ("0.1.8", _SAMPLED),
    "pathwise_jacobians": ("0.1.8", _SAMPLED),
    "score_function_jacobians": ("0.1.8", _SAMPLED),
}

# Names of Optax's development version that 0.2.8 does not have, and what to use.
NEWER = {"prism": "gradtx.muon and gradtx.soap follow the same matrices"}

# Modules of Optax that are passed on to an Optax that is installed, and what else to use.
PASSED_ON = {
    "assignment": "scipy.optimize.linear_sum_assignment finds the same assignment",
    "microbatching": "gradtx.microbatch has accumulators that are named by strings",
    "perturbations": "nothing here does the same",
}

# Names of any module that mean something else here, or whose numbers differ by more than rounding.
DIFFERENT = {
    "MaskedNode": "`None` stands where a leaf is masked; `isinstance(None, MaskedNode)` is true",
    "__version__": "gradtx's own version; its names are those of Optax 0.2.8",
    "adadelta": "without a learning rate it descends with rate 1; Optax ascends",
    "apply_if_finite": "beyond the limit too no NaN gets in, unless `accept_at_limit=True`",
    "dadapt_adamw": "keeps its estimate while gradients are 0, where Optax gets NaN",
    "differentially_private_aggregate": "needs a key: noise of a known one can be taken off",
    "dpsgd": "needs a key: noise of a known one can be taken off",
    "madgrad": "epsilon is not added to a learning rate of 0, as in the authors' code",
    "momo": "divides the whole step by one plus the decay, as the paper does",
    "momo_adam": "divides the whole step by one plus the decay, as the paper does",
    "scale_by_radam": "exact where Optax computes in float32: 1.2e-2 of a step apart at step 6",
    "radam": "exact where Optax computes in float32: 1.2e-2 of a step apart at step 6",
    "prodigy": "keeps its estimate while gradients are 0, where Optax gets NaN",
    "reduce_on_plateau": "a relative tolerance is to the absolute value",
    "schedule_free": "its weights see the schedule from step 0 on, Optax's from step 1",
    "galore": "projects the shorter side of a matrix; `proj_type='reverse_std'` does as Optax",
    "inject_hyperparams": "a function that is no hyperparameter, such as a mask, is passed on",
    "scale_by_madgrad": "epsilon is not added to a learning rate of 0, as in the authors' code",
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


def passed_on(module: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module whose names are those of Optax's module.

    >>> import gradtx
    >>> gradtx.assignment.hungarian_algorithm.__module__.partition(".")[0]
    'optax'
    """
    name = module.removeprefix("gradtx.")

    def get(attribute: str) -> Any:
        if attribute.startswith("__"):  # Python and its tools ask for many
            raise AttributeError(f"module {module!r} has no attribute {attribute!r}")
        if attribute.startswith("_"):  # a private module of this name is gradtx's own
            from importlib.util import find_spec

            if find_spec(f"{module}.{attribute}") is not None:
                return importlib.import_module(f"{module}.{attribute}")
        try:
            home = importlib.import_module(f"optax.{name}")
        except ImportError as error:
            raise ImportError(
                f"{module}.{attribute} is Optax's own, passed on, and there is no optax.{name} "
                f"({error}): install Optax; {PASSED_ON[name]}"
            ) from error
        return getattr(home, attribute)

    return get
