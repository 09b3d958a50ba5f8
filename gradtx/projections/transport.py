"""Projections onto matrices without negative entries whose rows and columns have given sums.

Source: the dual problem is that of M. Blondel, V. Seguy and A. Rolet, Smooth and Sparse Optimal
Transport, 2018, arXiv:1710.06276; its Newton method that of X. Li, D. Sun and K.-C. Toh, On the
Efficient Computation of a Generalized Jacobian of the Projector over the Birkhoff Polytope, 2020,
arXiv:1702.05934.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.checks import NonNegative, check, check_integer
from gradtx.numerics import divide
from gradtx.projections import leaves
from gradtx.projections.simplex import threshold
from gradtx.types import Array, TreeT


def projection_transport(
    tree: TreeT, marginals: tuple[Any, Any], *, tol: float | None = None, max_steps: int = 500
) -> TreeT:
    r"""The nearest matrices without negative entries whose rows and columns have given sums.

    .. math:: P = \max(x + \alpha 1^\top + 1 \beta^\top, 0), \qquad
        P 1 = a, \quad P^\top 1 = b

    Args:
        tree: the matrices to project, in the last two axes of each leaf; real. An entry of
            :math:`-\infty` stays 0.
        marginals: :math:`a`, the sums of the rows, and :math:`b`, those of the columns: vectors, or
            numbers if all are equal. None is negative, and both have the same total.
        tol: how far a sum may be off, relative to the largest of `a` and `b`; 30 times the
            precision of the type unless given. Beyond it, 8 times the rounding of the largest
            differences within a row or a column of `x` is accepted.
        max_steps: how many steps of Newton's method to take at most.

    Raises:
        ValueError: a leaf is no matrix of this shape, a sum is negative, or the totals differ, so
            that the set is empty (checked unless the marginals are traced; then `b` is scaled to
            the total of `a`).

    The projection is unique. It follows from the multipliers :math:`\alpha` of the shorter side,
    since those of the longer side then have a closed form. Newton's method with damping solves a
    piecewise linear equation for :math:`\alpha`, first for a small multiple :math:`s x`, where
    :math:`s` is doubled up to 1. A step solves a linear system of the size of the shorter side, and
    passes over the matrix a few dozen times. If differences within `x` are as large as the sums, 3
    to 50 steps are usual; if they are 10,000 times as large, or some sums a millionth of others, a
    few hundred. The sums of the longer side are always exact to rounding. Those of the shorter side
    may be less exact than `tol` after `max_steps`; the result is NaN if :math:`s` is not yet 1, or
    if they are off by more than `tol`, than 1 % of the largest sum and than rounding explains, as
    where entries of :math:`-\infty` leave the set empty; its derivative is 0.
    Matrices of a stack are projected one after the other. Derivatives, with respect to the
    marginals too, are those of the linear equations of the entries that are not 0.

    JAXopt minimizes a dual problem by L-BFGS, for a single matrix.

    Source: M. Blondel, V. Seguy and A. Rolet, Smooth and Sparse Optimal Transport, 2018,
    arXiv:1710.06276; X. Li, D. Sun and K.-C. Toh, On the Efficient Computation of a Generalized
    Jacobian of the Projector over the Birkhoff Polytope, 2020, arXiv:1702.05934.

    >>> x = jnp.array([[2.0, 1.0], [0.5, 0.0]])
    >>> projection_transport(x, (jnp.array([0.5, 0.5]), jnp.array([0.75, 0.25]))).tolist()
    [[0.5, 0.0], [0.25, 0.25]]
    """
    name = "projection_transport"
    if not (isinstance(marginals, tuple | list) and len(marginals) == 2):
        raise ValueError(f"{name}: marginals must be a pair, the sums of rows and of columns")
    return _transported(name, tree, marginals, tol, max_steps)


def projection_birkhoff(tree: TreeT, *, tol: float | None = None, max_steps: int = 500) -> TreeT:
    r"""The nearest doubly stochastic matrices: no entry negative, each row and column of sum 1.

    .. math:: P = \max(x + \alpha 1^\top + 1 \beta^\top, 0), \qquad P 1 = P^\top 1 = 1

    Args:
        tree: the square matrices to project, in the last two axes of each leaf; real.
        tol: as in :func:`projection_transport`, which with sums of 1 has the same result.
        max_steps: likewise.

    Raises:
        ValueError: a leaf is no square matrix.

    JAXopt minimizes a dual problem by L-BFGS, for a single matrix.

    Source: that of :func:`projection_transport`.

    >>> projection_birkhoff(jnp.array([[3.0, 1.0], [0.5, 0.0]])).tolist()
    [[0.875, 0.125], [0.125, 0.875]]
    """
    return _transported("projection_birkhoff", tree, (1.0, 1.0), tol, max_steps)


def _transported(
    name: str, tree: TreeT, marginals: Any, tol: float | None, max_steps: int
) -> TreeT:
    check_integer(name, "max_steps", max_steps)
    if tol is not None:
        check(name, "tol", tol, NonNegative)

    def on_leaf(path: str, x: Array) -> Array:
        a, b = _sums(name, path, x, marginals)
        if not x.size:
            return x
        loose = 30 * float(jnp.finfo(x.dtype).eps) if tol is None else tol
        a = jnp.broadcast_to(jnp.asarray(a, x.dtype), x.shape[-2:-1])
        b = jnp.broadcast_to(jnp.asarray(b, x.dtype), x.shape[-1:])
        b = b * divide(jnp.sum(a), jnp.sum(b))
        nearest = _projection(loose, max_steps)
        if x.shape[-2] <= x.shape[-1]:
            project: Callable[[Array], Array] = lambda m: nearest(m, a, b)  # noqa: E731
        else:
            project = lambda m: nearest(m.T, b, a).T  # noqa: E731
        return jax.lax.map(project, x.reshape(-1, *x.shape[-2:])).reshape(x.shape)

    pairs = zip(leaves.paths(tree), leaves.arrays(name, tree, real=True), strict=True)
    return leaves.rebuild(tree, [on_leaf(path, x) for path, x in pairs])


def _sums(name: str, path: str, x: Array, marginals: Any) -> Any:
    """The two marginals; raises ValueError unless a matrix of the shape of `x` can have them."""
    if x.ndim < 2:
        raise ValueError(f"{name}: the leaf at {path!r} is no matrix but has the shape {x.shape}")
    for side, sums, size in zip(("row", "column"), marginals, x.shape[-2:], strict=True):
        if np.shape(sums) not in ((), (size,)):
            raise ValueError(
                f"{name}: the matrix at {path!r} has {size} {side}s, and their sums the shape "
                f"{np.shape(sums)}"
            )
    if leaves.known(marginals):
        a, b = (
            np.broadcast_to(np.asarray(sums, float), size)
            for sums, size in zip(marginals, x.shape[-2:], strict=True)
        )
        total, precision = a.sum(), float(jnp.finfo(x.dtype).eps)
        if not (np.all(a >= 0) and np.all(b >= 0)):
            raise ValueError(f"{name}: the set is empty, since a sum is negative or NaN")
        if not abs(total - b.sum()) <= 100 * precision * total:
            raise ValueError(
                f"{name}: the set is empty at {path!r}: a matrix of the shape {x.shape[-2:]} has "
                f"rows with the total {total:g} and columns with the total {b.sum():g}"
            )
    return marginals


NEARLY = 0.01
"""How far the sums of rows that are nearly right may be off, relative to the largest sum."""


class _Search(NamedTuple):
    """Newton's method for the multipliers of the rows.

    scale: the factor of the matrix; alpha: the multipliers; before: both at the last factor that
    had multipliers; plan: the matrix that follows; error: that of the sums of its rows, now and one
    step earlier; damping: the part of the largest entry that is added to the diagonal.
    """

    step: Array
    scale: Array
    alpha: Array
    before: tuple[Array, Array]
    plan: Array
    error: tuple[Array, Array]
    damping: Array


def _largest(x: Array, axis: int) -> Array:
    """The largest entries, or 0 where all are minus infinity, which a difference would make NaN."""
    largest = jnp.max(x, axis)
    return jnp.where(largest == -jnp.inf, 0, largest)


def _thresholds(rows: Array, sums: Array) -> Array:
    """For each row the threshold above which its entries have this sum."""

    def of_row(x: Array, total: Array) -> Array:
        top = _largest(x, 0)
        has_none = (total > 0) & jnp.all(x == -jnp.inf)
        return jnp.where(has_none, jnp.nan, top + threshold([x - top], total))

    thresholds: Array = jax.vmap(of_row)(rows, sums)
    return thresholds


def _plan(x: Array, alpha: Array, b: Array) -> tuple[Array, Array]:
    """The matrix with multipliers `alpha` of rows and sums `b` of columns; multipliers of these."""
    y = x + alpha[:, None]
    beta = -_thresholds(y.T, b)
    return jnp.maximum(y + beta, 0), beta


def _system(plan: Array) -> tuple[Array, Array, Array]:
    """How sums of rows change with their multipliers if those of columns stay.

    Also which entries are not 0, and how many in each column.
    """
    support = (plan > 0).astype(plan.dtype)
    count = jnp.sum(support, 0)
    joint = jnp.matmul(divide(support, count), support.T, precision=jax.lax.Precision.HIGHEST)
    return jnp.diag(jnp.sum(support, 1)) - joint, support, count


def _solved(matrix: Array, damping: Any, right: Array) -> Array:
    """The solution of a system whose diagonal is raised by a part of its largest entry."""
    raised = damping * jnp.maximum(jnp.max(jnp.diagonal(matrix)), 1)
    damped = matrix + raised * jnp.eye(len(matrix), dtype=matrix.dtype)
    return jax.scipy.linalg.solve(damped, right, assume_a="pos")


def _error(plan: Array, a: Array) -> Array:
    """The largest error of the sums of rows."""
    return jnp.max(jnp.abs(a - jnp.sum(plan, 1)))


def _next_scale(now: _Search, largest: Array) -> tuple[Array, Array, tuple[Array, Array]]:
    """Once the rows are nearly right, the next factor, and where alpha is expected there."""
    ready = now.error[0] <= NEARLY * largest
    scale = jnp.where(ready, jnp.minimum(2 * now.scale, 1), now.scale)
    old_scale, old = now.before
    slope = divide(now.alpha - old, now.scale - old_scale)
    alpha = now.alpha + (scale - now.scale) * slope
    further = scale > now.scale
    before = jnp.where(further, now.scale, old_scale), jnp.where(further, now.alpha, old)
    return scale, alpha, before


def _newton(x: Array, a: Array, b: Array, largest: Array, now: _Search) -> _Search:
    """The search after a step of Newton's method; `largest` is the largest sum."""
    scale, alpha, before = _next_scale(now, largest)
    y = scale * x
    # The best multipliers of rows given those of columns: none is far off.
    alpha = -_thresholds(y + _plan(y, alpha, b)[1], a)
    plan, _ = _plan(y, alpha, b)
    missing = a - jnp.sum(plan, 1)
    direction = _solved(_system(plan)[0], now.damping, missing)
    further, _ = _plan(y, alpha + direction, b)
    # The dual objective is concave. Its slope along the direction says if that went too far.
    slope = jnp.vdot(missing, direction)
    good = jnp.vdot(a - jnp.sum(further, 1), direction) >= -0.5 * slope
    plan = jnp.where(good, further, plan)
    least = 10 * float(jnp.finfo(x.dtype).eps)
    return _Search(
        now.step + 1,
        scale,
        jnp.where(good, alpha + direction, alpha),
        before,
        plan,
        (_error(plan, a), now.error[0]),
        jnp.where(good, jnp.maximum(now.damping / 3, least), 8 * now.damping),
    )


def _nearest(x: Array, a: Array, b: Array, tol: Any, max_steps: int) -> Array:
    """The projection of a matrix with no more rows than columns."""
    x = x - _largest(x, 1)[:, None]
    x = x - _largest(x, 0)
    precision = float(jnp.finfo(x.dtype).eps)
    span = -jnp.min(x, where=jnp.isfinite(x), initial=0)
    largest = jnp.maximum(jnp.max(a), jnp.max(b))

    def goes_on(now: _Search) -> Array:
        new, old = now.error
        # Rounding may leave more than tol; then on, as long as it becomes less.
        far = (new > tol * largest) & ((new > 8 * precision * span) | (new < old / 2))
        return (far | (now.scale < 1)) & (now.step < max_steps)

    scale = jnp.where((largest > 0) & (largest < span), largest / span, 1)
    alpha = -_thresholds(scale * x, a)
    plan, _ = _plan(scale * x, alpha, b)
    first = _Search(
        jnp.int32(0),
        scale,
        alpha,
        (jnp.zeros_like(scale), jnp.zeros_like(alpha)),
        plan,
        (_error(plan, a), jnp.asarray(jnp.inf, x.dtype)),
        jnp.asarray(1e-3, x.dtype),
    )
    last = jax.lax.while_loop(goes_on, partial(_newton, x, a, b, largest), first)
    allowed = jnp.maximum(jnp.maximum(tol, NEARLY) * largest, 8 * precision * span)
    return jnp.where((last.scale < 1) | (last.error[0] > allowed), jnp.nan, last.plan)


def _projection(tol: Any, max_steps: int) -> Callable[[Array, Array, Array], Array]:
    """The projection of one matrix, with the derivative of its equations."""

    @jax.custom_jvp
    def project(x: Array, a: Array, b: Array) -> Array:
        return _nearest(x, a, b, tol, max_steps)

    @project.defjvp
    def differentiate(primals: Any, tangents: Any) -> tuple[Array, Array]:
        plan = project(*primals)
        dx, da, db = tangents
        system, support, count = _system(plan)
        # Multipliers of parts of the support that are not connected have a constant of their own,
        # which the damping sets to 0; in their sums it cancels.
        damping = 10 * float(jnp.finfo(plan.dtype).eps)
        moved = jnp.where(support > 0, dx, 0)
        rows, columns = da - jnp.sum(moved, 1), divide(db - jnp.sum(moved, 0), count)
        dalpha = _solved(system, damping, rows - support @ columns)
        dbeta = columns - divide(dalpha @ support, count)
        return plan, support * (moved + dalpha[:, None] + dbeta)

    return project
