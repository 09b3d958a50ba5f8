"""Groups of leaves."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests.programs import equations

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


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "labels",
    [
        LABELS,
        by_size,
        tree_of_labels,
        [("b/d", "y"), ("*", "x")],
        [("a", "x"), ("b/c", "x"), ("*", "y")],
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


def test_labels_without_an_order_are_refused():
    """JAX cannot sort them, and to paths of a state 0 and "0" are the same."""
    for labels in ((0, "0"), (None, "rest"), (object(), object())):
        with pytest.raises(TypeError, match="partition: labels must have an order"):
            gradtx.partition(dict.fromkeys(labels, gradtx.sgd(0.1)), [("*", labels[0])])
    tx = gradtx.partition({1: gradtx.sgd(1.0), 0: gradtx.sgd(2.0)}, {"a": 0, "b": 1})
    grads = {"a": jnp.ones([]), "b": jnp.ones([])}
    assert tx.update(grads, tx.init(grads))[0] == {"a": -2, "b": -1}


def test_labels_that_look_like_patterns():
    params = [(jnp.ones(1), jnp.ones(1)), (jnp.ones(1), jnp.ones(1))]
    groups = {"x": gradtx.scale(2.0), "y": gradtx.scale(3.0), "unused": gradtx.scale(4.0)}
    tx = gradtx.partition(groups, [("x", "y"), ("y", "x")])
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
        (
            {"z": "x", "*": "y"},
            r"patterns and their labels are pairs: \[\('z', 'x'\), \('\*', 'y'\)\]",
        ),
        ([("a", "x")], "'b/c' matches no pattern"),
        ([("a", "x"), ("b", "x"), ("b/d", "y")], "'b/d' matches several patterns"),
        ({"a": "q", "b": "x"}, "'a' has the label 'q'"),
        ({"a": "x"}, "not a tree like the parameters"),
    ],
)
def test_bad_labels(labels, message):
    with pytest.raises(ValueError, match=message):
        gradtx.partition(GROUPS, labels).init(PARAMS)


@pytest.mark.parametrize("labels", [[(re.compile("a"), "x"), ("*", "y")], {re.compile("a"): "x"}])
def test_patterns_are_no_regular_expressions(labels):
    with pytest.raises(TypeError, match=r"param_labels.*re.compile\('a'\)"):
        gradtx.partition(GROUPS, labels)


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
    renamed = gradtx.chain(
        gradtx.clip(1.0),
        gradtx.partition({"x": GROUPS["x"], "z": GROUPS["y"]}, {"a": "x", "b": "z"}),
    )
    with pytest.raises(ValueError, match="'x', 'y', and `tx` has 'x', 'z'; see regroup"):
        gradtx.reset_group(renamed, PARAMS, state, "x")
    grown = gradtx.chain(
        gradtx.clip(1.0),
        gradtx.partition({**GROUPS, "z": gradtx.sgd(1.0, momentum=0.5)}, {"a": "x", "b": "z"}),
    )
    with pytest.warns(
        UserWarning, match=r"regroup: slots start anew.* 1 in all: '1/.*/y/.*trace/b/d'"
    ):
        moved = gradtx.regroup(grown, PARAMS, state)
    assert jax.tree.structure(moved) == jax.tree.structure(grown.init(PARAMS))
    np.testing.assert_allclose(gradtx.get_slot(moved, "mu", "a"), 0.05, rtol=1e-6)
    with pytest.raises(ValueError, match="regroup"):
        grown.update(GRADS, state, PARAMS)


def test_regroup_refuses_a_state_that_had_no_groups():
    adam = gradtx.adamw(gradtx.linear_schedule(0.1, 0.0, 10))
    tx = gradtx.chain(gradtx.clip(1.0), adam)
    _, state = tx.update(GRADS, tx.init(PARAMS), PARAMS)
    groups = {"frozen": gradtx.set_to_zero(), "rest": adam}
    grouped = gradtx.chain(gradtx.clip(1.0), gradtx.partition(groups, {"a": "rest", "b": "frozen"}))
    with pytest.raises(ValueError, match=r"regroup: no array.*'1/0/mu/a'.*match_state_dict\(tx, "):
        gradtx.regroup(grouped, PARAMS, state)
    match = gradtx.match_state_dict(grouped, PARAMS, gradtx.state_dict(state))
    rest = match.state[1].inner_states["rest"].inner_state
    assert [int(part.count) for part in (rest[0], rest[2])] == [1, 1]
    np.testing.assert_array_equal(rest[0].mu["a"], gradtx.get_slot(state, "mu", "a"))
    # Without an array there is nothing to carry over.
    plain = gradtx.partition({"x": gradtx.sgd(0.1), "y": gradtx.adam(0.1)}, LABELS)
    assert int(gradtx.regroup(plain, PARAMS, ()).inner_states["y"].inner_state[0].count) == 0


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


@pytest.mark.slow
def test_what_is_traced_does_not_multiply_with_the_groups():
    params = {f"layer{i:03d}": jnp.ones(3) for i in range(60)}

    def traced(groups):
        txs = {k: gradtx.adam(0.1 * (k + 1)) for k in range(groups)}
        tx = gradtx.partition(txs, {name: i % groups for i, name in enumerate(params)})
        return len(equations(jax.make_jaxpr(tx.update)(params, tx.init(params), params).jaxpr))

    one, thirty = traced(1), traced(30)
    # A group adds the scalars of its step (bias corrections) and, if it has many leaves, a function
    # that they share, but nothing for other groups' leaves.
    more = traced(2) - one
    assert 0 < more < 20
    assert thirty <= one + 29 * more


def dots(hlo):
    return sum(" dot(" in line for line in hlo.splitlines())


@pytest.mark.slow
def test_frozen_leaves_have_no_gradient_in_the_compiled_step():
    params = {name: jnp.ones((4, 4)) for name in ("first", "second", "head")}
    x = jnp.ones((2, 4))

    def loss(p, x):
        return jnp.sum(jnp.tanh(jnp.tanh(x @ p["first"]) @ p["second"]) @ p["head"])

    def compiled(trainable):
        tx = gradtx.adam(0.1)
        state = tx.init(gradtx.select(params, trainable))
        run = jax.jit(lambda p, s, x: gradtx.minimize(loss, tx, p, s, x, trainable=trainable))
        return run.lower(params, state, x).compile().as_text()

    # Three products forward; backward one for each trained leaf and one to reach the leaf below.
    assert dots(compiled(None)) == 3 + 5
    assert dots(compiled(["second", "head"])) == 3 + 3
    assert dots(compiled("head")) == 3 + 1


@pytest.mark.slow
def test_a_group_is_added_to_a_run_in_progress():
    tx = gradtx.partition(GROUPS, LABELS)
    state, params = tx.init(PARAMS), PARAMS
    for _ in range(3):
        params, state = gradtx.apply_gradients(tx, GRADS, params, state)
    # A new layer comes with a group of its own; the old groups go on where they were.
    larger = {**params, "new": jnp.ones(2)}
    grown = gradtx.partition({**GROUPS, "z": gradtx.adam(0.01)}, {**LABELS, "new": "z"})
    moved = gradtx.regroup(grown, larger, state)
    old, new = moved.inner_states["x"].inner_state[0], moved.inner_states["z"].inner_state[0]
    assert (int(old.count), int(new.count)) == (3, 0)
    grads = {**GRADS, "new": jnp.ones(2)}
    after, _ = gradtx.apply_gradients(grown, grads, larger, moved)
    want, _ = gradtx.apply_gradients(tx, GRADS, params, state)
    for name in ("a", "b"):
        jax.tree.map(np.testing.assert_array_equal, after[name], want[name])
    np.testing.assert_allclose(after["new"], 1 - 0.01, rtol=1e-6)


def by_dimension(tree):
    return jax.tree.map(lambda p: "x" if p.ndim == 2 else "y", tree)


def check_module(params, patterns):
    """Patterns and a module of labels make the same groups, in which the module is trained."""
    labels = by_dimension(params)
    grads = jax.tree.map(jnp.ones_like, params)
    found = []
    for each in (patterns, labels, by_dimension):
        tx = gradtx.partition(GROUPS, each)
        with gradtx.eager_programs(False):  # as they do for labels that a function makes
            updates, state = tx.update(grads, tx.init(params), params)
        assert jax.tree.structure(updates) == jax.tree.structure(params)
        found.append((gradtx.apply_updates(params, updates), state))
    for other in found[1:]:
        jax.tree.map(np.testing.assert_array_equal, found[0], other)
    flat = gradtx.state_dict(found[0][1])
    loaded = gradtx.load_state_dict(tx, params, flat)
    jax.tree.map(np.testing.assert_array_equal, loaded, found[0][1])
    # A module of booleans is a mask, not a predicate, though it can be called.
    masked = gradtx.masked(gradtx.adam(0.1), jax.tree.map(lambda p: p.ndim == 2, params))
    updates, _ = masked.update(grads, masked.init(params), params)
    wanted = [-0.1 if p.ndim == 2 else 1.0 for p in jax.tree.leaves(params)]
    for u, want in zip(jax.tree.leaves(updates), wanted, strict=True):
        np.testing.assert_allclose(u, want, rtol=1e-5)


@pytest.mark.slow
def test_equinox_modules_are_parameters_and_labels():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)
    check_module(params, [("layers/*/weight", "x"), ("layers/*/bias", "y")])

    def loss(p, x):
        return jnp.mean(jax.vmap(eqx.combine(p, static))(x) ** 2)

    tx, x = gradtx.adam(0.1), jnp.ones((3, 2))
    step = gradtx.make_step(loss, tx)
    state, first = tx.init(params), loss(params, x)
    for _ in range(5):
        params, state, value = step(params, state, x)
    assert float(value) < float(first)


@pytest.mark.slow
def test_states_of_flax_are_parameters_and_labels():
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    params = nnx.state(model, nnx.Param)
    check_module(params, [("kernel", "x"), ("bias", "y")])
    updates, _ = gradtx.sgd(0.5).update(params, gradtx.sgd(0.5).init(params))
    before = np.array(model.kernel[...])
    nnx.update(model, gradtx.apply_updates(params, updates))
    np.testing.assert_allclose(model.kernel[...], 0.5 * before, rtol=1e-6)


def test_after_an_error_the_old_state_goes_on():
    tx = gradtx.partition(GROUPS, LABELS)
    _, state = tx.update(GRADS, tx.init(PARAMS), PARAMS)
    want = tx.update(GRADS, state, PARAMS)
    with pytest.raises(ValueError, match="different trees"):
        tx.update({"a": GRADS["a"]}, state, PARAMS)
    with pytest.raises(ValueError, match="state of the groups 'x', 'y'"):
        tx.update(GRADS, gradtx.adam(0.1).init(PARAMS), PARAMS)
    jax.tree.map(np.testing.assert_array_equal, tx.update(GRADS, state, PARAMS), want)


def test_arguments_that_are_trees_like_the_updates_may_be_divided_too():
    seen = {}

    def noting(label):
        def update(updates, state, params=None, **extra_args):
            seen[label] = extra_args
            return updates, state

        return gradtx.GradientTransformationExtraArgs(lambda params: (), update)

    for too in (False, True):
        groups = {label: noting(label) for label in "xy"}
        tx = gradtx.partition(groups, LABELS, mask_compatible_extra_args=too)
        tx.update(GRADS, tx.init(PARAMS), PARAMS, noise=PARAMS, rates=[1.0, 2.0])
        assert [given["rates"] for given in seen.values()] == [[1.0, 2.0]] * 2
        if not too:
            assert all(given["noise"] is PARAMS for given in seen.values())
    assert seen["x"]["noise"] == {"a": PARAMS["a"], "b": {"c": PARAMS["b"]["c"], "d": None}}
    assert seen["y"]["noise"] == {"a": None, "b": {"c": None, "d": PARAMS["b"]["d"]}}
