"""Yogi against its paper."""

import numpy as np
import pytest

import gradtx
from tests import oracle


def yogi(g, s, t, p, b1=0.9, b2=0.999):
    """Zaheer et al. 2018, algorithm 2, with both moments starting at 1e-6 and corrected."""
    s["m"] = b1 * s.get("m", 1e-6) + (1 - b1) * g
    v = s.get("v", 1e-6)
    s["v"] = v - (1 - b2) * np.sign(v - g * g) * g * g
    return -0.01 * s["m"] / (1 - b1**t) / (np.sqrt(s["v"] / (1 - b2**t)) + 1e-3)


def yogi_of_the_paper(g, s, t, p, b1=0.9, b2=0.999):
    """Zaheer et al. 2018, algorithm 2, from 0 and 1e-4."""
    v = s.get("v", 1e-4)
    s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * g
    s["v"] = v - (1 - b2) * np.sign(v - g * g) * g * g
    return -0.01 * s["m"] / (np.sqrt(s["v"]) + 1e-3)


@pytest.mark.paper("yogi")
def test_yogi_is_the_papers():
    oracle.check(gradtx.yogi(0.01), yogi, rtol=1e-5, atol=1e-5)


@pytest.mark.paper("yogi")
def test_yogi_from_the_start_of_the_paper():
    tx = gradtx.yogi(0.01, initial_accumulator_value=1e-4, initial_mean=0.0, bias_correction=False)
    oracle.check(tx, yogi_of_the_paper, rtol=1e-5, atol=1e-5)
