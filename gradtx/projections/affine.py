"""Projection onto the solutions of linear equations."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.projections import leaves
from gradtx.types import Array, PyTree, TreeT


def projection_affine_set(x: TreeT, a: PyTree, b: Any) -> TreeT:
    r"""The nearest solution of linear equations :math:`A y = b`.

    .. math:: y = x + A^+ (b - A x)

    Args:
        x: the tree to project; real. All its leaves form one vector.
        a: :math:`A`, a tree like `x` whose leaves have one more axis in front, with one entry for
            each equation. For a vector `x` this is the matrix. Equations may be dependent.
        b: :math:`b`, a vector.

    Raises:
        ValueError: `a` is a different tree, has other shapes, or another number of equations than
            `b`; or no point solves all equations, so that the set is empty (checked unless `a` or
            `b` is traced; then the equations are solved by least squares).

    Equations are scaled to the same length first. The pseudoinverse is found by a singular value
    decomposition at each call. Singular values of at most 10 times the precision of the type times
    the longer side of `A`, relative to the largest, count as 0. Derivatives with respect to `A`
    hold at a constant rank. JAXopt solves the linear system of the optimality conditions instead.

    Source: G. H. Golub and C. F. Van Loan, Matrix Computations, 4th edition, 2013, section 5.5 (the
    pseudoinverse and the solution of least norm).

    >>> a = jnp.array([[1.0, 1.0, 0.0], [0.0, 0.0, 2.0]])
    >>> y = projection_affine_set(jnp.array([1.0, 3.0, 5.0]), a, jnp.array([2.0, 2.0]))
    >>> jnp.abs(y).round(5).tolist()
    [0.0, 2.0, 1.0]
    """
    name = "projection_affine_set"
    xs = leaves.arrays(name, x, real=True)
    parts = _equations(name, x, xs, a, np.shape(b))
    flat = leaves.joined(xs)
    if leaves.known(parts, b):
        _check_solvable(name, parts, b, jnp.finfo(flat.dtype).eps)
    if not (flat.size and np.size(b)):
        return x
    matrices = leaves.arrays(name, parts, real=True)
    rows = jnp.concatenate([m.reshape(len(m), -1).astype(flat.dtype) for m in matrices], 1)
    size = jax.lax.stop_gradient(_lengths(rows))
    rows, right = rows / size[:, None], jnp.asarray(b, flat.dtype) / size
    inverse = jnp.linalg.pinv(rows)

    def nearer(y: Array) -> Array:
        return y + _times(inverse, right - _times(rows, y))

    # The second step removes the error of rounding, which is in proportion to x.
    return leaves.rebuild(x, leaves.divided(nearer(nearer(flat)), xs))


def _equations(
    name: str, x: PyTree, xs: list[Array], a: PyTree, right: tuple[int, ...]
) -> list[Any]:
    """The leaves of `a`; raises ValueError unless they fit those of `x`, and `b`."""
    if len(right) != 1:
        raise ValueError(f"{name}: b must be a vector, not an array of {right}")
    parts = leaves.parts_like(name, "a", a, x)
    for path, leaf, part in zip(leaves.paths(x), xs, parts, strict=True):
        if np.shape(part) != (*right, *leaf.shape):
            raise ValueError(
                f"{name}: at {path!r} a has the shape {np.shape(part)}; with x of {leaf.shape} and "
                f"b of {right} it must be {(*right, *leaf.shape)}"
            )
    return parts


def _lengths(rows: Array) -> Array:
    """The norm of each row, 1 for one of zeros; no square over- or underflows."""
    top = jnp.max(jnp.abs(rows), 1)
    safe = jnp.where(top > 0, top, 1)
    return jnp.where(top > 0, safe * jnp.linalg.norm(rows / safe[:, None], axis=1), 1)


def _check_solvable(name: str, parts: list[Any], b: Any, precision: Any) -> None:
    """Raise ValueError if no point solves the equations, beyond rounding."""
    right = np.asarray(b, float)
    none = np.zeros((right.size, 0))
    every = [np.asarray(part, float).reshape(right.size, -1) for part in parts if np.size(part)]
    rows = np.concatenate([none, *every], 1)
    precision = float(precision) * max(rows.shape)
    size = np.linalg.norm(rows, axis=1)
    size = np.where(size > 0, size, 1)
    rows, right = rows / size[:, None], right / size
    solution = np.linalg.lstsq(rows, right, 10 * precision)[0]
    worst = np.max(np.abs(rows @ solution - right), initial=0)
    if worst > 100 * precision * (np.linalg.norm(solution) + np.max(np.abs(right), initial=0)):
        raise ValueError(f"{name}: the set is empty, since no point solves all {len(b)} equations")


def _times(matrix: Array, vector: Array) -> Array:
    return jnp.matmul(matrix, vector, precision=jax.lax.Precision.HIGHEST)
