"""AdaBelief against its paper."""

import numpy as np
import pytest

import gradtx
from tests import oracle


def mean(s, name, x, decay):
    s[name] = decay * s.get(name, 0.0) + (1 - decay) * x
    return s[name]


def adabelief(g, s, t, p, b1=0.9, b2=0.999, eps=1e-16):
    """Zhuang et al. 2020, algorithm 2."""
    m = mean(s, "m", g, b1)
    s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * (g - m) ** 2 + eps
    return -0.01 * (m / (1 - b1**t)) / (np.sqrt(s["v"] / (1 - b2**t)) + eps)


# Divisions by deviations of 1e-8, where a gradient is 0 at first, make steps of 1e3: a relative
# bound is the only one that means something.
@pytest.mark.paper("adabelief")
def test_adabelief_is_the_papers():
    oracle.check(gradtx.adabelief(0.01), adabelief, rtol=1e-4, atol=1e-4)
