"""Yogi against its paper."""

import numpy as np
import pytest

import gradtx
from tests import oracle


def yogi(g, s, t, start=1e-6, root=0.0):
    """Zaheer et al. 2018, algorithm 2, with both moments starting alike and corrected."""
    s["m"] = 0.8 * s.get("m", start) + 0.2 * g
    v = s.get("v", start)
    s["v"] = v - 0.3 * np.sign(v - g * g) * g * g
    return s["m"] / (1 - 0.8**t) / (np.sqrt(s["v"] / (1 - 0.7**t) + root) + 0.1)


def yogi_of_the_paper(g, s, t, p):
    """Zaheer et al. 2018, algorithm 2, from 0 and 1e-4."""
    v = s.get("v", 1e-4)
    s["m"] = 0.8 * s.get("m", 0.0) + 0.2 * g
    s["v"] = v - 0.3 * np.sign(v - g * g) * g * g
    return -0.05 * s["m"] / (np.sqrt(s["v"]) + 0.1)


@pytest.mark.paper("yogi")
def test_yogi_is_the_papers():
    oracle.check(gradtx.yogi(0.05, 0.8, 0.7, 0.1), lambda g, s, t, p: -0.05 * yogi(g, s, t))
    tx = gradtx.chain(gradtx.scale_by_yogi(0.8, 0.7, 0.1, 0.2, 0.4), gradtx.scale(-0.05))
    oracle.check(tx, lambda g, s, t, p: -0.05 * yogi(g, s, t, 0.4, 0.2))


@pytest.mark.paper("yogi")
def test_yogi_from_the_start_of_the_paper():
    start = {"initial_accumulator_value": 1e-4, "initial_mean": 0.0, "bias_correction": False}
    oracle.check(gradtx.yogi(0.05, 0.8, 0.7, 0.1, **start), yogi_of_the_paper)
