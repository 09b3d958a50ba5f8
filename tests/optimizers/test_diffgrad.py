"""diffGrad against its paper."""

import numpy as np
import pytest

import gradtx
from tests import oracle


def moments(g, s, t, b1=0.9, b2=0.999):
    """Adam's moments, without and with the correction for their start at zero."""
    s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * g * g
    return s["m"] / (1 - b1**t), s["v"] / (1 - b2**t)


@pytest.mark.paper("diffgrad")
def test_diffgrad_is_the_papers():
    def update(g, s, t, p):
        m, v = moments(g, s, t)
        friction = 1 / (1 + np.exp(-np.abs(s.get("g", 0.0) - g)))
        s["g"] = g
        return -0.01 * (friction * m / (np.sqrt(v) + 1e-8) + 0.1 * p)

    oracle.check(gradtx.diffgrad(0.01, weight_decay=0.1), update)
