"""Orthogonalization: bringing the singular values of a matrix near 1."""

from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.checks import check_integer
from gradtx.numerics import real_dtype
from gradtx.numerics.control import fold
from gradtx.types import Array

Preconditioning: TypeAlias = Literal["frobenius", "spectral", "aol", "schatten"]

STANDARD = (3.4445, -4.7750, 2.0315)


def coefficients(where: str, coeffs: Any, steps: int, how: str) -> Any:
    """The coefficients of the iterations as an array, after checking the arguments."""
    found = np.asarray(coeffs)
    if found.ndim not in (1, 2) or found.shape[-1] != 3 or found.shape[0] == 0:
        raise ValueError(
            f"{where}: ns_coeffs must be three numbers or a tuple of triples, not {coeffs}"
        )
    check_integer(where, "ns_steps", steps)
    if how not in get_args(Preconditioning):
        known = get_args(Preconditioning)
        raise ValueError(f"{where}: preconditioning must be one of {known}, not {how!r}")
    return found


def orthogonalized(x: Array, coeffs: Array, steps: int, how: str, eps: Any) -> Array:
    """Newton-Schulz iterations on a batch of matrices."""
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.mT  # the smaller Gram matrix
    rows = jnp.broadcast_to(coeffs, (steps, 3)) if coeffs.ndim == 1 else coeffs
    rows = rows.astype(real_dtype(x.dtype))

    def gram(x: Array) -> Array:
        return x @ x.mT.conj()

    def iterate(x: Array, a: Array, c: Array) -> Array:
        return c[0] * x + (c[1] * a + c[2] * a @ a) @ x

    if how == "frobenius":
        x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + eps)
    elif how == "spectral":
        x = x / (jnp.linalg.norm(x, ord=2, axis=(-2, -1), keepdims=True) + eps)
    else:
        a = gram(x)
        if how == "aol":
            size = jnp.sum(jnp.abs(a), axis=-1, keepdims=True)
        else:
            size = jnp.linalg.norm(a, axis=(-2, -1), keepdims=True)
        s = jax.lax.rsqrt(jnp.maximum(size, eps))
        x, rows, first = x * s, rows[1:], rows[0]
        x = iterate(x, a * s * s.mT, first)
    x = fold(lambda x, c: iterate(x, gram(x), c), x, rows)
    return x if wide else x.mT
