"""Prodigy against its paper."""

import numpy as np
import pytest

import gradtx
from tests.optimizers.papers import check


def correction(t, b1=0.9, b2=0.999):
    return np.sqrt(1 - b2**t) / (1 - b1**t)


@pytest.mark.paper("prodigy")
@pytest.mark.parametrize(("safe", "corrected"), [(False, True), (True, True), (False, False)])
def test_prodigy_is_the_papers(safe, corrected):
    """Mishchenko and Defazio 2023, algorithm 4, with the weights of the authors' code."""
    b1, b2, b3, first = 0.9, 0.999, 0.99, 1e-2

    def update(g, s, t, p):
        s.setdefault("start", p)
        d = s.get("d", first)
        rate = d * (correction(t) if corrected else 1)
        s["r"] = b3 * s.get("r", 0.0) + d / first * rate * np.sum(g * (s["start"] - p))
        s["s"] = b3 * s.get("s", 0.0) + d / first * (d if safe else rate) * g
        s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * d * g
        s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * d * d * g * g
        s["d"] = max(d, 2 * s["r"] / np.sum(abs(s["s"])))
        return -rate * (s["m"] / (np.sqrt(s["v"]) + s["d"] * 1e-8) + 0.1 * p)

    tx = gradtx.prodigy(
        beta3=0.99,
        estim_lr0=1e-2,
        estim_lr_coef=2.0,
        weight_decay=0.1,
        safeguard_warmup=safe,
        bias_correction=corrected,
    )
    check(tx, update)
