"""Projections that bound norms along axes of each leaf: Keras's constraints, but exact."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gradtx.checks import Fraction, NonNegative, check, check_one_number
from gradtx.numerics import divide, norm
from gradtx.projections import leaves
from gradtx.types import Array, PyTree, TreeT

Wanted = Callable[[Array], tuple[Array, Any]]
"""From a norm the norm that is wanted, and whether norms nearby are wanted as they are."""


def _with_norm(name: str, tree: PyTree, axis: leaves.Axis, wanted: Wanted) -> PyTree:
    """Each vector along `axis` rescaled to the norm that is wanted; zero gets equal entries."""
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
        new, within = wanted(size)
        entries = x.size // max(size.size, 1)
        flat = new * max(entries, 1) ** -0.5
        scaled = jnp.where(size == 0, flat, x / length.unit * divide(new, length.value))
        # A vector that has the norm keeps its bits; its derivative has no part along it.
        kept = jnp.where(new == length.number, x - scaled, 0)
        return jnp.where(within, x, scaled + jax.lax.stop_gradient(kept))

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
        ValueError: the bound is negative or several numbers, or a leaf has no such axis.

    This is Keras's ``MaxNorm``, whose epsilon also shrinks vectors within the bound a little.

    >>> projection_max_norm(jnp.array([[3.0, 0.5], [4.0, 0.0]]), 1.0)[:, 1].tolist()
    [0.5, 0.0]
    """
    name = "projection_max_norm"
    check(name, "max_value", max_value, NonNegative)
    check_one_number(name, "max_value", max_value)
    return _with_norm(
        name, tree, axis, lambda norm: (jnp.minimum(norm, max_value), norm <= max_value)
    )


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
            range, one of the three is several numbers, or a leaf has no such axis.

    >>> projection_min_max_norm(jnp.array([0.0, 4.0]), 0.5, 1.0).tolist()
    [0.0, 1.0]
    """
    name = "projection_min_max_norm"
    check(name, "min_value", min_value, NonNegative)
    check(name, "max_value", max_value, NonNegative)
    check(name, "rate", rate, Fraction)
    check_one_number(name, "min_value", min_value)
    check_one_number(name, "max_value", max_value)
    check_one_number(name, "rate", rate)
    if leaves.known(min_value, max_value) and min_value > max_value:
        raise ValueError(f"{name}: no norm is between min_value={min_value} and {max_value}")

    def wanted(norm: Array) -> tuple[Array, Array]:
        # Not jnp.clip, whose slope at a bound is a half, and at two equal ones a quarter.
        above = jnp.where(norm >= max_value, max_value, norm)
        bound = jnp.where(norm <= min_value, min_value, above)
        within = (bound == norm) & jnp.less(min_value, max_value)
        return jnp.where(within, norm, (1 - rate) * norm + rate * bound), within

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
    return _with_norm("projection_unit_norm", tree, axis, lambda norm: (jnp.ones_like(norm), False))
