"""Parts of a tree, against Optax."""

# Sees mutants of: checks.

import inspect
from typing import get_args

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx.leaves.paths import Where
from tests.catalogue import CATALOGUE
from tests.quick import quick


def test_masks_like_optax():
    p = {"a": jnp.arange(3.0), "b": {"c": jnp.ones((2, 2)), "d": -jnp.ones(1)}}
    mask = {"a": True, "b": {"c": False, "d": True}}
    # With a b2 of 0.999 Optax's 1 - b2**t, taken in float32, moves its steps by up to 1e-5.
    ours = gradtx.masked(gradtx.adam(0.1, b2=0.9), mask)
    theirs = optax.masked(optax.adam(0.1, b2=0.9), mask)
    state, state_optax = ours.init(p), theirs.init(p)
    for _ in range(3):
        updates, state = ours.update(p, state, p)
        want, state_optax = theirs.update(p, state_optax, p)
        chex.assert_trees_all_close(updates, want, rtol=1e-5)
    assert state._fields == state_optax._fields


PARAMS = {"a": jnp.ones(3), "b": {"c": jnp.ones((2, 2)), "d": jnp.ones(1)}}


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ("z", "'z' matches no leaf; the leaves are a, b/c, b/d"),
        (["a", "b/z"], "'b/z' matches no leaf"),
        ({"a": True}, "not a tree like the parameters"),
        ({"a": True, "b": {"c": True}}, "not a tree like the parameters"),
        (lambda params: {"a": True}, "not a tree like the parameters"),
    ],
)
@pytest.mark.parametrize("build", [lambda m: gradtx.masked(gradtx.adam(0.1), m), gradtx.freeze])
def test_bad_masks(build, mask, message):
    with pytest.raises(ValueError, match=message):
        build(mask).init(PARAMS)


@pytest.mark.slow
def test_every_mask_that_chooses_nothing_is_refused_by_init():
    """Before a step is compiled, whatever the argument is called."""
    tried = []
    for name in CATALOGUE:
        build = getattr(gradtx, name)
        takes = inspect.signature(build.builder.function).parameters
        masks = [n for n, p in takes.items() if Where in (p.annotation, *get_args(p.annotation))]
        for argument in masks:
            given = CATALOGUE[name].make().declaration.arguments | {argument: "z"}
            if not given.get("weight_decay", 1):  # then nothing decays, and no mask is asked
                given["weight_decay"] = 0.1
            with pytest.raises(ValueError, match="'z' matches no leaf"):
                build(**given).init(PARAMS)
            tried.append(argument)
    assert len(tried) > 70
    assert {"mask", "weight_decay_mask", "trust_ratio_mask", "where", "tables"} <= set(tried)


@pytest.mark.parametrize("build", [lambda m: gradtx.masked(gradtx.adam(0.1), m), gradtx.freeze])
def test_a_function_is_called_once_a_step(build):
    """It may take longer than all the rest, as one that looks at paths does."""
    seen = []

    def mask(params):
        seen.append(params)
        return jax.tree.map(lambda p: p.ndim > 1, params)

    tx = build(mask)
    state = tx.init(PARAMS)
    seen.clear()
    jax.jit(tx.update)(PARAMS, state, PARAMS)
    assert len(seen) == 1


def test_a_function_sees_parameters_of_which_some_have_no_gradient():
    tx = gradtx.masked(gradtx.adamw(0.1), lambda tree: jax.tree.map(lambda x: x.ndim == 1, tree))
    state = tx.init(PARAMS)
    updates, _ = tx.update({"a": None, "b": PARAMS["b"]}, state, PARAMS)
    assert updates["a"] is None
    np.testing.assert_array_equal(updates["b"]["c"], PARAMS["b"]["c"])
    assert float(updates["b"]["d"][0]) < 0


def seeing():
    """A transformation that notes its further arguments, and the list of what it saw."""
    seen = []

    def update(updates, state, params=None, **extra_args):
        seen.append(extra_args)
        return updates, state

    return gradtx.GradientTransformationExtraArgs(lambda params: (), update), seen


def test_arguments_that_are_trees_like_the_updates_may_be_masked_too():
    tx, seen = seeing()
    mask = {"a": True, "b": {"c": False, "d": True}}
    for too in (False, True):
        masked = gradtx.masked(tx, mask, mask_compatible_extra_args=too)
        masked.update(PARAMS, masked.init(PARAMS), noise=PARAMS, rates=[1.0, 2.0])
    assert [given["rates"] for given in seen] == [[1.0, 2.0]] * 2
    assert seen[0]["noise"] is PARAMS
    chex.assert_trees_all_equal(seen[1]["noise"], gradtx.select(PARAMS, mask))


def test_a_mask_made_by_tree_map_says_nothing_of_leaves_that_are_not_trained():
    tx = gradtx.masked(gradtx.scale(2.0), lambda p: jax.tree.map(lambda x: x.ndim == 1, p))
    params = {"frozen": None, "a": jnp.ones(2), "b": {"c": jnp.ones([2, 2])}}
    updates, _ = tx.update(params, tx.init(params), params)
    assert updates["frozen"] is None
    assert float(updates["a"][0]) == 2
    assert float(updates["b"]["c"][0, 0]) == 1


NEED_PARAMETERS = (
    *("compensated", "decay_first", "diloco", "extragradient", "hyperball", "local_sgd"),
    *("lookahead", "master_weights", "mechanize", "project", "qk_clip", "radial_brake", "sam"),
    *("schedule_free", "sophia", "stochastic_rounding", "streaming_diloco"),
)


@pytest.mark.parametrize(
    "name", quick([n for n in CATALOGUE if n != "exact_rows"], *NEED_PARAMETERS)
)
def test_a_mask_that_does_not_choose_the_only_array(name):
    """To what is within, updates and parameters are both None: a tree with nothing in it."""
    tx, p = gradtx.masked(CATALOGUE[name].make(), False), jnp.ones(3)
    state = tx.init(p)
    updates, new = tx.update(p, state, p, value=1.0)
    np.testing.assert_array_equal(updates, p)
    chex.assert_trees_all_equal_shapes_and_dtypes(new, state)
    np.testing.assert_array_equal(gradtx.apply_gradients(tx, p, p, state, value=1.0)[0], 2 * p)


def test_parameters_are_needed_beside_updates():
    for name in NEED_PARAMETERS:
        tx = CATALOGUE[name].make()
        with pytest.raises(ValueError, match="needs the parameters"):
            tx.update(jnp.ones(3), tx.init(jnp.ones(3)))


@pytest.mark.parametrize("wrapper", ["masked", "partition"])
@pytest.mark.parametrize("gradient", ["rows", "none"])
def test_extra_arguments_are_masked_beside_rows_and_missing_gradients(gradient, wrapper):
    seen = []

    def update(updates, state, params=None, **extra_args):
        seen.append(extra_args["x"])
        return updates, state

    inner = gradtx.GradientTransformationExtraArgs(lambda params: (), update)
    if wrapper == "masked":
        tx = gradtx.masked(inner, ["t"], mask_compatible_extra_args=True)
    else:
        groups = {"t": "a", "b": "b"}
        rules = {"a": inner, "b": gradtx.identity()}
        tx = gradtx.partition(rules, groups, mask_compatible_extra_args=True)
    params = {"t": jnp.ones((2, 1)), "b": jnp.ones(1)}
    rows = gradtx.Rows(jnp.array([0]), jnp.ones((1, 1)), (2, 1))
    gradients = {**params, "t": rows if gradient == "rows" else None}
    tx.update(gradients, tx.init(params), params, x=dict(params))
    assert [x["b"] for x in seen] == [None]
