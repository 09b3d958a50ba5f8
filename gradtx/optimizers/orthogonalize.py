"""Orthogonalization of matrices as a link of its own: Muon without its momentum."""

from typing import Any

import jax.numpy as jnp

from gradtx.checks import NonNegative, PositiveInt
from gradtx.composition.matrices import MuonDimensionNumbers
from gradtx.core.pair import GradientTransformation, transformation
from gradtx.engine.matrices import MatrixDimensions, matrixwise
from gradtx.transforms.orthogonal import (
    STANDARD,
    Preconditioning,
    check_dtype,
    coefficients,
    orthogonalized,
)
from gradtx.types import Array, DimensionNumbers, DType, EmptyState


@transformation
def orthogonalize(
    ns_coeffs: Any = STANDARD,
    ns_steps: PositiveInt = 5,
    eps: NonNegative = 1e-8,
    *,
    preconditioning: Preconditioning = "frobenius",
    weight_dimension_numbers: DimensionNumbers | None = None,
    ns_dtype: DType | None = None,
) -> GradientTransformation:
    r"""Bring the singular values of a matrix near 1: :math:`u = \mathrm{NS}(g)`.

    `NS` is the Newton-Schulz iteration of :func:`scale_by_muon`.

    Args:
        ns_coeffs: coefficients of the Newton-Schulz iteration, as in :func:`scale_by_muon`.
        ns_steps: iterations, at least 1.
        eps: added to the norm by which the first iterate is divided.
        preconditioning: the divisor of the first iterate.
        weight_dimension_numbers: `MuonDimensionNumbers`, a tree of them, or a function from the
            updates to such a tree; leaves whose numbers are None pass through unchanged.
        ns_dtype: the type in which to iterate, as in :func:`scale_by_muon`.

    State: none. After :func:`trace` this is the Muon of Keras and PyTorch, whose momentum has no
    bias correction; :func:`scale_by_muon` has one.

    Raises:
        ValueError: a leaf is not a matrix and has no dimension numbers.

    Source: K. Jordan et al., Muon: An Optimizer for Hidden Layers in Neural Networks, 2024.

    >>> tx, g = orthogonalize(), jnp.diag(jnp.array([3.0, 2.0]))
    >>> u = tx.update(g, tx.init(g))[0]
    >>> bool(jnp.all((jnp.diag(u) > 0.6) & (jnp.diag(u) < 1.3)))
    True
    """
    coeffs = coefficients("orthogonalize", ns_coeffs, ns_steps, preconditioning)
    check_dtype("orthogonalize", ns_dtype)

    def rule(g: Array, s: Any, t: Any) -> Any:
        rows = jnp.asarray(coeffs)
        return orthogonalized(g, rows, ns_steps, preconditioning, eps, ns_dtype), {}

    dimensions = MatrixDimensions(weight_dimension_numbers, MuonDimensionNumbers)
    return matrixwise(EmptyState, None, rule, dimensions)
