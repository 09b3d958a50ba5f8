"""SM3 against its paper."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import mean


@pytest.mark.quick(2)
@pytest.mark.paper("sm3")
@pytest.mark.parametrize("b2", [1.0, 0.7, jnp.float32(1)], ids=["1", "0.7", "array"])
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4), (5,), ()])
def test_sm3_is_the_papers(b2, shape):
    """Anil et al. 2019, SM3-II, with a moving average as momentum."""

    def update(g, s, t, p):
        bounds = s.get("bounds", [np.zeros(1)] * max(g.ndim, 1))
        v = b2 * functools.reduce(np.minimum, bounds) + (1 - b2 if b2 < 1 else 1) * g * g
        axes = range(g.ndim)
        s["bounds"] = [v.max(axis=tuple({*axes} - {a}), keepdims=True) for a in axes or [0]]
        v = v.reshape(g.shape)
        return -0.05 * mean(s, "m", np.where(v > 0, g / np.sqrt(v + 0.1), 0.0), 0.8)

    tx = gradtx.chain(gradtx.scale_by_sm3(0.8, b2, 0.1), gradtx.scale(-0.05))
    oracle.check(tx, update, shape=shape)


@pytest.mark.paper("sm3")
def test_sm3_is_the_rule_with_its_defaults():
    p, gs = oracle.parameters(), oracle.gradients()
    tx = gradtx.chain(gradtx.scale_by_sm3(0.8), gradtx.scale(-0.05))
    np.testing.assert_array_equal(oracle.run(gradtx.sm3(0.05, 0.8), p, gs), oracle.run(tx, p, gs))


def test_sm3_trains_scalars_with_a_schedule():
    tx = gradtx.sm3(gradtx.linear_schedule(0.1, 0.0, 10), momentum=0.0)
    p = jnp.zeros(())
    updates, state = tx.update(jnp.float32(4.0), tx.init(p), p)
    np.testing.assert_allclose(updates, -0.1, rtol=1e-6)
    np.testing.assert_allclose(state[0].mu[0], 16.0)
