"""MADGRAD against its paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle


@pytest.mark.paper("madgrad")
@pytest.mark.parametrize("falls", [False, True])
def test_madgrad_is_the_papers(falls):
    """Defazio and Jelassi 2021, algorithm 1, with a rate that falls."""

    def update(g, s, t, p):
        start = s.setdefault("start", p)
        g = g + 0.3 * p
        weight = (0.5 * (1 - falls * (t - 1) / 50) + 0.1) * np.sqrt(t)
        s["v"] = s.get("v", 0.0) + weight * g * g
        s["s"] = s.get("s", 0.0) + weight * g
        return (1 - 0.7) * (start - s["s"] / (np.cbrt(s["v"]) + 0.1) - p)

    rate = gradtx.linear_schedule(0.5, 0.0, 50) if falls else 0.5
    oracle.check(gradtx.madgrad(rate, 0.7, 0.3, 0.1), update, rtol=1e-5, atol=2e-5)


def test_madgrad_keeps_its_own_copy_of_the_start():
    """Parameters and state can be donated together."""
    tx = gradtx.madgrad(0.1)
    p = jnp.ones(3)

    def step(p, state):
        updates, state = tx.update(jnp.ones(3), state, p)
        return gradtx.apply_updates(p, updates), state

    p, state = jax.jit(step, donate_argnums=(0, 1))(p, tx.init(p))
    assert jnp.isfinite(p).all()
    np.testing.assert_array_equal(state[1].x0, np.ones(3))


@pytest.mark.parametrize("array", [False, True])
def test_a_rate_of_zero_moves_nothing(array):
    """Epsilon is added to other rates alone, as in the authors' code: a warm-up begins at rest."""
    tx = gradtx.madgrad(jnp.zeros([]) if array else 0.0)
    p = jnp.ones(2)
    updates, state = tx.update(jnp.ones(2), tx.init(p), p)
    assert updates.tolist() == [0, 0]
    assert gradtx.get_slot(state, "s").tolist() == [0, 0]
