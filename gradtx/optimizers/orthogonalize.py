"""Orthogonalization of matrices as a link by itself: Muon without its momentum."""

from typing import Any

import jax.numpy as jnp

from gradtx.checks import NonNegative
from gradtx.numerics import widen
from gradtx.optimizers.muon import _numbers, _scale_by_shape
from gradtx.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    transformation,
)
from gradtx.transforms.matrices import _as_matrices, _by_shape, _checked
from gradtx.transforms.orthogonal import (
    _STANDARD,
    Preconditioning,
    _coefficients,
    _orthogonalized,
)
from gradtx.types import EmptyState, Params, State, Updates


@transformation
def orthogonalize(
    ns_coeffs: Any = _STANDARD,
    ns_steps: int = 5,
    eps: NonNegative = 1e-8,
    *,
    preconditioning: Preconditioning = "frobenius",
    weight_dimension_numbers: Any = None,
) -> GradientTransformation:
    r"""Bring the singular values of a matrix near 1: :math:`u = \mathrm{NS}(g)`.

    Args:
        ns_coeffs: coefficients of the Newton-Schulz iteration, as in :func:`scale_by_muon`, as are
            the others.
        ns_steps: iterations, at least 1.
        eps: added to the norm by which the first iterate is divided.
        preconditioning: what the first iterate is divided by.
        weight_dimension_numbers: `MuonDimensionNumbers`, a tree of them, or a function from the
            updates to such a tree; leaves whose numbers are None pass as they are.

    State: none. After :func:`trace` this is the Muon of Keras and PyTorch, whose momentum has no
    bias correction; :func:`scale_by_muon` has one.

    Raises:
        ValueError: a leaf is no matrix and has no numbers.

    Source: K. Jordan et al., Muon: An Optimizer for Hidden Layers in Neural Networks, 2024.

    >>> tx, g = orthogonalize(), jnp.diag(jnp.array([3.0, 2.0]))
    >>> u = tx.update(g, tx.init(g))[0]
    >>> bool(jnp.all((jnp.diag(u) > 0.6) & (jnp.diag(u) < 1.3)))
    True
    """
    coeffs = _coefficients("orthogonalize", ns_coeffs, ns_steps, preconditioning)

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        del params, extra_args
        leaves, treedef = _checked("orthogonalize", updates)
        numbers = _numbers("orthogonalize", weight_dimension_numbers, updates)
        out = [g for _, g in leaves]
        seen = {
            i: _as_matrices("orthogonalize", path, g, numbers[i])
            for i, (path, g) in enumerate(leaves)
            if g is not None and numbers[i] is not None
        }
        results = _by_shape(
            [how.take(widen(out[i])) for i, how in seen.items()],
            lambda x: _orthogonalized(x, jnp.asarray(coeffs), ns_steps, preconditioning, eps),
        )
        for (i, how), u in zip(seen.items(), results, strict=True):
            out[i] = how.put(u).astype(out[i].dtype)
        return treedef.unflatten(out), state

    return GradientTransformationExtraArgs(lambda params: EmptyState(), update)


@transformation
def scale_by_shape(
    consistent_rms: NonNegative | None = None, weight_dimension_numbers: Any = None
) -> GradientTransformation:
    r"""Multiply a matrix by a factor of its shape alone, as Muon does.

    .. math:: u = g \sqrt{\max(1, d_{out} / d_{in})}
        \quad\text{or}\quad u = r\, g \sqrt{\max(d_{in}, d_{out})}

    Args:
        consistent_rms: :math:`r \ge 0`; None for the first formula.
        weight_dimension_numbers: as in :func:`orthogonalize`.

    State: none.

    Source: J. Liu et al., Muon is Scalable for LLM Training, 2025, arXiv:2502.16982.

    >>> tx = scale_by_shape()
    >>> tx.update(jnp.ones((1, 4)), tx.init(jnp.ones((1, 4))))[0].tolist()
    [[2.0, 2.0, 2.0, 2.0]]
    """
    return _scale_by_shape(weight_dimension_numbers, consistent_rms)
