"""EMA-Nesterov against its paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle


@pytest.mark.paper("ema_nesterov")
def test_ema_nesterov():
    """Yau et al. 2026, algorithm 1, around heavy-ball descent, whose gradients depend on where
    they are taken, with a schedule; parameters in training and those to evaluate."""
    ahead = gradtx.piecewise_interpolate_schedule("linear", 0.2, {10: 4.0, 30: 0.0})
    tx = gradtx.chain(gradtx.sgd(0.1, 0.6), gradtx.ema_nesterov(ahead, 0.7))
    gs, start = oracle.gradients(), oracle.parameters()

    def step(carry, g):
        y, state = carry
        updates, state = tx.update(g + 0.3 * y, state, y)
        y = gradtx.apply_updates(y, updates)
        return (y, state), (y, gradtx.eval_params(tx, state, y))

    with jax.enable_x64(True):
        p = jnp.asarray(start)
        _, got = jax.jit(lambda gs: jax.lax.scan(step, (p, tx.init(p)), gs))(jnp.asarray(gs))
    x, y, m, v, want = start, start, np.zeros((4, 3)), np.zeros((4, 3)), ([], [])
    for t, g in enumerate(gs):
        v = 0.6 * v + g + 0.3 * y
        new = y - 0.1 * v
        m = 0.7 * m + 0.3 * (new - x)
        x, y = new, new + float(ahead(t)) * m
        want[0].append(y)
        want[1].append(x)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
