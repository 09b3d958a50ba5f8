"""AdaBound against its paper."""

import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import moments


def adabound(gamma, rate=lambda t: 0.05, base=0.05, final=lambda t: 0.2):
    """Luo et al. 2019, algorithm 2, as in the authors' code."""

    def update(g, s, t, p):
        moments(g, s, t, 0.8, 0.7)
        limit = final(t) * rate(t) / base
        step = rate(t) * np.sqrt(1 - 0.7**t) / (1 - 0.8**t) / (np.sqrt(s["v"]) + 0.1)
        low, high = limit * (1 - 1 / (gamma * t + 1)), limit * (1 + 1 / (gamma * t))
        return -np.clip(step, low, high) * s["m"] - rate(t) * 0.3 * p

    return update


@pytest.mark.paper("adabound")
@pytest.mark.parametrize("gamma", [1e-2, 1.0])
def test_adabound_is_the_papers(gamma):
    tx = gradtx.adabound(0.05, 0.8, 0.7, 0.1, 0.2, gamma, weight_decay=0.3)
    oracle.check(tx, adabound(gamma))


@pytest.mark.paper("adabound")
def test_adabound_with_a_schedule_lowers_the_final_rate_too():
    schedule = gradtx.linear_schedule(0.05, 0.0, 50)
    options = {"gamma": 0.1, "weight_decay": 0.3, "base_lr": 0.04}
    tx = gradtx.adabound(schedule, 0.8, 0.7, 0.1, 0.2, **options)
    rate = lambda t: 0.05 * (1 - (t - 1) / 50)  # noqa: E731
    oracle.check(tx, adabound(0.1, rate, 0.04))
    final = gradtx.linear_schedule(0.2, 0.0, 50)
    tx = gradtx.adabound(schedule, 0.8, 0.7, 0.1, final, **options)
    oracle.check(tx, adabound(0.1, rate, 0.04, lambda t: 4 * rate(t)))
    with pytest.raises(ValueError, match="base_lr"):
        gradtx.adabound(schedule)
