"""Projections that bound norms along axes of each leaf: Keras's constraints, but exact."""

import operator
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from gradtx.checks import Fraction, NonNegative, check, check_one_number
from gradtx.numerics import divide, norm
from gradtx.projections import leaves
from gradtx.types import Array, PyTree, TreeT


def _with_norm(name: str, tree: PyTree, axis: leaves.Axis, wanted: Any) -> PyTree:
    """Each vector along `axis` rescaled to the norm `wanted(norm)`; zero gets equal entries."""
    if axis is not None and not isinstance(axis, Sequence):
        axis = operator.index(axis)

    def on_leaf(path: str, x: Array) -> Array:
        try:
            length = norm(x, axis)
        except (ValueError, TypeError, IndexError) as error:
            raise ValueError(
                f"{name}: axis={axis} does not fit {path!r}, {x.shape}: {error}"
            ) from None
        size = jnp.minimum(length.number, jnp.finfo(x.dtype).max)  # NaN stays NaN
        new = wanted(size)
        entries = x.size // max(size.size, 1)
        flat = new * max(entries, 1) ** -0.5
        scaled = jnp.where(size == 0, flat, x / length.unit * divide(new, length.value))
        return jnp.where(new == length.number, x, scaled)

    keyed = zip(leaves.paths(tree), leaves.arrays(name, tree), strict=True)
    return leaves.rebuild(tree, [on_leaf(path, x) for path, x in keyed])


def projection_max_norm(tree: TreeT, max_value: Any = 2.0, axis: leaves.Axis = 0) -> TreeT:
    r"""The nearest leaves whose norms along `axis` are at most `max_value`.

    Args:
        tree: the tree to project, each leaf by itself.
        max_value: the bound, at least 0.
        axis: the axis or axes along which a norm is taken: 0 for the weights of each output of a
            dense layer, None for the whole leaf.

    Raises:
        ValueError: the bound is negative, or a leaf has no such axis.

    This is Keras's ``MaxNorm``, whose epsilon also shrinks vectors within the bound a little.

    >>> projection_max_norm(jnp.array([[3.0, 0.5], [4.0, 0.0]]), 1.0)[:, 1].tolist()
    [0.5, 0.0]
    """
    name = "projection_max_norm"
    check(name, "max_value", max_value, NonNegative)
    return _with_norm(name, tree, axis, lambda norm: jnp.minimum(norm, max_value))


def projection_min_max_norm(
    tree: TreeT,
    min_value: Any = 0.0,
    max_value: Any = 1.0,
    axis: leaves.Axis = 0,
    *,
    rate: Any = 1.0,
) -> TreeT:
    r"""The nearest leaves whose norms along `axis` are between two bounds, or a step towards them.

    .. math:: \lVert x' \rVert = (1 - r) \lVert x \rVert
        + r \min(\max(\lVert x \rVert, \text{min}), \text{max})

    Args:
        tree: the tree to project, each leaf by itself.
        min_value: the lower bound, at least 0. A zero vector becomes one of equal entries.
        max_value: the upper bound.
        axis: as in :func:`projection_max_norm`.
        rate: :math:`r` in :math:`[0, 1]`, as in Keras's ``MinMaxNorm``; below 1 a bound is
            approached over several steps.

    Raises:
        ValueError: a bound is negative, the bounds are in the wrong order, the rate is out of
            range, or a leaf has no such axis.

    >>> projection_min_max_norm(jnp.array([0.0, 4.0]), 0.5, 1.0).tolist()
    [0.0, 1.0]
    """
    name = "projection_min_max_norm"
    check(name, "min_value", min_value, NonNegative)
    check(name, "max_value", max_value, NonNegative)
    check(name, "rate", rate, Fraction)
    check_one_number(name, "min_value", min_value)
    check_one_number(name, "max_value", max_value)
    if leaves.known(min_value, max_value) and min_value > max_value:
        raise ValueError(f"{name}: no norm is between min_value={min_value} and {max_value}")

    def wanted(norm: Array) -> Array:
        bound = jnp.clip(norm, min_value, max_value)
        return jnp.where(bound == norm, norm, (1 - rate) * norm + rate * bound)

    return _with_norm(name, tree, axis, wanted)


def projection_unit_norm(tree: TreeT, axis: leaves.Axis = 0) -> TreeT:
    """The nearest leaves whose norms along `axis` are 1.

    Args:
        tree: the tree to project, each leaf by itself. A zero vector becomes one of equal entries.
        axis: as in :func:`projection_max_norm`.

    Raises:
        ValueError: a leaf has no such axis.

    >>> projection_unit_norm(jnp.array([0.0, 4.0])).tolist()
    [0.0, 1.0]
    """
    return _with_norm("projection_unit_norm", tree, axis, jnp.ones_like)
