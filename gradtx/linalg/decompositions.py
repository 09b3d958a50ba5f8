"""Eigenvectors, singular vectors and orthonormal bases, with derivatives also where several fit.

Where eigenvalues are equal, or all are 0, any basis of their space will do. JAX's derivatives
divide by the gap between them, and are NaN there. Here vectors of one space do not turn towards
each other, which is right for all that does not depend on the choice of the basis.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gradtx.linalg.products import hermitian_part
from gradtx.numerics import abs_sq, divide, root
from gradtx.programs.tracing import is_tracer
from gradtx.types import Array


def factorized(factorize: Callable[..., Any], x: Array, *beside: Array) -> Any:
    """``factorize(x, *beside)`` of matrices, one after the other on a CPU, or outside of ``jit``.

    On a CPU a batched factorization waits in one of XLA's threads until the others have done their
    part. Where as many run at once as there are threads, all wait, and the program never ends.

    Args:
        factorize: from matrices to a tree of arrays, such as ``jnp.linalg.eigh``; solvers of
            triangular systems wait in the same way.
        x: matrices, in the last two axes of an array.
        beside: other arrays that it takes, with the same batch.

    >>> factorized(jnp.linalg.eigh, 2 * jnp.ones((1, 3, 1, 1)))[0].shape
    (1, 3, 1)
    """
    if x.ndim == 2 or not x.size:
        return factorize(x, *beside)
    batches = [y.reshape(-1, *y.shape[-2:]) for y in (x, *beside)]
    if is_tracer(x):

        def one_by_one(*batches: Array) -> Any:
            return jax.lax.map(lambda each: factorize(*each), batches)

        factors = jax.lax.platform_dependent(*batches, cpu=one_by_one, default=factorize)
    else:
        factors = jax.tree.map(lambda *each: jnp.stack(each), *map(factorize, *batches))
    return jax.tree.map(lambda y: y.reshape(*x.shape[:-2], *y.shape[1:]), factors)


@jax.custom_jvp
def eigenvectors(x: Array) -> Array:
    """The eigenvectors of Hermitian matrices, as columns; those of small eigenvalues first.

    >>> x = jnp.zeros((2, 2))
    >>> jax.jvp(eigenvectors, (x,), (jnp.ones((2, 2)),))[1].tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """
    vectors: Array = factorized(jnp.linalg.eigh, x)[1]
    return vectors


@eigenvectors.defjvp
def _turned_eigenvectors(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (x,), (change,) = primals, tangents
    v = eigenvectors(x)
    values = jnp.sum((v.conj() * (x @ v)).real, -2)
    turn = _over(v.mT.conj() @ hermitian_part(change) @ v, _gaps(values), values[..., None])
    return v, v @ turn


@jax.custom_jvp
def singular_vectors(x: Array) -> tuple[Array, Array]:
    """The left and the right singular vectors of matrices, as columns; largest values first.

    There are as many as the shorter side is long.

    >>> [v.tolist() for v in singular_vectors(jnp.array([[2.0, 0.0], [0.0, 1.0]]))]
    [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]]
    """
    u, _, vh = factorized(lambda x: jnp.linalg.svd(x, full_matrices=False), x)
    return u, vh.mT.conj()


@singular_vectors.defjvp
def _turned_singular_vectors(primals: Any, tangents: Any) -> Any:
    (x,), (change,) = primals, tangents
    u, v = singular_vectors(x)
    sizes = root(jnp.sum(abs_sq(x @ v), -2))
    left = _turned(x.mT.conj(), change.mT.conj(), u, sizes)
    return (u, v), (left, _turned(x, change, v, sizes))


def _turned(x: Array, change: Array, v: Array, sizes: Array) -> Array:
    """The change of right singular vectors: of eigenvectors of ``x* x``."""
    moved = change.mT.conj() @ (x @ v) + x.mT.conj() @ (change @ v)
    within = v.mT.conj() @ moved
    sums = sizes[..., None, :] + sizes[..., :, None]
    turn = _over(divide(within, sums), _gaps(sizes), sizes[..., None])
    columns = sizes[..., None, :]
    beside = _over(divide(moved - v @ within, columns), columns, sizes[..., None])
    return v @ turn + beside


def _gaps(values: Array) -> Array:
    return values[..., None, :] - values[..., :, None]


def _over(x: Array, y: Array, sizes: Array) -> Array:
    """``x / y``, and 0 where `y` is 0 but for the rounding of the largest of `sizes`."""
    largest = jnp.max(jnp.abs(sizes), (-2, -1), keepdims=True, initial=0)
    nothing = jnp.abs(y) <= 10 * jnp.finfo(y.dtype).eps * largest
    return jnp.where(nothing, 0, x / jnp.where(nothing, 1, y))


@jax.custom_jvp
def orthonormal(x: Array) -> Array:
    """Orthonormal bases of the columns of matrices: `Q` of ``x = Q R``.

    >>> orthonormal(jnp.eye(2)).shape
    (2, 2)
    """
    basis: Array = factorized(lambda x: jnp.linalg.qr(x)[0], x)
    return basis


@orthonormal.defjvp
def _turned_basis(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (x,), (change,) = primals, tangents
    q = orthonormal(x)
    r = jnp.triu(q.mT.conj() @ x)
    sizes = jnp.abs(jnp.diagonal(r, axis1=-2, axis2=-1))[..., None, :]
    largest = jnp.max(sizes, -1, keepdims=True, initial=0)
    # A column that adds nothing to those before it may turn to any side; it does not.
    free = sizes <= 10 * jnp.finfo(sizes.dtype).eps * largest
    one = jnp.eye(r.shape[-1], dtype=r.dtype)
    moved = _divided(jnp.where(free, 0, change), jnp.where(free, one, r))
    within = q.mT.conj() @ moved
    lower = jnp.tril(within, -1)
    turn = lower - lower.mT.conj() + one * (within - within.real) - within
    return q, moved + q @ turn


def _divided(x: Array, r: Array) -> Array:
    """``x`` times the inverses of upper triangular matrices `r`."""

    def solve(_: Any, x: Array, transpose_a: bool = False) -> Any:
        of_matrices = functools.partial(jax.lax.linalg.triangular_solve, transpose_a=transpose_a)
        return factorized(of_matrices, r, x)

    # JAX before 0.10 cannot transpose the loop in a branch that `factorized` makes.
    transposed = functools.partial(solve, transpose_a=True)
    solution: Array = jax.lax.custom_linear_solve(
        lambda y: y @ r, x, solve, transpose_solve=transposed
    )
    return solution
