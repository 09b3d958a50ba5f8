"""Tiger against its authors' formulas."""

import numpy as np
import pytest

import gradtx
from tests import oracle


@pytest.mark.paper("tiger")
def test_tiger_is_the_authors():
    def update(g, s, t, p):
        s["m"] = 0.965 * s.get("m", 0.0) + 0.035 * g
        return -0.01 * (np.sign(s["m"]) + 0.1 * p)

    oracle.check(gradtx.tiger(0.01, weight_decay=0.1), update)
