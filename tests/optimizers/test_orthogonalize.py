"""Orthogonalizing and its factor of the shape, against the formulas."""

import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import newton_schulz


@pytest.mark.paper("orthogonalize")
@pytest.mark.parametrize("shape", [(4, 3), (3, 5)])
def test_orthogonalize_is_the_papers(shape):
    """Jordan et al. 2024; with the factor of Liu et al. 2025, equation 4."""
    coeffs = [(3.0, -4.0, 1.5)] * 3

    def update(g, s, t, p):
        return -0.05 * 0.3 * np.sqrt(max(shape)) * newton_schulz(g, coeffs)

    tx = gradtx.chain(
        gradtx.orthogonalize((3.0, -4.0, 1.5), 3, 0.1),
        gradtx.scale_by_shape(0.3),
        gradtx.scale(-0.05),
    )
    oracle.check(tx, update, atol=1e-7, shape=shape, dtype=np.float64)


@pytest.mark.paper("orthogonalize")
@pytest.mark.parametrize("shape", [(4, 3), (3, 5)])
def test_the_other_factor_and_axes(shape):
    """Rows and columns change places; the spectral norm is known better."""
    numbers = gradtx.MuonDimensionNumbers(1, 0)

    def update(g, s, t, p):
        factor = np.sqrt(max(1.0, shape[0] / shape[1]))
        return -0.05 * factor * newton_schulz(g, [(3.0, -4.0, 1.5)] * 5, "spectral")

    tx = gradtx.chain(
        gradtx.orthogonalize(
            (3.0, -4.0, 1.5), 5, 0.1, preconditioning="spectral", weight_dimension_numbers=numbers
        ),
        gradtx.scale_by_shape(weight_dimension_numbers=numbers),
        gradtx.scale(-0.05),
    )
    oracle.check(tx, update, atol=1e-7, shape=shape, dtype=np.float64)
