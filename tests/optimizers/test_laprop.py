"""LaProp against its paper."""

import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import mean


@pytest.mark.paper("laprop")
def test_laprop_is_the_papers():
    """Ziyin et al. 2020, algorithm 1."""

    def update(g, s, t, p):
        root = np.sqrt(mean(s, "n", g * g, 0.7) / (1 - 0.7**t)) + 0.1
        m = mean(s, "m", g / root, 0.8)
        return -0.05 * (m / (1 - 0.8**t) + 0.3 * p)

    oracle.check(gradtx.laprop(0.05, 0.8, 0.7, 0.1, 0.3), update)
