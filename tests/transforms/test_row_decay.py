"""Decay of rows by their count, against a transcription of FBGEMM's counters."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle


def by_count(g, s, t, p, decay, halflife):
    """FBGEMM's counters with a half-life, one row after the other."""
    count, last = s.setdefault("count", np.zeros(len(p))), s.setdefault("last", np.zeros(len(p)))
    u = g.copy()
    for i in np.flatnonzero(np.any(g != 0, axis=1)):
        count[i] = 1 + np.exp(-(t - last[i]) * np.log(2) / halflife) * count[i]
        last[i] = t
        u[i] += decay * halflife / count[i] * p[i]
    return u


@pytest.mark.slow
@pytest.mark.paper("add_row_decayed_weights")
def test_rows_decay_by_their_count():
    """Rows touched at each step, often and seldom; and as `Rows` what the dense update is."""
    rng = np.random.default_rng(0)
    steps, p = 40, rng.normal(size=(5, 2)).astype(np.float32)
    touched = rng.random((steps, 5)) < np.array([1, 0.7, 0.3, 0.1, 0])
    gs = (rng.normal(size=(steps, 5, 2)) * touched[..., None]).astype(np.float32)
    tx = gradtx.chain(gradtx.add_row_decayed_weights(0.02, 4.0), gradtx.scale(-0.05))
    dense = oracle.run(tx, p, gs)
    want = oracle.transcribe(lambda *x: -0.05 * by_count(*x, decay=0.02, halflife=4.0), p, gs)
    np.testing.assert_allclose(dense, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(dense[-1][4], p[4])

    def step(carry, g):
        table, state = carry
        rows = gradtx.Rows(jnp.arange(5)[::-1], g[::-1], (5, 2))
        return gradtx.apply_gradients(tx, rows, table, state), None

    (table, _), _ = jax.jit(lambda p: jax.lax.scan(step, (p, tx.init(p)), gs))(jnp.asarray(p))
    np.testing.assert_allclose(table, dense[-1], rtol=1e-6)


def test_a_row_decays_alike_however_often_it_is_touched():
    """Touched each step or each tenth, a row loses the same share in the long run."""
    tx = gradtx.chain(gradtx.add_row_decayed_weights(0.01, 50.0), gradtx.scale(-0.05))
    g = np.full((2000, 2, 1), 1e-12, np.float32)
    g[np.arange(2000) % 10 != 0, 1] = 0
    p = oracle.run(tx, np.ones((2, 1)), g)
    left = np.log(p[-1] / p[999])[:, 0]
    np.testing.assert_allclose(left[1], left[0], rtol=0.1)


def test_chosen_leaves_decay_by_a_schedule():
    tx = gradtx.add_row_decayed_weights(lambda count: 0.5 * (count + 1), 1.0, mask="w")
    p = {"b": jnp.ones(1), "w": jnp.ones(1)}
    state = tx.init(p)
    updates, state = tx.update(p, state, p)
    chex.assert_trees_all_close(updates, {"b": jnp.ones(1), "w": jnp.array([1.5])})
    updates, _ = tx.update(p, state, p)
    chex.assert_trees_all_close(updates, {"b": jnp.ones(1), "w": jnp.array([1 + 1 / 1.5])})
