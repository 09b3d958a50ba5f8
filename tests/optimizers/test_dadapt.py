"""D-Adaptation against its paper."""

import numpy as np
import pytest

import gradtx
from tests.optimizers.papers import check, mean


@pytest.mark.paper("dadapt_adamw")
@pytest.mark.parametrize("corrected", [True, False])
def test_dadapt_adamw_is_the_papers(corrected):
    """Defazio and Mishchenko 2023, algorithm 5, and the correction for the start at 0 or none."""
    b1, b2, root, grown = 0.8, 0.7, np.sqrt(0.7), []

    def update(g, s, t, p):
        d = s.get("d", 0.01)
        rate = 0.5 * d * (np.sqrt(1 - b2**t) / (1 - b1**t) if corrected else 1)
        past = s.get("s", 0.0 * g) / (np.sqrt(s.get("v", 0.0)) + 0.1)
        mean(s, "r", rate * np.sum(g * past), root)
        m, v = mean(s, "m", rate * g, b1), mean(s, "v", g * g, b2)
        mean(s, "s", rate * g, root)
        s["d"] = max(d, s["r"] / ((1 - root) * np.sum(abs(s["s"]))))
        grown.append(s["d"] > d)
        return -m / (np.sqrt(v) + 0.1) - 0.3 * rate * p

    tx = gradtx.dadapt_adamw(0.5, (b1, b2), 0.1, 0.01, 0.3, bias_correction=corrected)
    check(tx, update, drift=0.5)
    assert sum(grown) >= 3
