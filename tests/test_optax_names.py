"""Every public name of Optax 0.2.8 but its losses and the like is here, or listed with a reason."""

import inspect
import pathlib

import optax
import pytest

import gradtx
from tests.catalogue import CATALOGUE

TESTS = pathlib.Path(__file__).parent


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
    "matrix_inverse_pth_root": "linear algebra that no transformation of Optax uses",
    "power_iteration": "linear algebra that no transformation of Optax uses",
    "nnls": "a solver of least squares; see solve with project",
    "multi_normal": "a distribution",
    "safe_increment": "written into every state here",
    "safe_int32_increment": "deprecated there",
}


# Modules of Optax that are about something else.
OTHER_SUBJECTS = {"losses", "assignment", "perturbations", "second_order"}


# Names of `optax.microbatching` and `optax.experimental.aggregating`, and what does it here.
BESIDE = {
    "microbatch": "microbatch",
    **dict.fromkeys(("AccumulationType", "Accumulator"), "microbatch(accumulator='mean')"),
    "micro_vmap": "microbatch(jax.vmap(fun), 0, size, 'concat')",
    "micro_grad": "microbatch(jax.grad(fun), 1, size), or per_example",
    "reshape_batch_axis": "microbatch does it by itself",
    **dict.fromkeys(
        ("Aggregator", "AggregatorUpdateFn", "AggregatedUpdates", "PerElementUpdates", "MaybeAxis"),
        "an annotation of a function",
    ),
    **dict.fromkeys(("process", "average_per_element_updates"), "per_example and aggregate"),
    **dict.fromkeys(
        (
            "AccumulateAvgUpdatesState",
            "accumulate_avg_updates",
            "average_incrementally_updates",
        ),
        "accumulate",
    ),
    **dict.fromkeys(
        (
            "PerElementMeanAndSumSqDiffGradsState",
            "PerElementMeanAndVarianceEMAState",
            "add_mean_variance_to_opt",
            "get_batch_size_from_per_elt_updates",
            "get_per_element_mean_and_sum_sq_diff_grads",
            "get_unbiased_mean_and_variance_ema",
            "track_per_element_mean_and_variance_with_ema",
        ),
        "an experiment: the variance of the gradients of single examples",
    ),
}


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


def test_the_old_names_of_trees_are_those_of_tree():
    old = {n.removeprefix("tree_") for n in names(optax.tree_utils) if n.startswith("tree_")}
    assert old <= set(dir(gradtx.tree))
    assert len(old) > 30


def test_what_stands_beside_is_listed():
    from optax.experimental import aggregating

    modules = [optax.microbatching, aggregating]
    theirs = {n for m in modules for n, v in vars(m).items() if own_name(m, n, v)}
    assert theirs == BESIDE.keys()


def own_name(module, name, value):
    imported = name in {"Any", "NamedTuple", "Protocol", "Sequence"}
    return not (name.startswith("_") or inspect.ismodule(value) or imported)


def test_every_module_is_looked_at():
    modules = {n for n, value in vars(optax).items() if inspect.ismodule(value) and n[0] != "_"}
    looked = {p.__name__.removeprefix("optax.") for p in PLACES} | {"tree_utils", "optax"}
    assert modules - looked - OTHER_SUBJECTS <= {"experimental", "microbatching"}


# Of both libraries, and compared live elsewhere than in test_contracts.test_like_optax, or not.
COMPARED = {
    "hutchinson_estimator_diag_hessian": "optimizers/test_sophia.py",
    "sophia": "optimizers/test_sophia.py",
    "lbfgs": "optimizers/test_lbfgs.py",
    "scale_by_lbfgs": "optimizers/test_lbfgs.py",
    "scale_by_zoom_linesearch": "transforms/test_zoom.py",
    "radam": "optimizers/test_radam.py",
    "partition": "composition/test_groups.py",
    "selective_transform": "composition/test_groups.py",
    "lookahead": "wrappers/test_lookahead.py",
    "monitor": "transforms/test_monitoring.py",
    "measure_with_ema": "transforms/test_monitoring.py",
    "sam": "wrappers/test_sam.py",
    "masked": "composition/test_masking.py",
    "stateless": "composition/test_chain.py",
    "stateless_with_tree_map": "composition/test_chain.py",
    "optimistic_adam": "optimizers/test_optimistic.py",
}


NOT_COMPARED = {
    "scale_by_radam": "as radam",
    "scale_by_muon": "as muon",
    "scale_by_galore": "as galore",
    "rprop": "Optax's update is that of the step before; compared with its paper",
    "scale_by_rprop": "Optax's update is that of the step before; compared with its paper",
}


def test_what_both_have_is_compared_live():
    both = {n for n in CATALOGUE if n in vars(optax) or n in vars(optax.contrib)}
    twins = {name for name, entry in CATALOGUE.items() if entry.optax is not None}
    assert both - twins == COMPARED.keys() | NOT_COMPARED.keys()
    for name, file in COMPARED.items():
        assert name in (TESTS / file).read_text()
