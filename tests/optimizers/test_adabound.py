"""AdaBound against its paper."""

import numpy as np
import pytest

import gradtx
from tests import oracle


def moments(g, s, t, b1=0.9, b2=0.999):
    """Adam's moments, without and with the correction for their start at zero."""
    s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * g * g
    return s["m"] / (1 - b1**t), s["v"] / (1 - b2**t)


def adabound(gamma, rate=lambda t: 0.01, base=0.01):
    """Luo et al. 2019, algorithm 2, as in the authors' code."""

    def update(g, s, t, p):
        moments(g, s, t)
        final = 0.1 * rate(t) / base
        step = rate(t) * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) / (np.sqrt(s["v"]) + 1e-8)
        low, high = final * (1 - 1 / (gamma * t + 1)), final * (1 + 1 / (gamma * t))
        return -np.clip(step, low, high) * s["m"] - rate(t) * 0.1 * p

    return update


@pytest.mark.paper("adabound")
@pytest.mark.parametrize("gamma", [1e-3, 1.0])
def test_adabound_is_the_papers(gamma):
    oracle.check(gradtx.adabound(0.01, gamma=gamma, weight_decay=0.1), adabound(gamma))


def test_adabound_with_a_schedule_lowers_the_final_rate_too():
    schedule = gradtx.linear_schedule(0.01, 0.0, 50)
    tx = gradtx.adabound(schedule, gamma=0.1, weight_decay=0.1, base_lr=0.01)
    oracle.check(tx, adabound(0.1, lambda t: 0.01 * (1 - (t - 1) / 50)))
    with pytest.raises(ValueError, match="base_lr"):
        gradtx.adabound(schedule)
