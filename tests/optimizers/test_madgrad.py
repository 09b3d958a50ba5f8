"""MADGRAD against its paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle


def madgrad(g, s, t, p, rate=0.01, momentum=0.9, eps=1e-6):
    """Defazio and Jelassi 2021, algorithm 1."""
    start = s.setdefault("start", p.copy())
    weight = (rate + eps) * np.sqrt(t)
    s["v"] = s.get("v", 0.0) + weight * g * g
    s["s"] = s.get("s", 0.0) + weight * g
    z = start - s["s"] / (np.cbrt(s["v"]) + eps)
    return (1 - momentum) * (z - p)


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


@pytest.mark.paper("madgrad")
def test_madgrad_is_the_papers():
    oracle.check(gradtx.madgrad(0.01), madgrad, rtol=1e-5, atol=2e-5)


def test_madgrad_with_a_schedule_is_the_papers():
    oracle.check(
        gradtx.madgrad(gradtx.linear_schedule(0.02, 0.0, 50)),
        lambda g, s, t, p: madgrad(g, s, t, p, rate=0.02 * (1 - (t - 1) / 50)),
        rtol=1e-5,
        atol=2e-5,
    )
