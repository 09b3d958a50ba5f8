"""Signum against its paper."""

import numpy as np
import pytest

import gradtx
from tests import oracle


def signum(g, s, t, p):
    """Bernstein et al. 2018, algorithm 2."""
    s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * g
    return -0.01 * np.sign(s["m"])


@pytest.mark.paper("signum")
def test_signum_is_the_papers():
    oracle.check(gradtx.signum(0.01), signum, rtol=1e-5, atol=2e-5)
