"""AdEMAMix against its papers."""

import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import mean, moments


@pytest.mark.paper("ademamix")
def test_ademamix_is_the_papers():
    """Pagliardini et al. 2024, algorithm 1, with alpha rising to 2 in 10 steps."""

    def update(g, s, t, p):
        m, v = moments(g, s, t, 0.8, 0.7)
        slow = mean(s, "slow", g, 0.9)
        alpha = 2 * min((t - 1) / 10, 1)
        return -0.05 * ((m + alpha * slow) / (np.sqrt(v + 0.2) + 0.1) + 0.3 * p)

    alpha = gradtx.linear_schedule(0.0, 2.0, 10)
    oracle.check(gradtx.ademamix(0.05, 0.8, 0.7, 0.9, alpha, 0.1, 0.2, weight_decay=0.3), update)


@pytest.mark.paper("simplified_ademamix")
def test_simplified_ademamix_is_the_papers():
    """Morwani et al. 2025."""

    def update(g, s, t, p):
        s["m"] = 0.8 * s.get("m", 0.0) + g
        n = mean(s, "n", g * g, 0.7) / (1 - 0.7**t)
        return -0.05 * ((s["m"] + 2 * g) / (np.sqrt(n + 0.2) + 0.1) + 0.3 * p)

    tx = gradtx.simplified_ademamix(0.05, 0.8, 0.7, 2.0, 0.1, 0.2, weight_decay=0.3)
    oracle.check(tx, update)


def test_ademamix_without_the_slow_momentum_is_adam():
    p, gs = oracle.parameters(), oracle.gradients()
    np.testing.assert_allclose(
        oracle.run(gradtx.ademamix(0.01, alpha=0.0), p, gs),
        oracle.run(gradtx.adam(0.01), p, gs),
        rtol=1e-6,
        atol=1e-6,
    )
