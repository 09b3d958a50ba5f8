"""QHAdam against its paper."""

import numpy as np
import pytest

import gradtx
from tests import oracle


def moments(g, s, t, b1=0.9, b2=0.999):
    """Adam's moments, without and with the correction for their start at zero."""
    s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * g * g
    return s["m"] / (1 - b1**t), s["v"] / (1 - b2**t)


@pytest.mark.paper("qhadam")
def test_qhadam_is_the_papers():
    """Ma and Yarats 2019, section 4."""

    def update(g, s, t, p):
        m, v = moments(g, s, t, b1=0.995)
        root = np.sqrt(0.2 * g * g + 0.8 * v)
        return -0.01 * ((0.3 * g + 0.7 * m) / (root + 1e-8) + 0.1 * p)

    oracle.check(gradtx.qhadam(0.01, nu2=0.8, weight_decay=0.1), update)


def test_qhadam_at_one_is_adam():
    p, gs = oracle.parameters(), oracle.gradients()
    np.testing.assert_allclose(
        oracle.run(gradtx.qhadam(0.01, b1=0.9, nu1=1.0), p, gs),
        oracle.run(gradtx.adam(0.01), p, gs),
        atol=1e-6,
    )
