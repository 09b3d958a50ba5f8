"""Leaves that hold several parameters beside each other."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx import SplitLeaf
from tests.distributed.meshes import counted, mesh, on

WIDTH = 16
SIZES = {"q": 16, "k": 4, "v": 4}
SPLITS = {"*/qkv": SplitLeaf(1, SIZES), "up": SplitLeaf(-1, (1, 1), repeated=True)}


def apart(seed, dtype=jnp.float32):
    """A model with a leaf for each parameter."""
    rng = np.random.default_rng(seed)

    def drawn(*shape):
        return jnp.asarray(rng.normal(size=shape), dtype)

    return {
        "att": {"qkv": {name: drawn(WIDTH, n) for name, n in SIZES.items()}},
        "up": (drawn(WIDTH, 24), drawn(WIDTH, 24)),
        "b": drawn(5),
    }


def joined(tree):
    """The same numbers with grouped heads beside each other, and gate and up column by column."""
    qkv = tree["att"]["qkv"]
    up = np.empty((WIDTH, 48), tree["up"][0].dtype)
    up[:, 0::2], up[:, 1::2] = tree["up"]
    return {
        "att": {"qkv": jnp.asarray(np.concatenate([qkv[name] for name in SIZES], 1))},
        "up": jnp.asarray(up),
        "b": tree["b"],
    }


def stepped(tx, start, gradients):
    """The parameters and the state after some compiled steps."""
    update = jax.jit(tx.update)
    params, state = start, tx.init(start)
    for g in gradients:
        updates, state = update(g, state, params)
        params = gradtx.apply_updates(params, updates)
    return params, state


def compare(tx, dtype=jnp.float32, steps=3):
    """Both models after some steps, the joined one as if it were the other, and their states."""
    gradients = [apart(i, dtype) for i in range(1, steps + 1)]
    wrapped = gradtx.split_leaves(tx, SPLITS)
    got, state = stepped(wrapped, joined(apart(0, dtype)), list(map(joined, gradients)))
    want, other = stepped(tx, apart(0, dtype), gradients)
    return (got, state.inner_state), (joined(want), other)


def same_bits(found, wanted):
    plain = gradtx.tree.unwrap_random_key_data
    jax.tree.map(np.testing.assert_array_equal, plain(found), plain(wanted))


MATRIX_RULES = (
    *("muon", "adamuon", "normuon", "muown", "polargrad", "scion", "dion", "dion2", "dion3"),
    *("soap", "kl_soap", "soap_muon", "shampoo", "kl_shampoo", "kron", "galore", "fira", "apollo"),
    *("conda", "adafactor", "adam_mini", "adamw", "lamb", "muon2"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MATRIX_RULES))
def test_parts_are_separate_leaves_bit_for_bit(name):
    ours, theirs = compare(getattr(gradtx, name)(0.1))
    same_bits(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spectral_sphere", "splus"])
def test_sums_that_the_compiler_takes_with_the_slices_differ_in_last_places(name):
    ours, theirs = compare(getattr(gradtx, name)(0.1))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), ours, theirs)


@pytest.mark.slow
def test_parts_in_half_precision():
    same_bits(*compare(gradtx.muon(0.1), jnp.bfloat16))


@pytest.mark.slow
def test_factors_of_the_shape_are_those_of_the_parts():
    """Moonshot's factor is 0.2 of the root of the longer side."""
    p = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(4, 20)), jnp.float32)}
    tx = gradtx.scale_by_shape(scale="moonshot")
    ones = {"w": jnp.ones((4, 20))}
    split = gradtx.split_leaves(tx, {"w": SplitLeaf(1, (16, 4))})
    updates, _ = split.update(ones, split.init(p), p)
    np.testing.assert_allclose(updates["w"][0, [0, 15, 16, 19]], [0.8, 0.8, 0.4, 0.4], rtol=1e-6)


def test_a_sequence_of_sizes_is_repeated():
    """Groups of two queries and one key, one group after another."""
    tx = gradtx.split_leaves(
        gradtx.trace(0.9), {"w": SplitLeaf(0, {"q": 2, "k": 1}, repeated=True)}
    )
    g = {"w": jnp.arange(9.0)}
    updates, state = tx.update(g, tx.init(g))
    same_bits(updates, g)
    slots = gradtx.get_slot(state, "trace", "w/q"), gradtx.get_slot(state, "trace", "w/k")
    assert [x.tolist() for x in slots] == [[0, 1, 3, 4, 6, 7], [2, 5, 8]]


@pytest.mark.quick(1)
@pytest.mark.parametrize("split", [SplitLeaf(0, (1, 2)), SplitLeaf(1, (4,)), SplitLeaf(-2, (1, 3))])
def test_any_axis_of_stacked_matrices(split):
    tx = gradtx.split_leaves(gradtx.clip_by_norm(0.5), {"w": split})
    g = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 2)), jnp.float32)}
    updates, _ = jax.jit(tx.update)(g, tx.init(g))
    cuts = np.cumsum(split.sizes)[:-1]
    parts = np.split(np.float64(g["w"]), cuts, split.axis)
    want = np.concatenate([0.5 * x / np.linalg.norm(x) for x in parts], split.axis)
    np.testing.assert_allclose(updates["w"], want, rtol=1e-5)


@pytest.mark.slow
def test_leaves_without_a_gradient():
    tx = gradtx.split_leaves(gradtx.adam(0.1), SPLITS)
    p = joined(apart(0))
    frozen = {**p, "up": None}
    updates, state = tx.update(frozen, tx.init(frozen), p)
    assert updates["up"] is None
    assert gradtx.get_slot(state, "mu")["up"] is None
    updates, _ = tx.update({**p, "up": None}, tx.init(p), p)  # frozen after the state was made
    assert updates["up"] is None


@pytest.mark.slow
def test_a_sweep_is_mapped_over():
    p = joined(apart(0))

    def step(rate):
        tx = gradtx.split_leaves(gradtx.muon(rate), SPLITS)
        return tx.update(p, tx.init(p), p)[0]["up"]

    together = jax.vmap(step)(jnp.array([0.1, 0.2]))
    np.testing.assert_allclose(together[1], step(jnp.float32(0.2)), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_patterns_inside_name_the_parts():
    choice = [("*/qkv/v", "values"), ("*", "rest")]
    tx = gradtx.partition({"values": gradtx.sgd(1.0), "rest": gradtx.set_to_zero()}, choice)
    p = joined(apart(0))
    split = gradtx.split_leaves(tx, SPLITS)
    updates, _ = split.update(p, split.init(p), p)
    moved = np.flatnonzero(np.any(np.asarray(updates["att"]["qkv"]) != 0, 0))
    assert moved.tolist() == [20, 21, 22, 23]


def test_a_description_has_the_slots_and_the_roles_of_the_parts():
    rules = (("att", gradtx.Role("matrix", (0,), (1,))), ("up", gradtx.Role("matrix", (0,), (1,))))
    inner = gradtx.muon(0.1, muon_weight_dimension_numbers=gradtx.ByRole(rules))
    described = gradtx.describe(gradtx.split_leaves(inner, SPLITS), joined(apart(0)))
    alone = gradtx.describe(inner, apart(0))
    assert described.slots == alone.slots
    assert described.roles == alone.roles
    assert {"att/qkv/q", "up/1"} < set(described.roles)


def test_it_is_data():
    tx = gradtx.split_leaves(gradtx.muon(0.1), SPLITS)
    text = json.dumps(gradtx.to_config(tx))
    again = gradtx.from_config(json.loads(text))
    assert again == tx
    p = joined(apart(0))
    same_bits(again.init(p), tx.init(p))
    flat = gradtx.state_dict(tx.init(p), tx)
    assert {k for k in flat if "qkv" in k} == {
        f"inner_state/inner_states/muon/inner_state/0/mu/att/qkv/{name}" for name in SIZES
    }


@pytest.mark.slow
def test_the_average_of_parts_is_that_of_the_whole():
    tx = gradtx.chain(gradtx.sgd(0.1), gradtx.ema_params(0.5))
    p = joined(apart(0))
    ours = gradtx.split_leaves(tx, SPLITS)
    updates, state = ours.update(p, ours.init(p), p)
    after = gradtx.apply_updates(p, updates)
    _, other = tx.update(p, tx.init(p), p)
    found, whole = gradtx.eval_params(ours, state, after), gradtx.eval_params(tx, other, after)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, whole)


@pytest.mark.parametrize(
    ("splits", "error", "message"),
    [
        ({"nothing": SplitLeaf(0, (1,))}, ValueError, "matches no leaf"),
        (
            {"up": SplitLeaf(1, (40, 4))},
            ValueError,
            r"'up', of shape \(16, 48\): axis 1 must be as",
        ),
        ({"up": SplitLeaf(1, (24,))}, ValueError, "as long as the sizes"),
        ({"up": SplitLeaf(1, (5, 6), repeated=True)}, ValueError, "as long as a multiple of the"),
        ({"up": SplitLeaf(2, (1,))}, ValueError, "not axes of an array with 2"),
        ({"up": SplitLeaf(1, (48, 0))}, ValueError, "whole numbers of at least 1"),
        ({"up": SplitLeaf(1, ())}, ValueError, "whole numbers of at least 1"),
        (
            {"up": SplitLeaf(1, (48,)), "u*": SplitLeaf(1, (48,))},
            ValueError,
            "patterns 'up' and 'u\\*'",
        ),
        (
            {"up": (24, 24)},
            TypeError,
            r"'up', of .*: the leaf is split by a SplitLeaf, not by \(24",
        ),
        ("up", TypeError, "must be {path pattern: SplitLeaf}"),
        ({1: SplitLeaf(1, (48,))}, TypeError, "a path pattern is a string"),
    ],
)
def test_splits_that_do_not_fit_are_refused(splits, error, message):
    with pytest.raises(error, match=message):
        gradtx.split_leaves(gradtx.sgd(0.1), splits).init(joined(apart(0)))


def test_rows_of_a_leaf_with_parts_are_refused():
    tx = gradtx.split_leaves(gradtx.sgd(0.1), {"w": SplitLeaf(1, (1, 1))})
    p = {"w": jnp.ones((5, 2)), "x": jnp.ones((5, 2))}
    rows = gradtx.Rows(jnp.array([1]), jnp.ones((1, 2)), (5, 2))
    updates, _ = tx.update({"w": p["w"], "x": rows}, tx.init(p), p)
    assert isinstance(updates["x"], gradtx.Rows)
    with pytest.raises(TypeError, match="Rows at 'w'"):
        tx.update({"w": rows, "x": p["x"]}, tx.init(p), p)


def on_a_mesh(tx, p, spec):
    """The state's report, the collectives of a compiled step, and what it returns."""
    over = jax.tree.map(lambda _: on(mesh(model=8), *spec), p)
    sharding = gradtx.state_sharding(tx, p, over)
    placed, own = sharding.placed(tx), jax.device_put(p, sharding.params)
    state = sharding.init(tx, own)
    compiled = jax.jit(placed.update).lower(own, state, own).compile()
    updates, _ = compiled(own, state, own)
    return sharding, counted(compiled), updates


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("split", "spec"),
    [
        (SplitLeaf(1, (1, 1), repeated=True), (None, "model")),
        (SplitLeaf(1, {"q": 64, "k": 32, "v": 32}), ("model", None)),
    ],
)
def test_parts_that_no_device_divides_otherwise_do_not_move(split, spec):
    p = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(64, 128)), jnp.float32)}
    tx = gradtx.split_leaves(gradtx.adam(0.1), {"w": split})
    sharding, moved, updates = on_a_mesh(tx, p, spec)
    assert moved == {}
    slots = [leaf for leaf in sharding.leaves if "/mu/" in leaf.path]
    assert {leaf.bytes for leaf in slots} <= {64 * 64 * 4 // 8, 64 * 32 * 4 // 8}
    np.testing.assert_allclose(updates["w"], tx.update(p, tx.init(p), p)[0]["w"], rtol=1e-6)


@pytest.mark.slow
def test_matrices_that_are_parts_have_owners():
    """A part that the mesh does not divide is whole along it, and so is its slot."""
    p = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(64, 80)), jnp.float32)}
    tx = gradtx.split_leaves(gradtx.soap(0.1), {"w": SplitLeaf(1, {"q": 64, "k": 12, "v": 4})})
    sharding, moved, updates = on_a_mesh(tx, p, (None, "model"))
    notes = {leaf.path: (leaf.note, leaf.spec) for leaf in sharding.leaves}
    assert notes["inner_state/0/left/w/q"][0] == "stack of 1, with the owners of the matrices"
    assert notes["inner_state/0/mu/w/v"][1] == jax.P()
    assert "all-to-all" in moved
    np.testing.assert_allclose(updates["w"], tx.update(p, tx.init(p), p)[0]["w"], atol=1e-5)


@pytest.mark.slow
def test_explicit_axes():
    explicit = jax.make_mesh((8,), ("model",), axis_types=(jax.sharding.AxisType.Explicit,))
    where = jax.NamedSharding(explicit, jax.P(None, "model"))
    tx = gradtx.split_leaves(gradtx.muon(0.1), {"w": SplitLeaf(1, (64, 12, 4))})
    p = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(64, 80)), jnp.float32)}
    own = jax.device_put(p, where)
    with jax.set_mesh(explicit):
        updates, _ = jax.jit(tx.update)(own, tx.init(own), own)
    assert updates["w"].sharding.spec == jax.P(None, "model")
    np.testing.assert_allclose(updates["w"], tx.update(p, tx.init(p), p)[0]["w"], atol=1e-5)
