"""RMSProp against its formulas."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import mean


@pytest.mark.quick(4)
@pytest.mark.paper("rmsprop")
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("corrected", [False, True])
def test_rmsprop(centered, inside, corrected):
    """Tieleman and Hinton 2012; centered, Graves 2013, equations 38-45."""
    # One gradient has no variance but what rounding leaves, a root of 3e-4 |g|: small beside 0.5.
    eps = 0.5 if centered else 0.1

    def update(g, s, t, p):
        s["v"] = 0.8 * s.get("v", 0.3) + 0.2 * g * g
        m = mean(s, "m", g, 0.8)
        correction = 1 - 0.8**t if corrected else 1.0
        square = s["v"] / correction - ((m / correction) ** 2 if centered else 0.0)
        root = np.sqrt(square + eps) if inside else np.sqrt(np.maximum(square, 0)) + eps
        return -0.05 * g / root

    tx = gradtx.rmsprop(0.05, 0.8, eps, 0.3, inside, centered, bias_correction=corrected)
    oracle.check(tx, update)


@pytest.mark.paper("rmsprop")
@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_of_the_steps(nesterov):
    def update(g, s, t, p):
        u = -0.05 * g / np.sqrt(mean(s, "v", g * g, 0.7) + 0.1)
        s["m"] = u + 0.8 * s.get("m", 0.0)
        return u + 0.8 * s["m"] if nesterov else s["m"]

    oracle.check(gradtx.rmsprop(0.05, 0.7, 0.1, momentum=0.8, nesterov=nesterov), update)


def test_equal_gradients_give_a_finite_centered_step():
    tx = gradtx.scale_by_stddev()
    g = jnp.full(3, 0.1)
    state = tx.init(g)
    for _ in range(200):
        updates, state = tx.update(g, state)
    assert bool(jnp.all(jnp.isfinite(updates)))
