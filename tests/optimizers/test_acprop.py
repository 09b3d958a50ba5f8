"""ACProp against its paper."""

import numpy as np
import pytest

import gradtx
from tests import oracle


def mean(s, name, x, decay):
    s[name] = decay * s.get(name, 0.0) + (1 - decay) * x
    return s[name]


def acprop(g, s, t, p, b1=0.9, b2=0.999, eps=1e-16):
    """Zhuang et al. 2021, with the denominator of the step before."""
    root = np.sqrt(s["v"] / (1 - b2 ** (t - 1))) if t > 1 else 1.0
    s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * (g - s.get("m", 0.0)) ** 2 + eps
    mean(s, "m", g, b1)
    return -0.001 * g / (root + eps)


# Divisions by deviations of 1e-8, where a gradient is 0 at first, make steps of 1e3: a relative
# bound is the only one that means something.
@pytest.mark.paper("acprop")
def test_acprop_is_the_papers():
    oracle.check(gradtx.acprop(0.001), acprop, rtol=1e-4, atol=1e-4)
