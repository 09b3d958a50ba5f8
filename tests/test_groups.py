"""Groups of leaves."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx

PARAMS = {"a": jnp.ones(3), "b": {"c": jnp.ones((2, 2)), "d": jnp.ones(1)}}
GRADS = jax.tree.map(lambda p: 0.5 * p, PARAMS)
LABELS = {"a": "x", "b": {"c": "x", "d": "y"}}
GROUPS = {"x": gradtx.adam(0.1), "y": gradtx.sgd(0.1, momentum=0.9)}


def by_size(path, leaf):
    return "y" if path.endswith("d") else "x"


def tree_of_labels(params):
    return jax.tree_util.tree_map_with_path(
        lambda path, _: "y" if path[-1].key == "d" else "x", params
    )


@jax.tree_util.register_pytree_with_keys_class
class Module:
    """A callable pytree, as an Equinox module is."""

    def __init__(self, kernel, bias):
        self.kernel, self.bias = kernel, bias

    def __call__(self, x):
        return x @ self.kernel + self.bias

    def tree_flatten_with_keys(self):
        key = jax.tree_util.GetAttrKey
        return ((key("kernel"), self.kernel), (key("bias"), self.bias)), None

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)


@pytest.mark.parametrize(
    "labels",
    [
        LABELS,
        by_size,
        tree_of_labels,
        [("b/d", "y"), ("*", "x")],
        (("a", "x"), ("b/c", "x"), ("b/d", "y")),
    ],
)
def test_like_optax(labels):
    tx, theirs = (
        gradtx.partition(GROUPS, labels),
        optax.partition({"x": optax.adam(0.1), "y": optax.sgd(0.1, momentum=0.9)}, LABELS),
    )
    state, state_optax = tx.init(PARAMS), theirs.init(PARAMS)
    for _ in range(3):
        updates, state = tx.update(GRADS, state, PARAMS)
        updates_optax, state_optax = theirs.update(GRADS, state_optax, PARAMS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), updates, updates_optax)
    assert state.inner_states["x"].inner_state[0].mu["b"]["d"] is None


def test_prefix_tree_and_unused_group():
    tx = gradtx.partition({**GROUPS, "unused": gradtx.sgd(1.0)}, {"a": "x", "b": "y"})
    updates, _ = tx.update(GRADS, tx.init(PARAMS))
    np.testing.assert_allclose(updates["b"]["c"], -0.05, rtol=1e-6)


def test_labels_that_look_like_patterns():
    params = [(jnp.ones(1), jnp.ones(1)), (jnp.ones(1), jnp.ones(1))]
    tx = gradtx.partition(
        {"x": gradtx.scale(2.0), "y": gradtx.scale(3.0)}, [("x", "y"), ("y", "x")]
    )
    updates, _ = tx.update(params, tx.init(params))
    assert [float(u[0]) for pair in updates for u in pair] == [2.0, 3.0, 3.0, 2.0]


def test_callable_module_as_parameters_and_labels():
    params = Module(jnp.ones((2, 2)), jnp.ones(2))
    tx = gradtx.partition({"x": gradtx.scale(2.0), "y": gradtx.scale(3.0)}, Module("x", "y"))
    updates, _ = tx.update(params, tx.init(params), params)
    assert float(updates.kernel[0, 0]) == 2.0
    assert float(updates.bias[0]) == 3.0


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([("z", "x"), ("*", "y")], "'z' matches no leaf"),
        ([("a", "x")], "'b/c' matches no pattern"),
        ([("a", "x"), ("b", "x"), ("b/d", "y")], "'b/d' matches several patterns"),
        ({"a": "q", "b": "x"}, "'a' has the label 'q'"),
        ({"a": "x"}, "not a tree like the parameters"),
    ],
)
def test_bad_labels(labels, message):
    with pytest.raises(ValueError, match=message):
        gradtx.partition(GROUPS, labels).init(PARAMS)


def test_nested_groups_and_leaf_without_gradient():
    inner = gradtx.partition(GROUPS, [("b/c", "x"), ("*", "y")])
    tx = gradtx.partition({"in": inner, "out": gradtx.set_to_zero()}, {"a": "out", "b": "in"})
    state = tx.init(PARAMS)
    grads = {"a": GRADS["a"], "b": {"c": GRADS["b"]["c"], "d": None}}
    with pytest.raises(ValueError, match="'a' matches|no leaf|several"):
        gradtx.partition({"x": gradtx.scale(1.0)}, [("a", "x"), ("a", "x")]).init(PARAMS)
    updates, _ = tx.update(grads, state, PARAMS)
    assert updates["b"]["d"] is None
    assert float(updates["a"][0]) == 0.0


def test_frozen_leaves_have_no_slots():
    tx = gradtx.selective_transform(gradtx.adam(0.1), freeze_mask="b")
    state = tx.init(PARAMS)
    assert gradtx.get_slot(state, "mu")["b"] == {"c": None, "d": None}
    updates, _ = tx.update(GRADS, state, PARAMS)
    assert float(updates["b"]["c"][0, 0]) == 0.0
    theirs = optax.selective_transform(optax.adam(0.1), freeze_mask={"a": False, "b": True})
    want, _ = theirs.update(GRADS, theirs.init(PARAMS), PARAMS)
    np.testing.assert_allclose(updates["a"], want["a"], rtol=1e-5)


def test_reset_and_regroup():
    tx = gradtx.chain(gradtx.clip(1.0), gradtx.partition(GROUPS, LABELS))
    _, state = tx.update(GRADS, tx.init(PARAMS), PARAMS)
    fresh = gradtx.reset_group(tx, PARAMS, state, "x")
    assert float(gradtx.get_slot(fresh, "mu", "a")[0]) == 0.0
    assert float(gradtx.get_slot(fresh, "trace", "b/d")[0]) == 0.5
    with pytest.raises(ValueError, match="no group 'z'"):
        gradtx.reset_group(tx, PARAMS, state, "z")
    grown = gradtx.chain(
        gradtx.clip(1.0),
        gradtx.partition({**GROUPS, "z": gradtx.sgd(1.0, momentum=0.5)}, {"a": "x", "b": "z"}),
    )
    moved = gradtx.regroup(grown, PARAMS, state)
    assert jax.tree.structure(moved) == jax.tree.structure(grown.init(PARAMS))
    np.testing.assert_allclose(gradtx.get_slot(moved, "mu", "a"), 0.05, rtol=1e-6)
    with pytest.raises(ValueError, match="regroup"):
        grown.update(GRADS, state, PARAMS)


def test_hyperparameters_of_a_group_change_without_compiling():
    traces = []

    @jax.jit
    def step(tx, state):
        traces.append(None)
        return tx.update(GRADS, state, PARAMS)

    tx = gradtx.partition({"x": gradtx.sgd(jnp.float32(0.1)), "y": gradtx.sgd(0.1)}, LABELS)
    state = tx.init(PARAMS)
    step(tx, state)
    path = "transforms.x.learning_rate"
    updates, _ = step(gradtx.replace(tx, {path: jnp.float32(1.0)}), state)
    assert float(updates["a"][0]) == -0.5
    assert len(traces) == 1
