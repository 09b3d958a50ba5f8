"""Small private functions of Optax that public code bases import."""

from typing import Any

import jax
import jax.numpy as jnp

from gradtx.numerics.keys import is_key
from gradtx.transforms.orthogonal import coefficients, orthogonalized
from gradtx.types import Array, DType

NO_PARAMS_MSG = "This transformation needs the parameters: call update(updates, state, params)."


def canonicalize_dtype(dtype: Any) -> DType | None:
    """The type that JAX computes in for `dtype`; None stays.

    >>> canonicalize_dtype("float32"), canonicalize_dtype(None)
    (dtype('float32'), None)
    """
    return None if dtype is None else jax.dtypes.canonicalize_dtype(dtype)


def canonicalize_key(key_or_seed: Any) -> Array:
    """A random key: the one that is given, or that of a seed."""
    return key_or_seed if is_key(key_or_seed) else jax.random.key(key_or_seed)


def orthogonalize_via_newton_schulz(
    x: Array,
    ns_coeffs: Any,
    ns_steps: int = 5,
    preconditioning: str = "frobenius",
    eps: Any = 1e-8,
    dimension_numbers: Any = None,
) -> Array:
    """One matrix after the Newton-Schulz iterations of Muon.

    Raises:
        ValueError: `x` is no matrix, or there are `dimension_numbers`.
    """
    if x.ndim != 2 or dimension_numbers is not None:
        raise ValueError(
            f"a matrix is needed, not {x.shape}; gradtx.scale_by_muon takes leaves of other "
            "shapes, with weight_dimension_numbers"
        )
    coeffs = coefficients("orthogonalize_via_newton_schulz", ns_coeffs, ns_steps, preconditioning)
    return orthogonalized(x[None], jnp.asarray(coeffs), ns_steps, preconditioning, eps)[0]
