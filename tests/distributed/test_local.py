"""Local SGD and DiLoCo: against the algorithms written for all devices at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests.distributed.meshes import P, counted, mesh

N, STEPS, EVERY = 4, 7, 3


def gradients():
    rng = np.random.default_rng(0)
    return rng.normal(size=(N, STEPS, 5))


def start():
    return np.random.default_rng(1).normal(size=5)


def run(tx, dtype=jnp.float32):
    """The parameters of all devices after each step, and when they meet next."""

    def device(gs):
        def step(carry, g):
            p, state = carry
            updates, state = tx.update(g, state, p)
            p = gradtx.apply_updates(p, updates)
            return (p, state), (p, state.until_sync)

        p = jnp.asarray(start(), dtype)
        return jax.lax.scan(step, (p, tx.init(p)), gs)[1]

    return jax.vmap(device, axis_name="data")(jnp.asarray(gradients(), dtype))


def momentum(theta, m, g, rate=0.1, decay=0.9):
    m = decay * m + g
    return theta - rate * m, m


@pytest.mark.slow
def test_local_sgd_follows_the_algorithm():
    with jax.enable_x64(True):
        got, until = run(
            gradtx.local_sgd(gradtx.sgd(0.1, momentum=0.9), EVERY, "data"), jnp.float64
        )
    theta, m = np.tile(start(), (N, 1)), np.zeros((N, 5))
    for t in range(STEPS):
        theta, m = momentum(theta, m, gradients()[:, t])
        if (t + 1) % EVERY == 0:
            theta = np.tile(theta.mean(0), (N, 1))
        np.testing.assert_allclose(got[:, t], theta, rtol=1e-12)
    assert until[0].tolist() == [2, 1, 3, 2, 1, 3, 2]


@pytest.mark.slow
def test_diloco_follows_the_algorithm():
    inner, outer = (
        gradtx.sgd(0.1, momentum=0.9),
        gradtx.sgd(0.7, momentum=0.9, nesterov=True),
    )
    with jax.enable_x64(True):
        got, until = run(gradtx.diloco(inner, outer, EVERY, "data"), jnp.float64)
    theta, m = np.tile(start(), (N, 1)), np.zeros((N, 5))
    anchor, v = start(), np.zeros(5)
    for t in range(STEPS):
        theta, m = momentum(theta, m, gradients()[:, t])
        if (t + 1) % EVERY == 0:
            way = anchor - theta.mean(0)
            v = 0.9 * v + way
            anchor = anchor - 0.7 * (0.9 * v + way)
            theta = np.tile(anchor, (N, 1))
        np.testing.assert_allclose(got[:, t], theta, rtol=1e-12)
    assert until[0].tolist() == [2, 1, 3, 2, 1, 3, 2]


@pytest.mark.slow
def test_identities():
    """DiLoCo with a plain outer step is local SGD; that every step is the mean of the updates."""
    inner = gradtx.sgd(0.1)
    local = run(gradtx.local_sgd(inner, EVERY, "data"))[0]
    plain = run(gradtx.diloco(inner, gradtx.sgd(1.0), EVERY, "data"))[0]
    np.testing.assert_allclose(plain, local, rtol=1e-5, atol=1e-6)
    every_step = run(gradtx.local_sgd(inner, 1, "data"))[0]
    want = start() - 0.1 * np.cumsum(gradients().mean(0), axis=0)
    np.testing.assert_allclose(every_step[0], want, rtol=1e-5, atol=1e-6)


def test_alone_it_is_the_inner_optimizer():
    tx = gradtx.local_sgd(gradtx.adam(0.1), 2, "data")
    g, p = jnp.ones(3), jnp.zeros(3)
    want, _ = gradtx.adam(0.1).update(g, gradtx.adam(0.1).init(p), p)
    state = tx.init(p)
    for _ in range(2):
        updates, state = tx.update(g, state, p)
    np.testing.assert_allclose(updates, want, rtol=1e-4)


TREE = {"b": (7,), "w": (5, 3)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["local_sgd", "diloco"])
def test_a_meeting_is_one_all_reduce_in_a_branch(name):
    """Of the parameters, and only where the devices meet: the other branch sends nothing."""
    outer = () if name == "local_sgd" else (gradtx.sgd(0.7, momentum=0.9, nesterov=True),)
    tx = getattr(gradtx, name)(gradtx.adam(0.1), *outer, 10, "data")
    p = {k: jnp.zeros((8, *s)) for k, s in TREE.items()}
    own = jax.tree.map(lambda x: x[0], p)
    state = jax.tree.map(lambda x: jnp.stack([x] * 8), tx.init(own))

    def update(p, state, g):
        p, state, g = jax.tree.map(lambda x: x[0], (p, state, g))
        updates, state = tx.update(g, state, p)
        return jax.tree.map(lambda x: x[None], (gradtx.apply_updates(p, updates), state))

    specs = {"in_specs": P("data"), "out_specs": P("data"), "check_vma": False}
    mapped = jax.jit(jax.shard_map(update, mesh=mesh(data=8), **specs))
    compiled = mapped.lower(p, state, p).compile()
    size = sum(int(np.prod(s)) for s in TREE.values())
    assert counted(compiled) == {"all-reduce": (1, 4 * size)}
    text = compiled.as_text()
    entry = text[text.index("\nENTRY") :]
    assert " conditional(" in entry
    assert " all-reduce(" not in entry
    assert gradtx.describe(tx, own).message_bytes == -(-4 * size // 10)
    new_p, new_state = mapped(p, state, jax.tree.map(jnp.ones_like, p))
    assert new_state.until_sync.tolist() == [9] * 8
    assert jax.tree.structure(new_p) == jax.tree.structure(p)


class TestBadInput:
    def test_no_parameters(self):
        tx = gradtx.local_sgd(gradtx.sgd(0.1), 2, "data")
        with pytest.raises(ValueError, match="local_sgd needs the parameters"):
            tx.update(jnp.ones(2), tx.init(jnp.ones(2)))

    @pytest.mark.slow
    def test_unknown_axis(self):
        tx = gradtx.local_sgd(gradtx.sgd(0.1), 1, "dat")

        def update(g):
            return tx.update(g, tx.init(g), g)[0]

        specs = {"in_specs": P("data"), "out_specs": P("data"), "check_vma": False}
        with pytest.raises(ValueError, match="no axis 'dat'"):
            jax.shard_map(update, mesh=mesh(data=8), **specs)(jnp.ones(8))


@pytest.mark.parametrize("streaming", [False, True])
def test_an_outer_optimizer_that_aggregates_some_leaves_is_refused(streaming):
    def made(outer):
        if streaming:
            return gradtx.streaming_diloco(gradtx.sgd(0.1), outer, 4, "d", 2)
        return gradtx.diloco(gradtx.sgd(0.1), outer, 4, "d")

    some = gradtx.masked(gradtx.aggregate_int8("d"), "w")
    every = gradtx.chain(gradtx.aggregate_int8("d"), gradtx.sgd(1.0))
    labels = [("w", "a"), ("*", "b")]
    group = gradtx.partition({"a": every, "b": gradtx.sgd(1.0)}, labels)
    for outer in (gradtx.chain(some, gradtx.sgd(1.0)), group):
        with pytest.raises(ValueError, match="outer reduces over 'd' only some of the leaves"):
            made(outer)
    for outer in (
        gradtx.chain(every, gradtx.scale(1.0)),
        gradtx.chain(gradtx.clip_by_global_norm(1.0), every),
        gradtx.guard(every),
        gradtx.flatten(every),
        gradtx.partition({"a": every, "b": every}, labels),
    ):
        made(outer)
    if streaming:
        stored = gradtx.store(gradtx.sgd(0.7, 0.9), "int8", min_size=0)
        with pytest.raises(ValueError, match=r"store\(streaming_diloco"):
            made(stored).init({"w": jnp.ones((4, 64))})


@pytest.mark.slow
def test_a_device_of_weight_0_in_local_sgd():
    tx = gradtx.local_sgd(gradtx.sgd(1.0), 1, "d")

    def step(g, weight):
        p = jnp.float32(0.0)
        return p + tx.update(g, tx.init(p), p, weight=weight)[0]

    of_all = jax.vmap(step, axis_name="d")
    found = of_all(jnp.array([1.0, jnp.nan, 3.0]), jnp.array([1.0, 0, 1]))
    assert found[0] == found[2] == -2.0
    alone = of_all(jnp.array([1.0, 2.0, 3.0]), jnp.zeros(3))
    np.testing.assert_array_equal(alone, [-1.0, -2.0, -3.0])


def test_gradients_that_jax_has_summed_are_refused():
    """They would be steps of a rate that is larger by the number of devices."""
    tx, p = gradtx.local_sgd(gradtx.sgd(0.1), 2, "data"), jnp.ones(3)

    def updates(x):
        return tx.update(jax.grad(lambda p: jnp.sum(p * x))(p), tx.init(p), p)[0]

    mapped = jax.shard_map(updates, mesh=mesh(data=N), in_specs=P("data"), out_specs=P("data"))
    with pytest.raises(ValueError, match=r"local_sgd: .* is the same on all devices of 'data'"):
        jax.jit(mapped)(jnp.arange(4.0 * 3).reshape(-1, 3))

    def own(x):
        mine = jax.tree.map(lambda p: x[0] * 0 + p, p)
        return tx.update(jax.grad(lambda p: jnp.sum(p * x))(mine), tx.init(p), mine)[0][None]

    mapped = jax.shard_map(own, mesh=mesh(data=N), in_specs=P("data"), out_specs=P("data"))
    x = jnp.arange(4.0 * 3).reshape(-1, 3)
    np.testing.assert_allclose(jax.jit(mapped)(x), -0.1 * x, rtol=1e-6)
