"""QHAdam against its paper."""

import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import moments


@pytest.mark.paper("qhadam")
def test_qhadam_is_the_papers():
    """Ma and Yarats 2019, section 4."""

    def update(g, s, t, p):
        m, v = moments(g, s, t, 0.8, 0.7)
        root = np.sqrt(0.6 * v + 0.4 * g * g)
        return -0.05 * ((0.9 * m + 0.1 * g) / (root + 0.1) + 0.3 * p)

    oracle.check(gradtx.qhadam(0.05, 0.8, 0.7, 0.9, 0.6, 0.1, 0.3), update)


def test_qhadam_at_one_is_adam():
    p, gs = oracle.parameters(), oracle.gradients()
    np.testing.assert_allclose(
        oracle.run(gradtx.qhadam(0.01, b1=0.9, nu1=1.0), p, gs),
        oracle.run(gradtx.adam(0.01), p, gs),
        atol=1e-6,
    )
