"""LaProp against its paper."""

import numpy as np
import pytest

import gradtx
from tests import oracle


@pytest.mark.paper("laprop")
def test_laprop_is_the_papers():
    """Ziyin et al. 2020, algorithm 1."""

    def update(g, s, t, p):
        s["n"] = 0.999 * s.get("n", 0.0) + 0.001 * g * g
        root = np.sqrt(s["n"] / (1 - 0.999**t)) + 1e-15
        s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * g / root
        return -0.01 * (s["m"] / (1 - 0.9**t) + 0.1 * p)

    oracle.check(gradtx.laprop(0.01, weight_decay=0.1), update)
