"""Masks and labels that say one thing of a whole part of the tree, as prefixes do."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import serialization

import gradtx

PARAMS = {
    "body": {"w": jnp.ones((2, 3)), "b": jnp.zeros(3)},
    "head": {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)},
}
GRADS = jax.tree.map(lambda p: p + 0.5, PARAMS)
PARTS = {"body": True, "head": False}
LEAVES = {"body": {"w": True, "b": True}, "head": {"w": False, "b": False}}


def in_groups(lib, chosen):
    labels = jax.tree.map(lambda m: "a" if m else "b", chosen)
    return lib.partition({"a": lib.adam(0.1), "b": lib.sgd(0.1, momentum=0.9)}, labels)


def in_groups_by_function(lib, chosen):
    labels = jax.tree.map(lambda m: "a" if m else "b", chosen)
    return lib.partition(
        {"a": lib.adam(0.1), "b": lib.sgd(0.1, momentum=0.9)}, lambda params: labels
    )


def under_mask(lib, chosen):
    return lib.masked(lib.adam(0.1), chosen)


def under_function(lib, chosen):
    return lib.masked(lib.adam(0.1), lambda params: chosen)


MADE = pytest.mark.parametrize(
    "make", [in_groups, in_groups_by_function, under_mask, under_function]
)


@MADE
def test_the_state_has_one_none_where_optax_has_one_mark(make):
    state = make(gradtx, PARTS).init(PARAMS)
    theirs = make(optax, PARTS).init(PARAMS)
    assert gradtx.get_slot(state, "mu")["head"] is None
    without = jax.tree.map(
        lambda x: None if isinstance(x, optax.MaskedNode) else x,
        serialization.to_state_dict(theirs),
        is_leaf=lambda x: isinstance(x, optax.MaskedNode),
    )
    assert jax.tree.structure(serialization.to_state_dict(state)) == jax.tree.structure(without)


@MADE
def test_an_optax_state_goes_on(make):
    ours, theirs = make(gradtx, PARTS), make(optax, PARTS)
    _, state = theirs.update(GRADS, theirs.init(PARAMS), PARAMS)
    want, _ = theirs.update(GRADS, state, PARAMS)
    read = serialization.from_bytes(ours.init(PARAMS), serialization.to_bytes(state))
    for given in (state, read, gradtx.interop.from_optax_state(state, ours, PARAMS)):
        got, _ = ours.update(GRADS, given, PARAMS)
        # Optax's bias correction is off by 1.3e-5 (a float32 power).
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1.3e-5), got, want)


@MADE
def test_a_state_with_a_none_for_each_leaf_goes_on(make):
    tx, state = make(gradtx, PARTS), make(gradtx, LEAVES).init(PARAMS)
    assert gradtx.get_slot(state, "mu")["head"] == {"b": None, "w": None}
    got, _ = tx.update(GRADS, state, PARAMS)
    want, _ = tx.update(GRADS, tx.init(PARAMS), PARAMS)
    jax.tree.map(np.testing.assert_array_equal, got, want)
    read = serialization.from_bytes(tx.init(PARAMS), serialization.to_bytes(state))
    assert jax.tree.structure(read) == jax.tree.structure(tx.init(PARAMS))


@MADE
def test_a_compiled_step_keeps_the_state(make):
    tx = make(gradtx, PARTS)
    step = gradtx.make_step(lambda p: gradtx.tree.sum(jax.tree.map(jnp.square, p)), tx)
    state = tx.init(PARAMS)
    form = jax.tree.structure(state)
    params, state, _ = step(jax.tree.map(jnp.copy, PARAMS), state)
    assert jax.tree.structure(state) == form
    assert jax.tree.structure(params) == jax.tree.structure(PARAMS)


@pytest.mark.parametrize("wrap", ["masked", "partition"])
def test_a_foreign_update_sees_no_node_of_a_part_that_it_has_not(wrap):
    """As in Levanter, whose Muon looks at the nodes of the tree."""
    seen = []

    def update(updates, state, params=None):
        seen.append((updates["head"], params["head"]))
        return updates, state

    inner = gradtx.GradientTransformation(lambda params: (), update)
    if wrap == "masked":
        tx = gradtx.masked(inner, PARTS)
    else:
        tx = gradtx.partition({"a": inner, "b": gradtx.identity()}, {"body": "a", "head": "b"})
    updates, _ = tx.update(GRADS, tx.init(PARAMS), PARAMS)
    assert seen == [(None, None)]
    jax.tree.map(np.testing.assert_array_equal, updates, GRADS)


def test_extra_arguments_are_divided_by_parts():
    seen = []

    def update(updates, state, params=None, *, value):
        seen.append(value["head"])
        return updates, state

    inner = gradtx.GradientTransformationExtraArgs(lambda params: (), update)
    tx = gradtx.masked(inner, PARTS, mask_compatible_extra_args=True)
    tx.update(GRADS, tx.init(PARAMS), PARAMS, value=GRADS)
    groups = {"a": inner, "b": gradtx.identity()}
    tx = gradtx.partition(groups, {"body": "a", "head": "b"}, mask_compatible_extra_args=True)
    tx.update(GRADS, tx.init(PARAMS), PARAMS, value=GRADS)
    assert seen == [None, None]


@pytest.mark.quick(1)
@MADE
@pytest.mark.filterwarnings("ignore")  # Orbax's own
def test_an_orbax_checkpoint_with_a_none_for_each_leaf_goes_on(make, tmp_path):
    """Orbax compares trees: it is read as the state of the mask for each leaf, and converted."""
    orbax = pytest.importorskip("orbax.checkpoint")
    tx, old = make(gradtx, PARTS), make(gradtx, LEAVES)
    _, saved = old.update(GRADS, old.init(PARAMS), PARAMS)
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "old", saved)
        checkpointer.wait_until_finished()
        with pytest.raises(ValueError, match=r"mu\.head"):
            checkpointer.restore(tmp_path / "old", tx.init(PARAMS))
        # The state for each leaf, as "Coming from Optax" makes it of one for parts.
        leaves = jax.tree.map(lambda m, part: jax.tree.map(lambda _: m, part), PARTS, PARAMS)
        read = checkpointer.restore(tmp_path / "old", make(gradtx, leaves).init(PARAMS))
    state = gradtx.load_state_dict(tx, PARAMS, gradtx.state_dict(read))
    assert jax.tree.structure(state) == jax.tree.structure(tx.init(PARAMS))
    want, _ = old.update(GRADS, saved, PARAMS)
    for given in (read, state):
        got, _ = tx.update(GRADS, given, PARAMS)
        jax.tree.map(np.testing.assert_array_equal, got, want)
