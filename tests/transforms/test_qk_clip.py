"""QK-clip against its paper: heads, layers, groups, latent attention; what is refused."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle

TAU = 2.0


def gammas(logits):
    return np.minimum(1, TAU / np.asarray(logits))


@pytest.mark.paper("qk_clip")
def test_qk_clip():
    """Kimi K2, algorithm 1: a step, then three heads along the columns."""
    gamma = gammas([1.0, 4.0, 3.0])

    def update(g, s, t, p):
        return np.sqrt(np.repeat(gamma, 2)) * (p - 0.1 * g) - p

    tx = gradtx.chain(gradtx.sgd(0.1), gradtx.qk_clip({"*": gradtx.ClippedHeads(1)}, TAU))
    p, gs = oracle.parameters(shape=(4, 6)), oracle.gradients(shape=(4, 6))
    got = oracle.run(tx, p, gs, max_logits=jnp.array([1.0, 4.0, 3.0]))
    np.testing.assert_allclose(got, oracle.transcribe(update, p, gs), rtol=1e-5, atol=1e-5)


def weights(**shapes):
    rng = np.random.default_rng(0)
    return {n: jnp.asarray(rng.normal(size=shape), jnp.float32) for n, shape in shapes.items()}


def clipped(p, heads, logits):
    tx = gradtx.qk_clip(heads, TAU)
    zeros = gradtx.tree.zeros_like(p)
    return gradtx.apply_updates(p, tx.update(zeros, tx.init(p), p, max_logits=logits)[0])


def test_latent_attention():
    """1/2 for what has no position, 1 for the queries that have one, 0 for shared keys."""
    p = weights(q_c=(4, 6), k_c=(4, 6), q_r=(4, 9), k_r=(4, 3))
    heads = {
        "q_c": gradtx.ClippedHeads(1),
        "k_c": gradtx.ClippedHeads(-1),
        "q_r": gradtx.ClippedHeads(1, power=1.0),
    }
    new = clipped(p, heads, jnp.array([1.0, 8.0, 2.5]))
    gamma = gammas([1.0, 8.0, 2.5])
    for name, each, power in (("q_c", 2, 0.5), ("k_c", 2, 0.5), ("q_r", 3, 1.0)):
        wanted = np.repeat(gamma, each) ** power * p[name]
        np.testing.assert_allclose(new[name], wanted, rtol=1e-5)
    np.testing.assert_array_equal(new["k_r"], p["k_r"])


@pytest.mark.slow
def test_logits_fall_to_the_threshold():
    """The largest product of a query and a key of each head, before and after."""
    p = weights(q=(5, 2, 3), k=(5, 2, 3), x=(7, 5))

    def largest(p):
        q, k = (jnp.einsum("td,dhe->hte", p["x"], p[n]) for n in "qk")
        return jnp.max(jnp.einsum("hte,hse->hts", q, k), (1, 2))

    before = largest(p)
    assert bool(jnp.all(before > TAU))
    new = clipped(p, {"q": gradtx.ClippedHeads(1), "k": gradtx.ClippedHeads(1)}, before)
    np.testing.assert_allclose(largest(new), TAU, rtol=1e-5)


def test_layers_may_be_stacked_or_named():
    logits = jnp.array([[1.0, 4.0], [3.0, 0.0]])
    p = weights(q=(2, 3, 4))
    stacked = clipped(p, {"q": gradtx.ClippedHeads(2)}, logits)["q"]
    apart = {f"layer{i}": {"q": p["q"][i]} for i in range(2)}
    named = clipped(
        apart, {"*/q": gradtx.ClippedHeads(1)}, {f"layer{i}": logits[i] for i in range(2)}
    )
    for i in range(2):
        np.testing.assert_allclose(stacked[i], named[f"layer{i}"]["q"], rtol=1e-6)
        wanted = np.sqrt(np.repeat(gammas(np.maximum(logits[i], 1e-9)), 2)) * p["q"][i]
        np.testing.assert_allclose(stacked[i], wanted, rtol=1e-5)


def test_keys_that_queries_share_take_the_least_factor():
    p = weights(k=(3, 4))
    new = clipped(p, {"k": gradtx.ClippedHeads(1, heads=2)}, jnp.array([1.0, 4.0, 3.0, 2.0]))
    wanted = np.sqrt(np.repeat(gammas([4.0, 3.0]), 2)) * p["k"]
    np.testing.assert_allclose(new["k"], wanted, rtol=1e-5)


def test_without_logits_nothing_is_clipped():
    p = weights(q=(2, 2))
    tx = gradtx.qk_clip({"q": gradtx.ClippedHeads(1)})
    updates, _ = tx.update(p, tx.init(p), p)
    np.testing.assert_array_equal(updates["q"], p["q"])


def test_what_does_not_fit_is_refused():
    p = weights(q=(3, 4), k=(3, 4))
    heads = {"q": gradtx.ClippedHeads(1)}
    with pytest.raises(ValueError, match="matches no leaf"):
        gradtx.qk_clip({"query": gradtx.ClippedHeads(1)}).init(p)
    for logits in (jnp.ones(3), jnp.ones(0), jnp.ones(()), jnp.ones((2, 2))):
        with pytest.raises(ValueError, match="'q', of shape"):
            clipped(p, heads, logits)
    with pytest.raises(ValueError, match="axis 2"):
        clipped(p, {"q": gradtx.ClippedHeads(2)}, jnp.ones(2))
    with pytest.raises(ValueError, match="none of layer"):
        clipped(p, heads, {"layer": jnp.ones(2)})
    with pytest.raises(ValueError, match=r"'\*' and 'q'"):
        clipped(p, {**heads, "*": gradtx.ClippedHeads(1)}, jnp.ones(2))
    rows = gradtx.Rows(jnp.array([0]), jnp.ones((1, 4)), (3, 4))
    tx = gradtx.qk_clip(heads)
    with pytest.raises(TypeError, match="Rows"):
        tx.update({"q": rows, "k": p["k"]}, tx.init(p), p, max_logits=jnp.ones(2))
