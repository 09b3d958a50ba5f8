"""Rules over leaves that belong together: what they see, what is kept, what is refused."""

# Sees mutants of: factors, places.

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import gradtx
from gradtx.engine.matrices import MatrixDimensions


class SharedState(NamedTuple):
    count: gradtx.Counter
    mu: gradtx.Slots
    sizes: gradtx.Slots


@gradtx.transformation
def shared(related, decay: gradtx.checks.Decay = 0.5):
    """Momentum over a size that all leaves of a tuple share; `sizes` only beside the first."""

    def slots(ps):
        empty = [None] * (len(ps) - 1)
        mus = tuple(jnp.zeros_like(p) for p in ps)
        return {"mu": mus, "sizes": (jnp.zeros([], jnp.float32), *empty)}

    def rule(g, s, t, p):
        mu = tuple(decay * m + x for m, x in zip(s.mu, g, strict=True))
        squares = [jnp.sum(x**2, axis=tuple(range(1, x.ndim))) for x in (*mu, *p)]
        size = s.sizes[0] + sum(squares)
        us = tuple(t.number * m / size.reshape(-1, *[1] * (m.ndim - 1)) for m in mu)
        return us, {"mu": mu, "sizes": (size, *s.sizes[1:])}

    return gradtx.tuplewise(SharedState, slots, rule, related)


SHAPES = {"a": (3, 2), "b": (2,), "c": (2, 2)}


def layers(seed, names="ab", count=2, dtype=np.float32):
    rng = np.random.default_rng(seed)
    tree = {
        f"l{i}": {n: rng.normal(size=SHAPES[n]).astype(dtype) for n in names} for i in range(count)
    }
    return tree | {"other": np.ones(2, dtype)}


def transcribed(tree, gradients, names, decay=0.5):
    """The updates of `shared` at each step, in float64; parameters stay where they are."""
    tree, gradients = jax.tree.map(lambda x: np.asarray(x, np.float64), (tree, gradients))
    paths, mus, sizes = [], {}, {}
    for t, g in enumerate(gradients, start=1):
        us = {"other": g["other"]}
        for layer in tree:
            if layer == "other":
                continue
            for n in names:
                mus[layer, n] = decay * mus.get((layer, n), 0) + g[layer][n]
            size = sum(np.sum(mus[layer, n] ** 2) + np.sum(tree[layer][n] ** 2) for n in names)
            sizes[layer] = sizes.get(layer, 0) + size
            us[layer] = {n: t * mus[layer, n] / sizes[layer] for n in names}
        paths.append(us)
    return paths


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_a_rule_sees_the_leaves_that_belong_together(names):
    """Two layers, which are one batch, and a leaf beside them, which is left as it is."""
    tx = shared(tuple(f"*/{n}" for n in names))
    p, gs = layers(0, names), [layers(seed, names) for seed in (1, 2, 3)]
    state, update = tx.init(p), jax.jit(tx.update)
    for g, want in zip(gs, transcribed(p, gs, names), strict=True):
        got, state = update(g, state, p)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), got, want)
    assert gradtx.slot_names(state) == ["mu", "sizes"]
    assert state.sizes["l0"]["b"] is None
    assert state.mu["other"] is None
    assert gradtx.get_slot(state, "mu")["l1"]["a"].shape == (3, 2)


def test_one_program_for_many_tuples():
    """The equations of a step are as many for twelve layers as for three, but to take apart."""
    tx = shared(("*/a", "*/b"))

    def products(count):
        p = layers(0, count=count)
        program = jax.make_jaxpr(tx.update)(p, tx.init(p), p)
        return str(program).count("reduce_sum")

    assert products(12) == products(3) > 0


@pytest.mark.slow
def test_tuples_of_other_shapes_and_types_are_batches_of_their_own():
    p = layers(0, count=3)
    p["l1"]["a"] = np.ones((4, 2), np.float32)
    p["l2"] = jax.tree.map(lambda x: x.astype(jnp.bfloat16), p["l2"])
    tx, g = shared(("*/a", "*/b")), jax.tree.map(jnp.ones_like, p)
    got, state = tx.update(g, tx.init(p), p)
    assert jax.tree.map(jnp.result_type, got) == jax.tree.map(jnp.result_type, p)
    assert state.mu["l2"]["a"].dtype == jnp.bfloat16
    want = transcribed(p, [g], "ab")[0]
    for name, tolerance in (("l0", 1e-6), ("l1", 1e-6), ("l2", 1e-2)):
        jax.tree.map(
            lambda x, y, tol=tolerance: np.testing.assert_allclose(x, y, rtol=tol),
            jax.tree.map(lambda x: np.asarray(x, np.float64), got[name]),
            want[name],
        )


@pytest.mark.parametrize(
    ("paths", "related", "want"),
    [
        (["x/a", "x/b"], ("x/a", "x/b"), [(0, 1)]),
        (["a", "b", "n/a", "n/b"], ("*a", "*b"), [(0, 1), (2, 3)]),
        (["x/a/kernel", "x/b/kernel"], ("*/a", "*/b"), [(0, 1)]),
        (["x0/a", "x0/b", "x1/a", "x1/b"], ("x?/a", "x?/b"), [(0, 1), (2, 3)]),
        (["x0/a", "x0/b", "x1/a"], ("x[!1]/a", "x[!1]/b"), [(0, 1)]),
        (["x^/a", "x^/b", "x1/a"], ("x[^]/a", "x[^]/b"), [(0, 1)]),
        (["a/w/a", "b/w/a", "b/w/b"], ("b/*/a", "b/*/b"), [(1, 2)]),
        (["q/u", "q/v", "k/u", "k/v"], [("q/u", "q/v"), ("k/u", "k/v")], [(0, 1), (2, 3)]),
        (["a.w", "b.w"], lambda tree: [("b.w", "a.w")], [(1, 0)]),
        ([], ("*/a", "*/b"), []),
    ],
)
def test_wildcards_stand_for_the_same(paths, related, want):
    from gradtx.engine.tuples import tuples_of

    tree: dict = {}
    for i, path in enumerate(paths):
        *above, last = path.split("/")
        at = tree
        for name in above:
            at = at.setdefault(name, {})
        at[last] = i
    order = jax.tree.leaves(tree)
    found = [tuple(order[i] for i in one) for one in tuples_of("", tree, related)]
    assert sorted(found) == sorted(want)


@pytest.mark.parametrize(
    ("related", "tree", "match"),
    [
        (("*/a", "*/z"), {"l": {"a": 1.0}}, r"'\*/z' matches no leaf; the leaves are l/a"),
        (("*/a", "*/b"), {"l": {"a": 1.0}, "m": {"a": 1.0, "b": 1.0}}, "'l/a' belongs to 'l/b'"),
        (("*/a", "*/b"), {"l": {"b": 1.0}, "m": {"a": 1.0, "b": 1.0}}, "'l/b' belongs to 'l/a'"),
        (
            ("*l?/a", "*l?/b"),
            {"n": {"l0": {"a": {"w": 1.0}, "b": {"w": 1.0}}, "l1": {"a": {"w": 1.0}}}},
            "'n/l1/a/w' belongs to 'n/l1/b/w'",
        ),
        (("*/a", "*/b"), {"l": {"a": 1.0, "b": None}}, "'l/b' is left out, and belongs to 'l/a'"),
        (("l/a", "l/a"), {"l": {"a": 1.0}}, "'l/a' belongs to two tuples, or twice to one"),
        (lambda tree: [("l/a", "l/x")], {"l": {"a": 1.0}}, "there is no leaf 'l/x'"),
    ],
)
def test_halves_are_refused_by_their_paths(related, tree, match):
    with pytest.raises(ValueError, match=match):
        shared(related).init(jax.tree.map(jnp.asarray, tree))


@pytest.mark.parametrize(
    ("related", "error", "match"),
    [
        (("*/a",), ValueError, "at least two leaves"),
        (("*/a", "b"), ValueError, r"the wildcards of '\*/a', 'b'"),
        ("*/a", TypeError, "what belongs together"),
        ((), TypeError, "what belongs together"),
        (("*/a", 3), TypeError, "a path pattern is a string"),
    ],
)
def test_what_are_no_patterns_is_refused_when_it_is_built(related, error, match):
    with pytest.raises(error, match=match):
        shared(related)


def test_a_step_that_lacks_a_part_is_refused():
    tx, p = shared(("*/a", "*/b")), layers(0)
    state = tx.init(p)
    half = gradtx.select(p, ["*/a", "other"])
    with pytest.raises(ValueError, match="'l0/b' is left out, and belongs to 'l0/a'"):
        tx.update(half, state, half)
    with pytest.raises(ValueError, match="needs the parameters"):
        tx.update(p, state)
    wrong = {**p, "l1": {**p["l1"], "b": np.ones(3, np.float32)}}
    with pytest.raises(ValueError, match="'l1/b'"):
        tx.update(wrong, state, p)
    rows = gradtx.Rows(jnp.array([0]), jnp.ones((1, 2)), (3, 2))
    with pytest.raises(TypeError, match="'l1/a'"):
        tx.update({**p, "l1": {**p["l1"], "a": rows}}, state, p)


@gradtx.transformation
def from_others():
    """Each leaf's direction is the sum of the other's parameter; those beside are negated."""

    def rule(g, s, t, p):
        total = [jnp.sum(x, axis=(1, 2), keepdims=True) for x in p]
        return tuple(
            None if x is None else x * 0 + y for x, y in zip(g, total[::-1], strict=True)
        ), {}

    def others(g, s, t):
        return -g, {}

    numbers = MatrixDimensions(None, gradtx.MuonDimensionNumbers)
    return gradtx.tuplewise(
        gradtx.EmptyState, None, rule, ("*/a", "*/c"), dimensions=numbers, on_others=others
    )


def test_a_leaf_without_a_gradient_is_seen_as_a_parameter():
    p = {"l": {"a": jnp.ones((3, 2)), "c": 2 * jnp.ones((2, 2))}, "none": None}
    tx, g = from_others(), {"l": {"a": None, "c": jnp.ones((2, 2))}, "none": None}
    updates, _ = tx.update(g, tx.init(p), p)
    assert updates["l"]["a"] is None
    np.testing.assert_array_equal(updates["l"]["c"], np.full((2, 2), 6.0))
    still = {"l": {"a": None, "c": None}, "none": None}
    assert tx.update(still, tx.init(p), p)[0] == still


@pytest.mark.slow
def test_leaves_beside_the_tuples_go_through_a_rule_of_their_own():
    rows = gradtx.Rows(jnp.array([1, 1]), jnp.ones((2, 2)), (3, 2))
    p = {
        "l": {"a": jnp.ones((3, 2)), "c": jnp.ones((2, 2))},
        "t": jnp.ones((3, 2)),
        "z": jnp.ones(0),
    }
    tx, g = from_others(), {**p, "t": rows}
    updates, _ = tx.update(g, tx.init(p), p)
    np.testing.assert_array_equal(updates["t"].to_dense(), [[0, 0], [-2, -2], [0, 0]])
    assert updates["z"].shape == (0,)


@pytest.mark.slow
def test_slots_may_be_stored_in_another_form():
    tx, p = shared(("*/a", "*/b")), layers(0)
    plain, stored = tx, gradtx.store(tx, {"mu": "bf16"}, min_size=1)
    want, _ = plain.update(p, plain.init(p), p)
    state = stored.init(p)
    for _ in range(2):
        got, state = stored.update(p, state, p)
    assert gradtx.describe(stored, p).slot_bytes < gradtx.describe(plain, p).slot_bytes
    assert jax.tree.structure(got) == jax.tree.structure(want)


@pytest.mark.slow
def test_leaves_of_one_batch_may_be_divided_in_different_ways():
    """Also where types say how, on Explicit axes: each stays where it lies."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Explicit,))
    p = layers(0)
    del p["other"]
    p["l0"]["a"], p["l1"]["a"] = (np.ones((4, 2), np.float32) for _ in range(2))
    places = {"l0": P("x", None), "l1": P(None, "x")}
    tx = shared(("*/a", "*/b"))
    want, _ = tx.update(p, tx.init(p), p)
    with jax.set_mesh(mesh):
        divided = {
            n: {
                "a": jax.device_put(layer["a"], NamedSharding(mesh, places[n])),
                "b": jax.device_put(layer["b"], NamedSharding(mesh, P())),
            }
            for n, layer in p.items()
        }
        got, _ = jax.jit(tx.update)(divided, tx.init(divided), divided)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), got, want)
    assert {n: got[n]["a"].sharding.spec for n in places} == places


def test_gradients_of_a_tuple_may_be_python_numbers():
    @gradtx.transformation
    def exchanged():
        return gradtx.tuplewise(gradtx.EmptyState, None, lambda g, s, t: (g[::-1], {}), ("a", "b"))

    updates, _ = exchanged().update({"a": 1.0, "b": 2.0}, exchanged().init({"a": 0.0, "b": 0.0}))
    assert jax.tree.map(float, updates) == {"a": 2.0, "b": 1.0}


def test_a_rule_of_another_shape_is_refused_by_the_path():
    @gradtx.transformation
    def first_rows():
        rule = lambda g, s, t: (tuple(x[:, :1] for x in g), {})  # noqa: E731
        return gradtx.tuplewise(gradtx.EmptyState, None, rule, ("*/a", "*/c"))

    tx, p = first_rows(), {"l": {"a": jnp.ones((3, 2)), "c": jnp.ones((2, 2))}}
    with pytest.raises(ValueError, match="'l/a' a gradient of shape"):
        tx.update(p, tx.init(p))


def test_a_layer_may_come_without_the_other_leaves_of_a_tuple():
    tx, p = shared(("*/a", "*/b")), {"l": {"a": jnp.ones((3, 2)), "b": jnp.ones((3, 2))}}

    def loss(p):
        layer = lambda x, l: (x * l["a"] + l["b"], None)  # noqa: E731, E741
        return jnp.sum(jax.lax.scan(layer, jnp.ones(2), p["l"])[0])

    step = gradtx.make_step(loss, tx, inside=True)
    with pytest.raises(ValueError, match="inside: shared cannot run on one layer at a time"):
        step(p, step.init(p))
