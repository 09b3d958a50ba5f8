"""Products of matrices, and their Hermitian parts."""

from typing import Any

import jax
import jax.numpy as jnp

from gradtx.types import Array


def product(a: Array, b: Array, precision: Any = None) -> Array:
    """``a @ b``, which on a TPU is fused with nothing.

    A TPU's compiler takes seconds over each float32 product that is unlike the others of a program,
    also where only the additions fused with it differ. Products that stand alone are alike:
    `scale_by_soap` by products compiles in half the time or less (see
    :func:`gradtx.linalg.eigenbasis.sweep`).

    >>> product(jnp.ones((1, 2)), jnp.ones((2, 1))).tolist()
    [[2.0]]
    """

    def plain(a: Array, b: Array) -> Array:
        return jnp.matmul(a, b, precision=precision)

    def alone(a: Array, b: Array) -> Array:
        factors = jax.lax.optimization_barrier((a, b))
        return jax.lax.optimization_barrier(plain(*factors))

    return jax.lax.platform_dependent(a, b, tpu=alone, default=plain)


def hermitian_part(x: Array) -> Array:
    """The Hermitian part of matrices, the mean of each and its conjugate transpose.

    >>> hermitian_part(jnp.array([[1.0, 2.0], [4.0, 3.0]])).tolist()
    [[1.0, 3.0], [3.0, 3.0]]
    """
    return (x + x.mT.conj()) / 2
