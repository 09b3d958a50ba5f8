"""Every public name of Optax 0.2.8 but its losses and the like is here, or listed with a reason."""

import inspect

import optax
import pytest

import gradtx

PLACES = {
    optax: gradtx,
    optax.contrib: gradtx,
    optax.transforms: gradtx,
    optax.schedules: gradtx,
    optax.tree: gradtx.tree,
    optax.projections: gradtx.projections,
}

# Found here under another name or in another place.
ELSEWHERE = {
    "tree_map_params": gradtx.tree.map_params,
    "bias_correction": gradtx.tree.bias_correction,
    "update_moment": gradtx.tree.update_moment,
    "update_moment_per_elem_norm": gradtx.tree.update_moment_per_elem_norm,
    "update_infinity_moment": gradtx.tree.update_infinity_moment,
    "MultiTransformState": gradtx.PartitionState,
    "safe_norm": gradtx.norm,
    "safe_root_mean_squares": gradtx.rms,
}

# Not here, and why.
NOT_HERE = {
    **dict.fromkeys(
        (
            "AdaptiveGradClipState",
            "AddDecayedWeightsState",
            "ClipByGlobalNormState",
            "ClipState",
            "NonNegativeParamsState",
            "NormalizeState",
            "ScaleByTrustRatioState",
            "ScaleState",
            "init_empty_state",
        ),
        "another name for EmptyState or what makes it",
    ),
    **dict.fromkeys(
        (
            "ConditionFn",
            "MaskOrFn",
            "ShouldSkipUpdateFunction",
            "TransformInitFn",
            "TransformUpdateExtraArgsFn",
            "TransformUpdateFn",
        ),
        "an annotation of a function; gradtx takes any callable",
    ),
    "MaskedNode": "None stands where a leaf is masked",
    "InjectHyperparamsState": "the state before schedules had states of their own",
    "WrappedSchedule": "inject_hyperparams takes schedules as they are",
    "StatefulSchedule": "any object with init, update and __call__ is one",
    "microbatch": "evaluates a function in parts; what is accumulated here is the gradient",
    "matrix_inverse_pth_root": "linear algebra that no transformation of Optax uses",
    "power_iteration": "linear algebra that no transformation of Optax uses",
    "nnls": "a solver of least squares; see solve with project",
    "multi_normal": "a distribution",
    "safe_increment": "written into every state here",
    "safe_int32_increment": "deprecated there",
}

# Modules of Optax that are about something else.
OTHER_SUBJECTS = {"losses", "assignment", "perturbations", "second_order"}


def names(place):
    """The public functions, classes and values of a module of Optax."""
    losses = vars(optax.losses).keys()
    return [
        name
        for name, value in vars(place).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name not in losses
    ]


ALL = [(place, name) for place in PLACES for name in names(place)]


@pytest.mark.parametrize(("place", "name"), ALL, ids=[f"{p.__name__}.{n}" for p, n in ALL])
def test_it_is_here_or_listed(place, name):
    assert hasattr(PLACES[place], name) or name in ELSEWHERE or name in NOT_HERE


def test_what_is_listed_is_not_here():
    listed = ELSEWHERE.keys() | NOT_HERE.keys()
    assert not listed & set(gradtx.__all__)
    assert listed <= {name for _, name in ALL}


def test_every_module_is_looked_at():
    modules = {n for n, value in vars(optax).items() if inspect.ismodule(value) and n[0] != "_"}
    looked = {p.__name__.removeprefix("optax.") for p in PLACES} | {"tree_utils", "optax"}
    assert modules - looked - OTHER_SUBJECTS <= {"experimental", "microbatching"}
