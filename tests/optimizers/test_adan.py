"""Adan against its paper."""

import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import mean


@pytest.mark.paper("adan")
@pytest.mark.parametrize("weight", [None, 0.4])
def test_adan_is_the_papers(weight):
    """Xie et al. 2022, algorithm 1, in the decays of Adam, with bias corrections."""
    w = 1 - 0.7 if weight is None else weight

    def update(g, s, t, p):
        d = g - s.get("g", g)
        s["g"] = g
        m, v = mean(s, "m", g, 0.8) / (1 - 0.8**t), mean(s, "v", d, 0.7) / (1 - 0.7**t)
        n = mean(s, "n", (g + w * d) ** 2, 0.6) / (1 - 0.6**t)
        return -0.05 * ((m + w * v) / (np.sqrt(n + 0.2) + 0.1) + 0.3 * p)

    tx = gradtx.adan(0.05, 0.8, 0.7, 0.6, 0.1, 0.2, 0.3, difference_weight=weight)
    oracle.check(tx, update)
