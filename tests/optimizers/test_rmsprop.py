"""RMSProp against its formulas."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle


@pytest.mark.paper("rmsprop")
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("eps_in_sqrt", [False, True])
@pytest.mark.parametrize("bias_correction", [False, True])
def test_rmsprop(centered, eps_in_sqrt, bias_correction):
    """Tieleman and Hinton 2012; centered, Graves 2013, equations 38-45."""
    # One gradient has no variance but what rounding leaves, a root of 3e-4 |g|: small beside 0.5.
    eps = 0.5 if centered else 1e-2

    def update(g, s, t, p):
        s["nu"] = 0.9 * s.get("nu", 0.0) + 0.1 * g * g
        s["mu"] = 0.9 * s.get("mu", 0.0) + 0.1 * g
        correction = 1 - 0.9**t if bias_correction else 1.0
        square = s["nu"] / correction
        if centered:
            square = square - (s["mu"] / correction) ** 2
        root = np.sqrt(square + eps) if eps_in_sqrt else np.sqrt(np.maximum(square, 0)) + eps
        return -0.01 * g / root

    tx = gradtx.rmsprop(
        0.01, eps=eps, centered=centered, eps_in_sqrt=eps_in_sqrt, bias_correction=bias_correction
    )
    oracle.check(tx, update)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_of_the_steps(nesterov):
    def update(g, s, t, p):
        s["nu"] = 0.9 * s.get("nu", 0.0) + 0.1 * g * g
        u = -0.01 * g / np.sqrt(s["nu"] + 1e-8)
        s["m"] = u + 0.8 * s.get("m", 0.0)
        return u + 0.8 * s["m"] if nesterov else s["m"]

    oracle.check(gradtx.rmsprop(0.01, momentum=0.8, nesterov=nesterov), update)


def test_equal_gradients_give_a_finite_centered_step():
    tx = gradtx.scale_by_stddev()
    g = jnp.full(3, 0.1)
    state = tx.init(g)
    for _ in range(200):
        updates, state = tx.update(g, state)
    assert bool(jnp.all(jnp.isfinite(updates)))
