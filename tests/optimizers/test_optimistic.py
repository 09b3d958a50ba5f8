"""Optimistic descent and Adam against their papers, and Optax."""

import jax
import numpy as np
import optax
import pytest

import gradtx
from tests import oracle


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_optimistic_adam_like_optax():
    with jax.enable_x64(True):  # Optax's bias corrections are off by 1.3e-5 in float32
        p, gs = oracle.parameters(), oracle.gradients(steps=100)
        ours = oracle.run(gradtx.optimistic_adam(0.01), p, gs, np.float64)
        theirs = oracle.run(optax.optimistic_adam(0.01), p, gs, np.float64)
    np.testing.assert_allclose(ours, theirs, rtol=1e-8)


def optimistic(g, s, t, p):
    """Mokhtari et al. 2019."""
    before, s["g"] = s.get("g", g), g
    return -0.01 * (1.5 * g - 0.5 * before)


def optimistic_adam(g, s, t, p, b1=0.9, b2=0.999):
    """Daskalakis et al. 2018, algorithm 1, from Adam without Nesterov momentum."""
    s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * g * g
    a = s["m"] / (1 - b1**t) / (np.sqrt(s["v"] / (1 - b2**t)) + 1e-8)
    before, s["a"] = s.get("a", a), a
    return -2 * 0.01 * a + 0.01 * before


def test_optimistic_adam_takes_a_schedule():
    """Optax refuses it."""
    rate = gradtx.linear_schedule(0.01, 0.0, 50)
    p, gs = oracle.parameters(), oracle.gradients()
    path = oracle.run(gradtx.optimistic_adam(rate), p, gs)
    want = oracle.run(gradtx.optimistic_adam(0.01), p, gs)
    np.testing.assert_allclose(path[0], want[0], rtol=1e-6)
    assert np.abs(path[-1] - path[-2]).max() < 1e-3


@pytest.mark.paper("optimistic_gradient_descent")
def test_optimistic_is_the_papers():
    oracle.check(
        gradtx.optimistic_gradient_descent(0.01, beta=0.5), optimistic, rtol=1e-5, atol=2e-5
    )


@pytest.mark.paper("optimistic_adam", "optimistic_adam_v2")
@pytest.mark.parametrize("build", [gradtx.optimistic_adam, gradtx.optimistic_adam_v2])
def test_optimistic_adam_is_the_papers(build):
    oracle.check(build(0.01, nesterov=False), optimistic_adam, rtol=1e-5, atol=2e-5)
