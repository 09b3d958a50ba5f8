"""Scion against its paper."""

import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.matrices import COEFFICIENTS, check, on_matrices, orthogonal
from tests.optimizers.papers import mean


@pytest.mark.quick(3)
@pytest.mark.paper("scion")
@pytest.mark.parametrize("constrained", [False, True])
@on_matrices
def test_scion(name, shape, constrained):
    """Pethick et al. 2025, algorithms 1 and 2, with the spectral norm."""

    def update(g, s, t, p):
        factor = np.sqrt(g.shape[1] / g.shape[0])
        u = 3.0 * factor * orthogonal(mean(s, "m", g, 0.8))
        return -0.05 * (u + (p if constrained else 0))

    tx = gradtx.scion(
        0.05, 0.8, 3.0, eps=0.1, constrained=constrained, ns_coeffs=COEFFICIENTS, ns_steps=4
    )
    check(tx, update, name, shape)


@pytest.mark.paper("scion")
@pytest.mark.parametrize("shape", [(5,), (3, 4), (1, 3), (2, 3, 4)])
def test_what_scion_does_with_other_leaves(shape):
    """Signs over the inputs, or a root mean square of 1."""

    def update(g, s, t, p):
        m = mean(s, "m", g, 0.8)
        vector = len(shape) == 1
        u = m / (np.sqrt(np.mean(m * m)) + 0.1) if vector else np.sign(m) / shape[0]
        return -0.05 * (7.0 * u + p)

    tx = gradtx.scion(
        0.05, 0.8, other_radius=7.0, eps=0.1, weight_dimension_numbers=lambda params: None
    )
    oracle.check(tx, update, atol=1e-7, shape=shape, dtype=np.float64)
