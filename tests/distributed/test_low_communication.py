"""SparseLoCo, MuLoCo and DeMo: against the papers' algorithms in float64."""

# Sees mutants of: def compressed(, def aggregate_dct(.

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.fft

import gradtx
from tests.distributed.meshes import P, counted, mesh, steps_of_devices
from tests.distributed.test_compression import in_bfloat16, largest, two_bits
from tests.quick import quick

N, STEPS = 4, 17
SHAPES = {"b": (5,), "w": (6, 4)}


@functools.cache
def gradients():
    rng = np.random.default_rng(0)
    return {k: rng.normal(size=(N, STEPS, *s)) for k, s in SHAPES.items()}


def start():
    rng = np.random.default_rng(1)
    return {k: rng.normal(size=s) for k, s in SHAPES.items()}


def run(tx, weight=None):
    return steps_of_devices(tx, start(), gradients(), weight)


@pytest.mark.slow
@pytest.mark.paper("sparse_loco")
def test_sparse_loco_follows_the_algorithm():
    every, rate, outer, decay, count = 3, 0.1, 0.7, 0.8, {"b": 3, "w": 12}
    got, state = run(
        gradtx.sparse_loco(gradtx.sgd(rate), every, "data", outer, decay, 0.5, chunk=8)
    )
    for k, s in SHAPES.items():
        theta, anchor = np.tile(start()[k], (N, *[1] * len(s))), start()[k]
        error = np.zeros((N, *s))
        for t in range(STEPS):
            theta = theta - rate * gradients()[k][:, t]
            if (t + 1) % every == 0:
                error = decay * error + anchor - theta
                sent = [two_bits(largest(e, count[k])) for e in error]
                error = error - sent
                senders = np.maximum(np.count_nonzero(sent, axis=0), 1)
                anchor = anchor - outer * np.sum(sent, axis=0) / senders
                theta = np.broadcast_to(anchor, theta.shape)
            np.testing.assert_allclose(got[k][:, t], theta, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state.outer_state[0].error[k], error, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.paper("demo")
def test_demo_follows_the_algorithm():
    rate, decay, weight_decay, count = 0.1, 0.9, 0.3, {"b": 2, "w": 8}
    got, _ = run(gradtx.demo(rate, "data", decay, 0.3, 8, weight_decay))
    for k, s in SHAPES.items():
        theta, m = start()[k], np.zeros((N, *s))
        for t in range(STEPS):
            m = decay * m + gradients()[k][:, t]
            sent = []
            for x in m:
                cosines = scipy.fft.dctn(x, norm="ortho")
                kept = in_bfloat16(largest(cosines, count[k]))
                sent.append(scipy.fft.idctn(kept, norm="ortho"))
            m = m - sent
            theta = theta - rate * (np.sign(np.mean(sent, axis=0)) + weight_decay * theta)
            np.testing.assert_allclose(got[k], got[k][:1].repeat(N, 0))
            np.testing.assert_allclose(got[k][0, t], theta, rtol=1e-5, atol=1e-6)


def nesterov(rate=0.7):
    return gradtx.sgd(rate, momentum=0.9, nesterov=True)


@pytest.mark.slow
def test_muloco_is_muon_in_diloco():
    muon = gradtx.muon(0.1, weight_decay=0.2, adam_weight_decay=0.2)
    outer = gradtx.sgd(0.5, momentum=0.8, nesterov=True)
    want, _ = run(gradtx.diloco(muon, outer, 3, "data"))
    got, _ = run(gradtx.muloco(0.1, 3, "data", 0.5, 0.8, 0.2))
    chex.assert_trees_all_close(got, want, rtol=1e-12)


@pytest.mark.parametrize("chunk", [16, 64])
def test_squares_are_those_of_the_links(chunk):
    """Of so small a fraction each square sends one entry at least: small squares send more."""
    fraction, p = 1e-3, {"w": jnp.zeros((64, 64))}
    for tx, link in (
        (
            gradtx.sparse_loco(gradtx.sgd(0.1), 3, "data", fraction=fraction, chunk=chunk),
            gradtx.aggregate_chunked_top_k("data", fraction, chunk),
        ),
        (
            gradtx.demo(0.1, "data", fraction=fraction, chunk=chunk),
            gradtx.aggregate_dct("data", fraction, chunk),
        ),
    ):
        want = gradtx.describe(link, p).message_bytes
        assert gradtx.describe(tx, p).peak_message_bytes == want


WHOLE = {
    "diloco": lambda: gradtx.diloco(gradtx.sgd(0.1), nesterov(), 3, "data"),
    "streaming_diloco": lambda: gradtx.streaming_diloco(
        gradtx.sgd(0.1), nesterov(), 3, "data", 3, 1
    ),
    "sparse_loco": lambda: gradtx.sparse_loco(gradtx.sgd(0.1), 3, "data", fraction=1.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("value", [np.nan, 1e3])
@pytest.mark.parametrize("name", quick(WHOLE, "diloco"))
def test_a_device_of_weight_zero_counts_for_nothing(name, value):
    """The others go on as if they were alone, and if its parameters are finite it joins them."""
    tx = WHOLE[name]()

    def device(gs, weight):
        def step(carry, g):
            p, state = carry
            updates, state = tx.update(g, state, p, weight=weight)
            return (gradtx.apply_updates(p, updates), state), None

        return jax.lax.scan(step, (jnp.zeros((3, 2)), tx.init(jnp.zeros((3, 2)))), gs)[0][0]

    gs = jnp.asarray(np.random.default_rng(2).normal(size=(3, 9, 3, 2)), jnp.float32)
    bad = jnp.insert(gs, 1, gs[0].at[4].set(value), axis=0)
    runs = jax.jit(jax.vmap(device, axis_name="data"))
    got = runs(bad, jnp.array([1.0, 0.0, 1.0, 1.0]))
    want = runs(gs, jnp.ones(3))
    np.testing.assert_allclose(got[np.array([0, 2, 3])], want, rtol=2e-5, atol=2e-6)
    if np.isfinite(value) and name != "streaming_diloco":  # where a fragment is still to come
        np.testing.assert_allclose(got[1], got[0], rtol=1e-4, atol=1e-4)


def compiled(tx, shapes):
    p = {k: jnp.zeros((8, *s)) for k, s in shapes.items()}
    own = jax.tree.map(lambda x: x[0], p)
    state = jax.tree.map(lambda x: jnp.stack([x] * 8), tx.init(own))

    def update(p, state, g):
        p, state, g = jax.tree.map(lambda x: x[0], (p, state, g))
        updates, state = tx.update(g, state, p)
        return jax.tree.map(lambda x: x[None], (gradtx.apply_updates(p, updates), state))

    specs = {"in_specs": P("data"), "out_specs": P("data"), "check_vma": False}
    mapped = jax.jit(jax.shard_map(update, mesh=mesh(data=8), **specs))
    return mapped.lower(p, state, p).compile(), gradtx.describe(tx, own)


LAYERS = {"b": (128,), "v": (256, 64), "w": (8, 64, 128)}
SIZE = sum(map(math.prod, LAYERS.values()))


@pytest.mark.slow
def test_sparse_loco_sends_a_fiftieth_of_diloco():
    dense, said = compiled(gradtx.diloco(gradtx.sgd(0.1), nesterov(), 10, "data"), LAYERS)
    sparse, stated = compiled(gradtx.sparse_loco(gradtx.sgd(0.1), 10, "data"), LAYERS)
    assert counted(dense) == {"all-reduce": (1, 4 * SIZE)}
    ((kind, (count, gathered)),) = counted(sparse).items()
    assert (kind, count) == ("all-gather", 1)
    assert gathered == 8 * stated.peak_message_bytes
    assert stated.peak_message_bytes <= said.peak_message_bytes / 50
    assert stated.message_bytes == -(-stated.peak_message_bytes // 10)
    assert f"at most {stated.peak_message_bytes:,} at once" in str(stated)
