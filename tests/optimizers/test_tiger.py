"""Tiger against its authors' formulas."""

import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import mean


@pytest.mark.paper("tiger")
def test_tiger_is_the_authors():
    tx = gradtx.tiger(0.05, 0.8, 0.3)
    oracle.check(tx, lambda g, s, t, p: -0.05 * (np.sign(mean(s, "m", g, 0.8)) + 0.3 * p))
