"""diffGrad against its paper."""

import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import moments


@pytest.mark.paper("diffgrad")
def test_diffgrad_is_the_papers():
    """Dubey et al. 2019, algorithm 1."""

    def update(g, s, t, p):
        m, v = moments(g, s, t, 0.8, 0.7)
        friction = 1 / (1 + np.exp(-np.abs(s.get("g", 0.0) - g)))
        s["g"] = g
        return -0.05 * (friction * m / (np.sqrt(v) + 0.1) + 0.3 * p)

    oracle.check(gradtx.diffgrad(0.05, 0.8, 0.7, 0.1, 0.3), update)
