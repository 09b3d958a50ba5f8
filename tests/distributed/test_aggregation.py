"""Aggregation under pmap, shard_map and vmap: the run on one device on the whole batch."""

# Sees mutants of: single_examples.

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import gradtx
from gradtx.core.communication import Communication
from gradtx.programs.tracing import vary
from gradtx.sharding.axes import axes_of, keeps_account
from tests import test_contracts as contracts
from tests.catalogue import CATALOGUE
from tests.distributed.meshes import (
    N,
    P,
    batch,
    counted,
    loss,
    mesh,
    params,
    split,
    under_pmap,
    under_shard_map,
    under_vmap,
)
from tests.quick import quick


def run(tx, p, data, *, axis=None, steps=2):
    """Some steps on one device's data."""

    def step(carry, _):
        p, state = carry
        # The local gradient also where shard_map would sum it over the devices.
        local = p if axis is None else local_copy(p, axis)
        updates, state = tx.update(jax.grad(loss)(local, *data), state, p)
        return (gradtx.apply_updates(p, updates), state), None

    return jax.lax.scan(step, (p, tx.init(p)), length=steps)[0][0]


def local_copy(p, axis):
    if not keeps_account(axis):
        return p
    return jax.tree.map(lambda x: vary(x, axes_of(axis)), p)


checked = functools.partial(under_shard_map, check_vma=True)
GRADIENTS = np.random.default_rng(3).normal(1.0, size=(N, 11)).astype(np.float32)
WAYS = {"pmap": under_pmap, "vmap": under_vmap, "shard_map": under_shard_map, "checked": checked}


@pytest.mark.slow
@pytest.mark.parametrize("way", quick(WAYS, "pmap", "checked"))
@pytest.mark.parametrize("place", ["before clipping", "after clipping"])
def test_equals_one_device_on_the_whole_batch(way, place):
    links = [gradtx.aggregate("data"), gradtx.clip_by_global_norm(0.1)]
    chained = gradtx.chain(*(links if place == "before clipping" else links[::-1]))
    tx = gradtx.chain(chained, gradtx.adamw(0.1))
    got = WAYS[way](functools.partial(run, tx, axis="data"), params(), batch())
    if place == "before clipping":
        want = run(gradtx.chain(links[1], gradtx.adamw(0.1)), params(), batch())
    else:  # every device's own gradient is clipped, then the mean is taken

        def mean_of_clipped(g):
            clip = gradtx.clip_by_global_norm(0.1)
            clipped = jax.vmap(lambda g: clip.update(g, clip.init(g))[0])(g)
            return jax.tree.map(lambda x: x.mean(0), clipped)

        want, adamw = params(), gradtx.adamw(0.1)
        state = adamw.init(want)
        for _ in range(2):
            gs = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(want, *split(batch()))
            updates, state = adamw.update(mean_of_clipped(gs), state, want)
            want = gradtx.apply_updates(want, updates)
    chex.assert_trees_all_close(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("way", quick(["pmap", "vmap", "shard_map"], "shard_map"))
@pytest.mark.parametrize("op", ["mean", "sum"])
def test_weights_of_ragged_batches(way, op):
    """Devices with 3, 0, 2, ... examples, of which one has none and a gradient of NaN."""
    counts = np.array([3, 0, 2, 1, 4, 0, 1, 2])
    x, y = batch(examples=int(counts.sum()))
    ends = np.cumsum(counts)
    padded = [jnp.zeros((N, 4, 2)), jnp.zeros((N, 4, 3))]
    for i, n in enumerate(counts):
        for j, full in enumerate((x, y)):
            padded[j] = padded[j].at[i, :n].set(full[ends[i] - n : ends[i]])

    def local(p, data):
        x, y, n = (d.reshape(d.shape[-3 + i :]) for d, i in zip(data, (1, 1, 3), strict=True))
        n = n.reshape(())

        def mean(p):
            each = jnp.mean((jnp.tanh(x @ p["w"] + p["b"]) - y) ** 2, axis=1)
            return jnp.sum(jnp.where(jnp.arange(4) < n, each, 0)) / n  # 0 / 0 where it has none

        tx = gradtx.aggregate("data", op)
        return tx.update(jax.grad(mean)(p), tx.init(p), p, weight=n)[0]

    data = (*(d.reshape(N * 4, -1) for d in padded), jnp.asarray(counts))
    if way == "shard_map":
        got = under_shard_map(local, params(), data)
    else:
        each = (*padded, jnp.asarray(counts).reshape(N, 1))
        mapped = {"pmap": jax.pmap, "vmap": jax.vmap}[way]
        out = mapped(lambda d: local(params(), d), axis_name="data")(each)
        got = jax.tree.map(lambda x: x[0], out)
    want = jax.grad(loss)(params(), x, y)
    if op == "sum":
        want = jax.tree.map(lambda g: g * len(x), want)
    chex.assert_trees_all_close(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_no_weight_at_all_is_a_zero_gradient():
    tx = gradtx.aggregate("data")
    out = jax.vmap(lambda g: tx.update(g, tx.init(g), weight=0)[0], axis_name="data")(
        jnp.full((2, 3), jnp.nan)
    )
    assert out.tolist() == [[0.0] * 3] * 2


@pytest.mark.slow
def test_accumulation_inside_and_ragged():
    """Aggregation inside of `accumulate`: once in a window, with the window's weights."""
    tx = gradtx.accumulate(gradtx.chain(gradtx.aggregate("data"), gradtx.sgd(1.0)), 2)
    weights = jnp.array([[3.0, 1.0], [1.0, 5.0]])
    gradients = jnp.array([[1.0, 2.0], [3.0, 4.0]])

    def window(gs, ws):
        state = tx.init(jnp.zeros(()))
        for g, w in zip(gs, ws, strict=True):
            updates, state = tx.update(g, state, jnp.zeros(()), weight=w)
        return updates

    out = jax.vmap(window, axis_name="data")(gradients, weights)
    np.testing.assert_allclose(out, -np.average(gradients, weights=weights), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("by_hand", [False, True])
def test_a_window_whose_end_makes_devices_agree(by_hand):
    """`shard_map` keeps track: micro-batches differ on devices, the step of a window does not."""
    tx = gradtx.accumulate(gradtx.chain(gradtx.aggregate("data"), gradtx.adam(0.1)), 2)
    gradients = jnp.asarray(np.random.default_rng(0).normal(size=(4, N, 3)), jnp.float32)

    def trained(p, gs):
        state = tx.init(p)
        for g in gs[:, 0]:
            if by_hand:
                updates, state = tx.update(g, state, p)
                p = gradtx.apply_updates(p, updates)
            else:
                p, state = gradtx.apply_gradients(tx, g, p, state)
        return p

    run = jax.shard_map(trained, mesh=mesh(data=N), in_specs=(P(), P(None, "data")), out_specs=P())
    got = jax.jit(run)(jnp.arange(3.0), gradients)
    alone, p = gradtx.adam(0.1), jnp.arange(3.0)
    state = alone.init(p)
    for mean in gradients.reshape(2, 2, N, 3).mean((1, 2)):
        p, state = gradtx.apply_gradients(alone, mean, p, state)
    np.testing.assert_allclose(got, p, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_rows_of_tables_are_gathered(way):
    indices = jnp.array([[0, 2], [2, 3], [1, 1], [9, 0], [3, 3], [0, 1], [2, 0], [1, 3]])
    values = jnp.arange(32.0).reshape(N, 2, 2)
    want = np.zeros((4, 2), np.float32)
    for i, v in zip(indices.reshape(-1), values.reshape(-1, 2), strict=True):
        if i < 4:
            want[i] += v / N

    def dense(p, data):
        i, v = (d.reshape(-1, *d.shape[2:]) if way != "vmap" else d for d in data)
        rows = gradtx.Rows(i.reshape(2), v.reshape(2, 2), (4, 2))
        tx = gradtx.aggregate("data")
        updates, _ = tx.update({"t": rows, "n": None}, tx.init(p), p)
        assert updates["n"] is None
        return updates["t"].to_dense()

    if way in ("pmap", "vmap"):
        mapped = {"pmap": jax.pmap, "vmap": jax.vmap}[way]
        got = mapped(lambda i, v: dense(None, (i[None], v[None])), axis_name="data")(
            indices, values
        )[0]
    else:
        got = WAYS[way](dense, {}, (indices, values))
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.slow
def test_rows_whose_indices_have_several_axes_are_gathered():
    tx, ids = gradtx.aggregate("data"), jnp.array([[[0, 1], [1, 3]], [[1, 1], [2, 9]]])

    def update(ids):
        g = gradtx.Rows(ids, jnp.ones((2, 2, 3)), (4, 3))
        return tx.update(g, tx.init(jnp.zeros((4, 3))))[0].to_dense()

    table = jax.vmap(update, axis_name="data")(ids)
    assert table[:, :, 0].tolist() == [[0.5, 2.0, 0.5, 0.5]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("op", ["mean", "sum"])
@pytest.mark.parametrize("aggregate", [gradtx.aggregate, gradtx.aggregate_bf16])
def test_a_weight_is_one_number(aggregate, op):
    """One for each entry of a gradient would be multiplied with it."""
    tx = aggregate("data", op=op)

    def update(g):
        return tx.update(g, tx.init(g), weight=jnp.ones(2))[0]

    with pytest.raises(ValueError, match="weight must be one number, not of the shape"):
        jax.vmap(update, axis_name="data")(jnp.ones((3, 2)))

    def alone(g, weight):  # an array of one, as a device's part of an array of counts
        return tx.update(g, tx.init(g), weight=weight)[0]

    counts = jnp.array([[1.0], [0.0], [3.0]])
    found = jax.vmap(alone, axis_name="data")(jnp.eye(3, 2), counts)
    want = np.array([1.0, 0.0]) / (4 if op == "mean" else 1)
    np.testing.assert_allclose(found[0], want, rtol=1e-2)


@pytest.mark.slow
def test_an_array_of_one_weight_keeps_the_noise_a_number():
    tx = gradtx.aggregate("data", noise_decay=0.5)

    def step(g, weight):
        return tx.update(g, tx.init(g), weight=weight)[1].noise_scale

    weights = jnp.array([1.0, 2.0, 3.0])
    for found, want in zip(
        jax.tree.leaves(jax.vmap(step, axis_name="data")(jnp.eye(3), weights[:, None])),
        jax.tree.leaves(jax.vmap(step, axis_name="data")(jnp.eye(3), weights)),
        strict=True,
    ):
        np.testing.assert_array_equal(found, want)


def test_what_reduces_gradients_says_over_which_axes():
    outer = gradtx.sgd(0.7)
    pairs = {
        gradtx.aggregate(("x", "y")): ("x", "y"),
        gradtx.aggregate_bf16("x"): ("x",),
        gradtx.diloco(gradtx.sgd(0.1), outer, 2, "x"): (),  # which sends parameters
    }
    for tx, axes in pairs.items():
        assert tx.facet(Communication).reduces == axes
    params = {"a": jnp.zeros((2, 3), jnp.bfloat16), "b": jnp.zeros(4)}  # both sent in float32
    assert gradtx.describe(gradtx.aggregate("x"), params).message_bytes == 4 * (6 + 4)


@pytest.mark.slow
def test_one_all_reduce_for_all_leaves():
    tx = gradtx.aggregate("data")

    def update(g):
        return tx.update(g, tx.init(g))[0]

    g = {f"x{i}": jnp.zeros((N, 4 + i), jnp.bfloat16 if i % 2 else jnp.float32) for i in range(9)}
    mapped = jax.shard_map(update, mesh=mesh(data=N), in_specs=P("data"), out_specs=P())
    sent = 4 * sum(x.size // N for x in g.values())  # in float32, whatever the leaf's type
    assert counted(jax.jit(mapped).lower(g).compile()) == {"all-reduce": (1, sent)}


@pytest.mark.slow
@pytest.mark.parametrize("weight", [None, 2.0])
def test_the_noise_is_measured_in_the_same_all_reduce(weight):
    """One scalar more, or two with weights; and no bit of the mean changes."""
    g = {f"w{i}": jnp.asarray(GRADIENTS[:, i : i + 5]) for i in range(7)}

    def lowered(noise_decay):
        tx = gradtx.aggregate("data", noise_decay=noise_decay)

        def local(g):
            w = None if weight is None else weight + jax.lax.axis_index("data")
            return tx.update(g, tx.init(g), weight=w)

        specs = {"in_specs": P("data"), "out_specs": (P("data"), P()), "check_vma": False}
        return jax.jit(jax.shard_map(local, mesh=mesh(data=N), **specs)).lower(g).compile()

    with_noise, without = lowered(0.9), lowered(None)
    (found, size), (want, plain) = (counted(x)["all-reduce"] for x in (with_noise, without))
    assert found == want
    assert size - plain == (4 if weight is None else 8)
    (got, state), (same, _) = with_noise(g), without(g)
    jax.tree.map(np.testing.assert_array_equal, got, same)
    w = np.full(N, 1.0) if weight is None else weight + np.arange(N)
    rows = np.concatenate([np.asarray(x, np.float64) for x in jax.tree.leaves(g)], 1)
    mean = w @ rows / w.sum()
    squares, mean_square = w @ np.sum(rows**2, 1) / w.sum(), np.sum(mean**2)
    want = gradtx.noise_scale(squares, mean_square, w.sum() / N, w.sum())
    np.testing.assert_allclose(state.noise_scale.value, want.value, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("way", quick(WAYS, "vmap", "checked"))
@pytest.mark.parametrize("op", ["mean", "sum"])
def test_the_noise_is_the_same_on_every_device_and_for_mean_and_sum(way, op):
    tx = gradtx.aggregate("data", op, noise_decay=0.9)

    def local(p, data):
        g = jax.grad(loss)(local_copy(p, "data"), *data)
        return tx.update(g, tx.init(p), p)[1].noise_scale.value

    got = WAYS[way](local, params(), batch())
    gs = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params(), *split(batch()))
    rows = np.concatenate([np.asarray(x, np.float64).reshape(N, -1) for x in gs.values()], 1)
    small, large = np.mean(np.sum(rows**2, 1)), np.sum(rows.mean(0) ** 2)
    np.testing.assert_allclose(got, gradtx.noise_scale(small, large, 1, N).value, rtol=1e-4)


def test_nothing_under_plain_jit():
    tx = gradtx.aggregate("data")
    g = params()
    chex.assert_trees_all_equal(jax.jit(lambda g: tx.update(g, tx.init(g))[0])(g), g)


class TestBadInput:
    def test_unknown_axis(self):
        tx = gradtx.aggregate("dat")
        with pytest.raises(ValueError, match=r"no axis 'dat' here; the axes are 'data'"):
            under_shard_map(functools.partial(run, tx), params(), batch())

    def test_axis_that_is_not_of_the_mesh_in_use(self):
        tx = gradtx.aggregate("dat")
        with jax.set_mesh(mesh(data=N)), pytest.raises(ValueError, match="no axis 'dat'"):
            jax.jit(lambda g: tx.update(g, tx.init(g)))(jnp.zeros(3))

    def test_gradients_that_jax_has_summed(self):
        def update(p, data):
            tx = gradtx.aggregate("data")
            return tx.update(jax.grad(loss)(p, *data), tx.init(p), p)[0]

        with pytest.raises(ValueError, match=r"'b' is the same on all devices of 'data'"):
            checked(update, params(), batch())

    def test_arguments(self):
        for bad in (3, None, "", (), ("data", 3)):
            with pytest.raises(TypeError, match="axis_name"):
                gradtx.aggregate(bad)
        with pytest.raises(ValueError, match="op must be"):
            gradtx.aggregate("data", "median")


AMONG_DEVICES = sorted(
    name
    for name in CATALOGUE
    if getattr(gradtx, name).builder.function.__module__.startswith("gradtx.distributed.")
)


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", AMONG_DEVICES)
def test_leaves_without_entries_among_devices(name):
    """Two steps of three devices, as far as shapes are concerned."""
    tx, p, g = CATALOGUE[name].make(), contracts.params(), contracts.grads(2)

    def run(k):
        carry = p, tx.init(p)
        for i in range(2):
            one = jax.tree.map(lambda x, i=i: k * x[i], g)
            carry, _ = contracts.step(tx, carry, one)
        return carry[0]

    got = jax.eval_shape(jax.vmap(run, axis_name="data"), jnp.arange(1.0, 4.0))
    assert jax.tree.map(jnp.shape, got) == jax.tree.map(lambda x: (3, *x.shape), p)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sm3", "lamb", "stable_adamw", "cautious", "accumulate"])
def test_whole_steps_where_shard_map_tracks_what_differs(name):
    """Numbers made inside, which are alike on all devices, meet gradients that are not."""
    built = CATALOGUE[name].make()

    def step(p, g):
        updates, _ = built.update(g, built.init(p), p)
        return gradtx.apply_gradients(built, g, p, built.init(p))[0], updates

    spec = PartitionSpec("data")
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    mapped = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=spec, out_specs=spec))
    p, g = jnp.arange(1.0, 9.0).reshape(4, 2), jnp.linspace(-1.0, 1.0, 8).reshape(4, 2)
    halves = [jax.jit(step)(p[i : i + 2], g[i : i + 2]) for i in (0, 2)]
    want = jax.tree.map(lambda *parts: jnp.concatenate(parts), *halves)
    chex.assert_trees_all_close(mapped(p, g), want, rtol=1e-5, atol=1e-6)
