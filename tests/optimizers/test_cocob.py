"""COCOB against its paper."""

import numpy as np
import pytest

import gradtx
from tests.optimizers.papers import check


@pytest.mark.paper("cocob")
@pytest.mark.parametrize("alpha", [20.0, 2.0])
def test_cocob_is_the_papers(alpha):
    """Orabona and Tommasi 2017, algorithm 2, on decayed gradients."""

    def update(g, s, t, p):
        s.setdefault("w", p)
        g = 0.5 * (g + 0.1 * p)
        s["L"] = np.maximum(s.get("L", 0.3), abs(g))
        s["G"] = s.get("G", 0.0) + abs(g)
        s["R"] = np.maximum(s.get("R", 0.0) - g * (p - s["w"]), 0)
        s["theta"] = s.get("theta", 0.0) - g
        bet = s["theta"] / (s["L"] * np.maximum(s["G"] + s["L"], alpha * s["L"]))
        return s["w"] + bet * (s["L"] + s["R"]) - p

    check(gradtx.cocob(0.5, alpha, 0.3, weight_decay=0.1), update)
