"""Projections onto the ball and the sphere of the Euclidean norm."""

from typing import Any

import jax.numpy as jnp

from gradtx.numerics import sum_sq
from gradtx.projections import leaves
from gradtx.types import Array, TreeT


def _unit(xs: list[Array]) -> tuple[list[Array], Array]:
    """The direction of a vector (zero for zero) and its norm; no square over- or underflows."""
    top = leaves.largest(xs)
    safe = jnp.where(top == 0, 1, top)
    scaled = [x / safe for x in xs]
    total = sum((sum_sq(x) for x in scaled), start=jnp.zeros([]))
    empty = total == 0  # unlike a vector with a NaN, whose norm is NaN
    length = jnp.sqrt(jnp.where(empty, 1, total))
    return [x / length for x in scaled], jnp.where(empty, 0, length * safe)


def projection_l2_sphere(tree: TreeT, scale: Any = 1) -> TreeT:
    r"""The nearest point of Euclidean norm `scale`: :math:`s\, x / \lVert x \rVert`.

    Args:
        tree: the tree to project; all its leaves form one vector.
        scale: :math:`s \ge 0`, the radius.

    Raises:
        ValueError: the radius is negative, or there are no entries: the set is empty.

    All points of the sphere are equally near to the origin; the one with equal entries is returned.
    Optax returns NaN.

    >>> projection_l2_sphere(jnp.array([0.0, 4.0])).tolist()
    [0.0, 1.0]
    """
    name = "projection_l2_sphere"
    leaves.check_scale(name, scale)
    xs = leaves.arrays(name, tree)
    size = sum(x.size for x in xs)
    if not size:
        raise ValueError(f"{name}: the tree has no entries, so none has the norm {scale}")
    unit, norm = _unit(xs)
    return leaves.rebuild(tree, [scale * jnp.where(norm == 0, size**-0.5, u) for u in unit])


def projection_l2_ball(tree: TreeT, scale: Any = 1) -> TreeT:
    r"""The nearest point of Euclidean norm at most `scale`: :math:`x \min(1, s / \lVert x \rVert)`.

    Args:
        tree: the tree to project; all its leaves form one vector.
        scale: :math:`s \ge 0`, the radius.

    Raises:
        ValueError: the radius is negative.

    >>> projection_l2_ball(jnp.array([0.0, 4.0])).tolist()
    [0.0, 1.0]
    """
    name = "projection_l2_ball"
    leaves.check_scale(name, scale)
    xs = leaves.arrays(name, tree)
    unit, norm = _unit(xs)
    moved = [
        jnp.where(norm <= scale, x, leaves.finite(scale, x.dtype) * u)
        for u, x in zip(unit, xs, strict=True)
    ]
    return leaves.rebuild(tree, moved)
