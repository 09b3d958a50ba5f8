"""Projections onto the simplex, and onto the ball and the sphere of the 1-norm.

Source: C. Michelot, A Finite Algorithm for Finding the Projection of a Point onto the Canonical
Simplex of R^n, 1986; J. Duchi, S. Shalev-Shwartz, Y. Singer and T. Chandra, Efficient Projections
onto the L1-Ball for Learning in High Dimensions, 2008 (the ball by way of the simplex); A.
Kyrillidis, S. Becker, V. Cevher and C. Koch, Sparse Projections onto the Simplex, 2013,
arXiv:1206.1529 (the largest entries are those to keep).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from gradtx.checks import check_integer
from gradtx.projections import leaves
from gradtx.types import Array, TreeT


def threshold(near: list[Array], scale: Any) -> Array:
    r"""The :math:`\theta` for which :math:`\max(x - \theta, 0)` has the sum `scale`.

    `near` are the parts of a vector whose largest entry is 0. The excess of their sum over `scale`
    is taken evenly from the entries above :math:`\theta`. These are found in a few passes, without
    sorting: :math:`\theta` starts from a lower bound, and each pass drops the entries that would
    become negative.
    """
    dtype = jnp.result_type(*near)
    fixed = jax.lax.stop_gradient(near)

    def sums(values: list[Array], theta: Array, compare: Any) -> tuple[Array, Array]:
        total, count = jnp.zeros([], dtype), jnp.zeros([], jnp.int32)
        for x, v in zip(fixed, values, strict=True):
            above = compare(x, theta)
            total = total + jnp.sum(jnp.where(above, v, 0))
            count = count + jnp.sum(above, dtype=jnp.int32)
        # XLA may compute the largest entry twice, rounded otherwise, and then none is above it.
        return total, jnp.maximum(count, 1)

    def shrinks(carry: Any) -> Array:
        _, count, before = carry
        return count < before

    def narrow(carry: Any) -> Any:
        theta, before, _ = carry
        total, count = sums(fixed, theta, jnp.greater_equal)
        return (total - fixed_scale) / count, count, before

    size = sum(x.size for x in near)
    fixed_scale = jax.lax.stop_gradient(jnp.asarray(scale, dtype))
    start = -fixed_scale, jnp.int32(size + 1), jnp.int32(size + 2)
    theta, _, _ = jax.lax.while_loop(shrinks, narrow, start)
    # Given which entries are above it, theta is a mean, which can be differentiated. An entry at
    # theta does not move, and so does not count.
    total, count = sums(near, theta, jnp.greater)
    return (total - jnp.asarray(scale, dtype)) / count


def _on_simplex(xs: list[Array], scale: Any) -> list[Array]:
    """The nearest vector without negative entries, whose sum is `scale`."""
    # A constant added to all entries changes nothing; near zero the sums lose the least.
    top = leaves.highest(xs)
    near = [x - top.astype(x.dtype) for x in xs]
    mean = threshold(near, scale)
    return [jax.nn.relu(x - mean.astype(x.dtype)) for x in near]


def _on_sparse_simplex(xs: list[Array], scale: Any, max_nz: int) -> list[Array]:
    """The nearest such vector with at most `max_nz` entries above 0, those of the largest `xs`."""
    flat = leaves.joined(xs)
    largest, where = jax.lax.top_k(flat, min(max_nz, flat.size))
    (nearest,) = _on_simplex([largest], scale)
    return leaves.divided(jnp.zeros_like(flat).at[where].set(nearest), xs)


def _on_sphere(xs: list[Array], scale: Any) -> list[Array]:
    parts = _on_simplex([jnp.abs(x) for x in xs], scale)
    return [_direction(x) * part for x, part in zip(xs, parts, strict=True)]


def _direction(x: Array) -> Array:
    """The sign, or the phase; 1 for 0. The sign of a complex number has no derivative in JAX."""
    x = jnp.where(x == 0, 1, x)
    return x / jnp.abs(x) if jnp.iscomplexobj(x) else jnp.sign(x)


def _in_ball(xs: list[Array], scale: Any) -> list[Array]:
    in_ball = sum(jnp.sum(jnp.abs(x)) for x in xs) <= scale
    # Outside the ball the nearest point is on the sphere.
    on_sphere = _on_sphere(xs, leaves.finite(scale, jnp.result_type(*xs)))
    return [jnp.where(in_ball, x, y) for x, y in zip(xs, on_sphere, strict=True)]


def _nearest(
    name: str,
    tree: TreeT,
    scale: Any,
    axis: leaves.Axis,
    nearest: Callable[[list[Array], Any], list[Array]],
    *,
    real: bool = False,
    zero: bool = False,
) -> TreeT:
    """The tree, or every vector along an axis, projected by `nearest`.

    `zero` says that a vector without entries is in the set.
    """
    leaves.check_scale(name, scale)
    xs = leaves.arrays(name, tree, real=real)

    def projected(vectors: list[Array], what: str) -> list[Array]:
        if any(x.size for x in vectors):
            return nearest(vectors, scale)
        if zero:
            return vectors
        raise ValueError(f"{name}: {what} has no entries, so none sum to {scale}")

    if axis is None:
        return leaves.rebuild(tree, projected(xs, "the tree"))
    what = f"a vector along axis={axis}"
    return leaves.along(name, tree, xs, axis, lambda x: projected([x], what)[0])


def projection_simplex(tree: TreeT, scale: Any = 1, *, axis: leaves.Axis = None) -> TreeT:
    r"""The nearest point without negative entries whose entries sum to `scale`.

    .. math:: p = \max(x - \theta, 0), \qquad \textstyle\sum p = s

    Args:
        tree: the tree to project; real. All its leaves form one vector unless `axis` is given.
        scale: :math:`s \ge 0`, the sum.
        axis: the axis or axes of each leaf along which the vectors to project are; for a table of
            distributions, one in each row, -1.

    Raises:
        ValueError: the sum is negative, or there are no entries: the set is empty. Or a leaf has no
            such axis.

    Entries of any size keep their precision, since only differences matter; an entry of
    :math:`-\infty` becomes 0. :math:`s = 0` gives zeros; Optax divides by it.

    >>> projection_simplex({"b": jnp.array(0.5), "w": jnp.array([2.5, 3.25])})["w"].tolist()
    [0.125, 0.875]
    >>> projection_simplex(jnp.array([[0.5, 0.5], [3.0, 0.0]]), axis=-1).tolist()
    [[0.5, 0.5], [1.0, 0.0]]
    """
    return _nearest("projection_simplex", tree, scale, axis, _on_simplex, real=True)


def projection_sparse_simplex(
    tree: TreeT, max_nz: int, scale: Any = 1, *, axis: leaves.Axis = None
) -> TreeT:
    r"""The nearest point of the simplex with at most a number of entries that are not 0.

    .. math:: p_i = \begin{cases} \max(x_i - \theta, 0) & x_i \text{ among the } k \text{ largest,}
        \\ 0 & \text{otherwise,} \end{cases} \qquad \textstyle\sum p = s

    Args:
        tree: the tree to project; real. All its leaves form one vector unless `axis` is given.
        max_nz: :math:`k \ge 1`; more than there are entries, and this is the simplex.
        scale: :math:`s \ge 0`, the sum.
        axis: as in :func:`projection_simplex`.

    Raises:
        ValueError: the sum is negative, or there are no entries: the set is empty. Or `max_nz` is
            no positive integer, or a leaf has no such axis.

    The set is not convex. The first of equal entries are kept, though others are as near; there the
    projection jumps, and elsewhere its derivative is that of the simplex of the kept entries.
    JAXopt's has the name `max_nz` too, and takes one vector; Optax has no sparse simplex.

    Source: A. Kyrillidis, S. Becker, V. Cevher and C. Koch, Sparse Projections onto the Simplex,
    2013, arXiv:1206.1529.

    >>> projection_sparse_simplex(jnp.array([2.0, 2.5, 2.25]), 2).tolist()
    [0.0, 0.625, 0.375]
    """
    name = "projection_sparse_simplex"
    check_integer(name, "max_nz", max_nz)
    nearest = partial(_on_sparse_simplex, max_nz=max_nz)
    return _nearest(name, tree, scale, axis, nearest, real=True)


def projection_l1_sphere(tree: TreeT, scale: Any = 1, *, axis: leaves.Axis = None) -> TreeT:
    r"""The nearest point whose absolute values sum to `scale`.

    .. math:: y = \mathrm{sign}(x)\, p, \qquad
        p \text{ the projection of } |x| \text{ onto the simplex}

    Args:
        tree: the tree to project. All its leaves form one vector unless `axis` is given.
        scale: :math:`s \ge 0`, the radius.
        axis: as in :func:`projection_simplex`.

    Raises:
        ValueError: the radius is negative, or there are no entries: the set is empty. Or a leaf has
            no such axis.

    A zero entry that has to grow becomes positive (the negative is equally near); in Optax it stays
    zero, and the result is not on the sphere.

    >>> projection_l1_sphere(jnp.array([0.0, -0.5])).tolist()
    [0.25, -0.75]
    """
    return _nearest("projection_l1_sphere", tree, scale, axis, _on_sphere)


def projection_l1_ball(tree: TreeT, scale: Any = 1, *, axis: leaves.Axis = None) -> TreeT:
    r"""The nearest point whose absolute values sum to at most `scale`.

    Args:
        tree: the tree to project. All its leaves form one vector unless `axis` is given.
        scale: :math:`s \ge 0`, the radius.
        axis: as in :func:`projection_simplex`.

    Raises:
        ValueError: the radius is negative, or a leaf has no such axis.

    >>> projection_l1_ball(jnp.array([2.0, -1.5])).tolist()
    [0.75, -0.25]
    """
    return _nearest("projection_l1_ball", tree, scale, axis, _in_ball, zero=True)
