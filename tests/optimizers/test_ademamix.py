"""AdEMAMix against its papers."""

import numpy as np
import pytest

import gradtx
from tests import oracle


def mean(s, name, x, decay):
    s[name] = decay * s.get(name, 0.0) + (1 - decay) * x
    return s[name]


def ademamix(g, s, t, p, b1=0.9, b2=0.999, b3=0.99):
    """Pagliardini et al. 2024, algorithm 1, with alpha rising to 5 in 10 steps."""
    m1, m2, v = mean(s, "m1", g, b1), mean(s, "m2", g, b3), mean(s, "v", g * g, b2)
    alpha = 5 * min((t - 1) / 10, 1)
    u = (m1 / (1 - b1**t) + alpha * m2) / (np.sqrt(v / (1 - b2**t)) + 1e-8)
    return -0.01 * (u + 0.1 * p)


def simplified(g, s, t, p, b1=0.99, b2=0.95):
    """Morwani et al. 2025, with alpha 2."""
    s["m"] = b1 * s.get("m", 0.0) + g
    n = mean(s, "n", g * g, b2) / (1 - b2**t)
    return -1e-3 * (s["m"] + 2 * g) / (np.sqrt(n) + 1e-8)


def test_ademamix_without_the_slow_momentum_is_adam():
    p, gs = oracle.parameters(), oracle.gradients()
    np.testing.assert_allclose(
        oracle.run(gradtx.ademamix(0.01, alpha=0.0), p, gs),
        oracle.run(gradtx.adam(0.01), p, gs),
        rtol=1e-6,
        atol=1e-6,
    )


@pytest.mark.paper("ademamix")
def test_ademamix_is_the_papers():
    oracle.check(
        gradtx.ademamix(
            0.01, b3=0.99, alpha=gradtx.linear_schedule(0.0, 5.0, 10), weight_decay=0.1
        ),
        ademamix,
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.paper("simplified_ademamix")
def test_simplified_ademamix_is_the_papers():
    oracle.check(gradtx.simplified_ademamix(1e-3, alpha=2.0), simplified, rtol=1e-5, atol=1e-5)
