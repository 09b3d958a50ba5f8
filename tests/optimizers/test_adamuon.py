"""AdaMuon against its paper."""

import numpy as np
import pytest

import gradtx
from tests.optimizers.matrices import (
    COEFFICIENTS,
    check,
    check_named,
    on_matrices,
    orthogonal,
    scaled,
)
from tests.optimizers.papers import mean


@pytest.mark.quick(2)
@pytest.mark.paper("adamuon")
@on_matrices
def test_adamuon(name, shape):
    """Si et al. 2025, algorithm 1."""

    def update(g, s, t, p):
        o = orthogonal(np.sign(mean(s, "m", g, 0.8)))
        v = mean(s, "v", o * o, 0.8)
        return -0.05 * (scaled(o / (np.sqrt(v) + 0.1), 0.3) + 0.4 * p)

    tx = gradtx.adamuon(0.05, 0.8, 0.1, 0.4, rms=0.3, ns_coeffs=COEFFICIENTS, ns_steps=4)
    check(tx, update, name, shape)


def test_coefficients_by_name():
    check_named(gradtx.scale_by_adamuon)
