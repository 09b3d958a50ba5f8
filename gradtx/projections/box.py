"""Projections onto sets that bound each entry by itself: boxes, cubes, the orthant."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.numerics import divide, signed
from gradtx.projections import leaves
from gradtx.types import Array, PyTree, TreeT


def projection_non_negative(tree: TreeT) -> TreeT:
    r"""The nearest point without negative entries: :math:`\max(x, 0)`.

    Args:
        tree: the tree to project; real. A NaN stays a NaN.

    >>> projection_non_negative(jnp.array([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    return leaves.each("projection_non_negative", jax.nn.relu, tree, real=True)


def projection_box(tree: TreeT, lower: Any, upper: Any) -> TreeT:
    r"""The nearest point between two bounds: :math:`\min(\max(x, l), u)`.

    Args:
        tree: the tree to project; real. A NaN stays a NaN.
        lower: the lower bound: a number, an array that fits every leaf, or a tree of them.
        upper: the upper bound, likewise.

    Raises:
        ValueError: a lower bound is above the upper one, so that the box is empty (checked unless
            one of them is traced); or a bound is a different tree or does not fit its leaf.

    >>> projection_box(jnp.array([-1.0, 2.0]), 0.0, 1.0).tolist()
    [0.0, 1.0]
    """
    return _box("projection_box", tree, lower, upper)


def bounds(name: str, tree: PyTree, lower: Any, upper: Any) -> tuple[list[Any], list[Any]]:
    """The lower and the upper bound of each leaf; raises ValueError if the box is empty."""
    lows = leaves.beside(name, "lower", lower, tree)
    highs = leaves.beside(name, "upper", upper, tree)
    for path, low, high in zip(leaves.paths(tree), lows, highs, strict=True):
        if leaves.known(low, high) and not np.all(np.asarray(low) <= np.asarray(high)):
            raise ValueError(
                f"{name}: the box is empty at {path!r}, lower={low} is above upper={high}"
            )
    return lows, highs


def _box(name: str, tree: PyTree, lower: Any, upper: Any) -> PyTree:
    xs = leaves.arrays(name, tree, real=True)
    lows, highs = bounds(name, tree, lower, upper)
    clipped = [
        jnp.clip(x, jnp.asarray(lo, x.dtype), jnp.asarray(hi, x.dtype))
        for x, lo, hi in zip(xs, lows, highs, strict=True)
    ]
    return leaves.rebuild(tree, clipped)


def projection_hypercube(tree: TreeT, scale: Any = 1) -> TreeT:
    r"""The nearest point in a cube with one corner at the origin: :math:`\min(\max(x, 0), s)`.

    Args:
        tree: the tree to project; real.
        scale: :math:`s \ge 0`, the length of the sides: a number or a tree.

    Raises:
        ValueError: a length is negative, or does not fit.

    >>> projection_hypercube(jnp.array([-1.0, 2.0])).tolist()
    [0.0, 1.0]
    """
    return _box("projection_hypercube", tree, 0, scale)


def projection_linf_ball(tree: TreeT, scale: Any = 1) -> TreeT:
    r"""The nearest point whose entries are at most `scale` in absolute value.

    Args:
        tree: the tree to project. Complex entries keep their phase.
        scale: :math:`s \ge 0`, the radius.

    Raises:
        ValueError: the radius is negative.

    >>> projection_linf_ball(jnp.array([-3.0, 0.5])).tolist()
    [-1.0, 0.5]
    """
    leaves.check_scale("projection_linf_ball", scale)
    scale = signed(scale)

    def on_leaf(x: Array) -> Array:
        if jnp.iscomplexobj(x):
            size = jnp.abs(x)
            return jnp.where(size > scale, divide(x, size) * leaves.finite(scale, x.dtype), x)
        return jnp.clip(x, -scale, scale)

    return leaves.each("projection_linf_ball", on_leaf, tree, real=False)
