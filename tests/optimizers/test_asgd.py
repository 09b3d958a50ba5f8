"""Averaged descent against its paper and PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import beside_torch


@pytest.mark.paper("asgd")
def test_asgd_is_the_papers():
    """Polyak and Juditsky 1992: the average of the iterates, with Bottou's falling rate."""
    path = []

    def update(g, s, t, p):
        rate = 0.1 / (1 + 0.05 * 0.1 * (t - 1)) ** 0.6
        step = -rate * (g + 0.2 * p) - 0.05 * rate * p
        path.append(p + step)
        return step

    tx = gradtx.asgd(0.1, lambd=0.05, alpha=0.6, t0=20, weight_decay=0.2)
    oracle.check(tx, update)
    p, gs = jnp.asarray(oracle.parameters(), jnp.float32), oracle.gradients()
    state, step = tx.init(p), jax.jit(tx.update)
    for t, g in enumerate(jnp.asarray(gs, jnp.float32), start=1):
        updates, state = step(g, state, p)
        p = gradtx.apply_updates(p, updates)
        # With t0 = 20 it is the iterate itself up to step 22, and the mean of those from there.
        average = path[t - 1] if t <= 22 else np.mean(path[21:t], axis=0)
        np.testing.assert_allclose(state.ax, average, rtol=1e-5, atol=1e-5)


@pytest.mark.library("asgd")
def test_asgd_is_pytorch_s():
    options = {"lambd": 0.01, "alpha": 0.75, "t0": 20.0, "weight_decay": 0.1}
    tx = gradtx.asgd(0.1, **options)
    peer, tensor = beside_torch(tx, lambda o, p: o.ASGD(p, lr=0.1, **options))
    p = jnp.asarray(oracle.parameters(), jnp.float32)
    state = tx.init(p)
    for g in oracle.gradients(steps=100):
        updates, state = tx.update(jnp.asarray(g, jnp.float32), state, p)
        p = gradtx.apply_updates(p, updates)
    average = peer.state[tensor]["ax"]
    np.testing.assert_allclose(gradtx.get_slot(state, "ax"), average, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_average_of_what_has_not_moved_is_where_it_is():
    """Rows that are looked up late or never, and leaves whose first gradient is late."""
    tx = gradtx.asgd(0.1, lambd=0.0, t0=0)
    p = {"table": jnp.ones((3, 1)), "late": jnp.ones(2)}
    whole, state = p, tx.init(p)
    dense_state = tx.init(whole)
    for row in (0, 0, 0):
        g = {"table": gradtx.Rows(jnp.array([row]), jnp.ones((1, 1)), (3, 1)), "late": None}
        p, state = gradtx.apply_gradients(tx, g, p, state)
        g = {"table": g["table"].to_dense(), "late": jnp.zeros(2)}
        whole, dense_state = gradtx.apply_gradients(tx, g, whole, dense_state)
    late = gradtx.Rows(jnp.array([1]), jnp.ones((1, 1)), (3, 1))
    p, state = gradtx.apply_gradients(tx, {"table": late, "late": None}, p, state)
    table = gradtx.get_slot(state, "ax", "table").ravel()
    # Row 1 was averaged once, by a third, and row 0 not since it moved.
    np.testing.assert_allclose(table, [0.75, 1 - 0.1 / 3, 1.0], rtol=1e-6)
    for name in ("late",):
        mean, want = (gradtx.get_slot(s, "ax", name) for s in (state, dense_state))
        np.testing.assert_allclose(mean, want, rtol=1e-6)
