"""AdaBelief against its paper."""

import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import look_ahead, mean


@pytest.mark.paper("adabelief")
@pytest.mark.parametrize("nesterov", [False, True])
def test_adabelief_is_the_papers(nesterov):
    """Zhuang et al. 2020, algorithm 2."""

    def update(g, s, t, p):
        m = mean(s, "m", g, 0.8)
        v = s["v"] = 0.7 * s.get("v", 0.0) + 0.3 * (g - m) ** 2 + 0.2
        m = look_ahead(m, g, t, 0.8) if nesterov else m / (1 - 0.8**t)
        return -0.05 * m / (np.sqrt(v / (1 - 0.7**t)) + 0.1)

    oracle.check(gradtx.adabelief(0.05, 0.8, 0.7, 0.1, 0.2, nesterov=nesterov), update)
