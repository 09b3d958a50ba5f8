"""Dion whose devices have momenta of their own, and send factors of low rank."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests.distributed.meshes import P, counted, mesh, on, steps_of_devices

N, STEPS, FRACTION, DECAY, EPS, RATE, WEIGHT_DECAY = 4, 5, 0.4, 0.8, 0.1, 0.05, 0.4
SHAPES = {"tall": (6, 4), "wide": (3, 5)}


def gradients(shapes=SHAPES):
    rng = np.random.default_rng(0)
    return {k: rng.normal(size=(N, STEPS, *s)) for k, s in shapes.items()}


def start(shapes=SHAPES):
    rng = np.random.default_rng(1)
    return {k: rng.normal(size=s) for k, s in shapes.items()}


def run(tx, gs, weight=None):
    return steps_of_devices(tx, start({k: g.shape[2:] for k, g in gs.items()}), gs, weight)


def of(mean_of=gradtx.distributed_dion, **options):
    given = ("data",) if mean_of is gradtx.distributed_dion else ()
    return mean_of(RATE, *given, FRACTION, DECAY, EPS, WEIGHT_DECAY, key=3, **options)


@pytest.mark.slow
@pytest.mark.paper("distributed_dion")
def test_devices_with_momenta_of_their_own():
    """Ahn et al. 2025, as `dion.py` of https://github.com/microsoft/dion averages over replicas."""
    got, state = run(of(), gradients())
    for k, shape in SHAPES.items():
        tall = shape[0] > shape[1]
        w, mus = start()[k], [np.zeros(shape) for _ in range(N)]
        q = np.asarray(gradtx.scale_by_dion(FRACTION, key=3).init(jnp.zeros(shape)).q[0], float)
        for t in range(STEPS):
            mus = [m + g for m, g in zip(mus, gradients()[k][:, t], strict=True)]
            each = [m if tall else m.T for m in mus]
            left = np.linalg.qr(sum(m @ q for m in each) / N)[0]
            right = sum(m.T @ left for m in each) / N
            used = left @ right.T
            mus = [m - (1 - DECAY) * (used if tall else used.T) for m in mus]
            q = right / (np.linalg.norm(right, axis=0) + EPS)
            u = left @ q.T if tall else q @ left.T
            w = w - RATE * (np.sqrt(shape[1] / shape[0]) * u + WEIGHT_DECAY * w)
            np.testing.assert_allclose(got[k][:, t], np.stack([w] * N), rtol=1e-9)
        kept = state.inner_states["matrices"].inner_state[0][0].mu[k]
        np.testing.assert_allclose(kept, np.stack(mus), rtol=1e-9)


@pytest.mark.slow
def test_steps_are_those_of_one_device_that_has_the_weighted_mean():
    """One without weight may have a gradient that is not a number. A vector is AdamW's."""
    gs, weight = gradients({**SHAPES, "bias": (5,)}), np.array([1.0, 3.0, 0.0, 4.0])
    mean = {k: np.average(g, 0, weight)[None] for k, g in gs.items()}
    want, _ = run(of(gradtx.dion, power_iters=2), mean)
    for g in gs.values():
        g[2] = np.nan
    got, state = run(of(power_iters=2), gs, weight)
    for k, x in want.items():
        np.testing.assert_allclose(got[k], np.concatenate([x] * N), rtol=1e-8)
    assert np.isfinite(gradtx.tree.get(state, "q")["tall"]).all()


@pytest.mark.slow
def test_devices_that_have_seen_nothing_follow_the_others():
    """A momentum of zero is not what all devices have; where it is, nothing moves."""
    tx = gradtx.scale_by_distributed_dion("data", 1.0)
    g = np.zeros((N, 3, 2), np.float32)
    update = jax.vmap(lambda g: tx.update(g, tx.init(g))[0], axis_name="data")
    assert not np.any(update(g))
    g[1] = [[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    u = np.asarray(update(g))
    np.testing.assert_array_equal(u, np.stack([u[0]] * N))
    alone = gradtx.scale_by_dion(1.0)
    want, _ = alone.update(g.mean(0), alone.init(g[0]))
    np.testing.assert_allclose(u[0], want, atol=1e-5)


@pytest.mark.slow
def test_weights_are_of_matrices_alone():
    """Other leaves are each device's own; rows of tables are refused, with weights or without."""
    numbers = {"b": None, "w": gradtx.MuonDimensionNumbers()}
    tx = gradtx.scale_by_distributed_dion("data", weight_dimension_numbers=numbers)
    state = tx.init({"b": jnp.zeros(3), "w": jnp.zeros((3, 2))})
    g, weight = {"b": jnp.ones((2, 3)), "w": jnp.ones((2, 3, 2))}, jnp.array([1.0, 3.0])
    update = jax.vmap(lambda g, w: tx.update(g, state, weight=w)[0], axis_name="data")
    np.testing.assert_array_equal(update(g, weight)["b"], g["b"])
    rows = gradtx.Rows(jnp.zeros((2, 1), int), jnp.ones((2, 1, 2)), (3, 2))
    with pytest.raises(TypeError, match="cannot run on the Rows at 'w'"):
        update({**g, "w": rows}, weight)


@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 4), ("float32", 4), ("complex64", 8)])
def test_factors_are_sent_in_the_type_in_which_they_are_computed(dtype, size):
    p = [jax.ShapeDtypeStruct(shape, dtype) for shape in ((6, 4), (0, 4))]
    tx = gradtx.scale_by_distributed_dion("data", 0.5, power_iters=3)
    assert gradtx.describe(tx, p).message_bytes == 4 + 3 * size * 2 * (6 + 4)


@pytest.mark.slow
def test_what_is_sent():
    """Two factors of all matrices of a shape, and a number for each; the mean of other leaves."""
    tx = of()
    p = {"a": jnp.ones((8, 6)), "b": jnp.ones((8, 6)), "c": jnp.ones((4, 4)), "bias": jnp.ones(5)}
    want = 4 * (2 * (1 + 3 * 14) + 1 + 2 * 8 + 5)
    assert gradtx.describe(tx, p).message_bytes == want
    device = functools.partial(
        jax.shard_map, mesh=mesh(data=4), in_specs=P(), out_specs=P(), check_vma=False
    )
    update = device(lambda g, s: tx.update(g, s, p))
    sent = counted(jax.jit(update).lower(p, tx.init(p)).compile())
    (count, size), *others = sent.values()
    assert not others
    assert count <= 2 * 2 + 1
    assert size == want


@pytest.mark.slow
def test_where_no_axis_is_bound_it_is_dion():
    """Owners of matrices run a program for each device, along an axis that has the same name."""
    where = on(mesh(data=4), "data")
    options = 0.5, DECAY, EPS, 2
    ours = gradtx.scale_by_distributed_dion("data", *options)
    theirs = gradtx.scale_by_dion(*options)
    rng = np.random.default_rng(0)
    p = {k: jnp.asarray(rng.normal(size=(8, 6)), jnp.float32) for k in "abcdefgh"}
    placed = jax.device_put(p, where)
    sharding = gradtx.state_sharding(theirs, placed)
    state = sharding.init(theirs, placed)
    update, other = jax.jit(sharding.placed(ours).update), theirs.init(p)
    for _ in range(2):
        got, state = update(placed, state)
        want, other = theirs.update(p, other)
        chex.assert_trees_all_close(got, want, atol=1e-5)
