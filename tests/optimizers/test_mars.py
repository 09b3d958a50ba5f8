"""MARS beside a transcription of its paper, the approximate version."""

import numpy as np
import pytest

import gradtx
from tests import oracle


def corrected(g, slots, t, b1, gamma=0.025, max_norm=1.0):
    last = slots.get("last", g)
    slots["last"] = g
    c = g + gamma * b1 / (1 - b1) * (g - last)
    length = np.linalg.norm(c)
    return c * max_norm / length if max_norm is not None and length > max_norm else c


@pytest.mark.paper("mars_adamw")
@pytest.mark.parametrize("max_norm", [None, 1.0, 3.0])
def test_mars_adamw(max_norm):
    b1, b2 = 0.95, 0.99

    def update(g, slots, t, p):
        c = corrected(g, slots, t, b1, 0.1, max_norm)
        mu = slots["mu"] = b1 * slots.get("mu", 0) + (1 - b1) * c
        nu = slots["nu"] = b2 * slots.get("nu", 0) + (1 - b2) * c**2
        u = mu / (1 - b1**t) / (np.sqrt(nu / (1 - b2**t)) + 1e-8)
        return -0.02 * (u + 0.1 * p)

    tx = gradtx.mars_adamw(0.02, weight_decay=0.1, gamma=0.1, max_norm=max_norm)
    oracle.check(tx, update)


@pytest.mark.paper("mars_lion")
def test_mars_lion():
    def update(g, slots, t, p):
        mu = slots["mu"] = 0.9 * slots.get("mu", 0) + 0.1 * corrected(g, slots, t, 0.9)
        return -0.02 * (np.sign(mu) + 0.1 * p)

    oracle.check(gradtx.mars_lion(0.02, 0.9, weight_decay=0.1), update)


@pytest.mark.paper("mars")
def test_before_any_optimizer_and_with_a_schedule():
    weights = np.linspace(0.0, 0.1, 50)

    def update(g, slots, t, p):
        c = corrected(g, slots, t, 0.9, weights[t - 1], 2.0)
        m = slots["m"] = c + 0.9 * slots.get("m", 0)
        return -0.02 * m

    link = gradtx.mars(0.9, gamma=lambda count: 0.1 / 49 * count, max_norm=2.0)
    oracle.check(gradtx.chain(link, gradtx.sgd(0.02, momentum=0.9)), update)
