"""Adan against its paper."""

import numpy as np
import pytest

import gradtx
from tests import oracle


def mean(s, name, x, decay):
    s[name] = decay * s.get(name, 0.0) + (1 - decay) * x
    return s[name]


def adan(g, s, t, p, b1=0.02, b2=0.08, b3=0.01):
    """Xie et al. 2022, algorithm 1, in its own decays, with bias corrections."""
    d = g - s.get("g", g)
    s["g"] = g
    m, v = mean(s, "m", g, 1 - b1), mean(s, "v", d, 1 - b2)
    n = mean(s, "n", (g + (1 - b2) * d) ** 2, 1 - b3)
    m, v, n = m / (1 - (1 - b1) ** t), v / (1 - (1 - b2) ** t), n / (1 - (1 - b3) ** t)
    return -0.01 * (m + (1 - b2) * v) / (np.sqrt(n + 1e-8) + 1e-8)


@pytest.mark.paper("adan")
def test_adan_is_the_papers():
    oracle.check(gradtx.adan(0.01, difference_weight=0.92), adan, rtol=1e-5, atol=1e-5)
