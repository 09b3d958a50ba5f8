"""Signum against its paper."""

import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import mean


@pytest.mark.paper("signum")
def test_signum_is_the_papers():
    """Bernstein et al. 2018, algorithm 2."""
    tx = gradtx.signum(0.05, 0.8)
    oracle.check(tx, lambda g, s, t, p: -0.05 * np.sign(mean(s, "m", g, 0.8)))
