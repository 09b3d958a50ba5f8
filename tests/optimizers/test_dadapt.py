"""D-Adaptation against its paper."""

import numpy as np
import pytest

import gradtx
from tests.optimizers.papers import check


def correction(t, b1=0.9, b2=0.999):
    return np.sqrt(1 - b2**t) / (1 - b1**t)


@pytest.mark.paper("dadapt_adamw")
@pytest.mark.parametrize("corrected", [True, False])
def test_dadapt_adamw_is_the_papers(corrected):
    """Defazio and Mishchenko 2023, algorithm 5, and the correction for the start at 0 or none."""
    b1, b2, root = 0.9, 0.999, np.sqrt(0.999)

    def update(g, s, t, p):
        rate = s.get("d", 1e-3) * (correction(t) if corrected else 1)
        past = s.get("s", np.zeros_like(g)) / (np.sqrt(s.get("v", 0.0)) + 1e-8)
        s["r"] = root * s.get("r", 0.0) + (1 - root) * rate * np.sum(g * past)
        s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * rate * g
        s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * g * g
        s["s"] = root * s.get("s", 0.0) + (1 - root) * rate * g
        s["d"] = max(s.get("d", 1e-3), s["r"] / ((1 - root) * np.sum(abs(s["s"]))))
        return -s["m"] / (np.sqrt(s["v"]) + 1e-8) - 0.1 * rate * p

    tx = gradtx.dadapt_adamw(estim_lr0=1e-3, weight_decay=0.1, bias_correction=corrected)
    check(tx, update)
