"""Projection onto the section of a box by a hyperplane.

Source: P. Brucker, An O(n) Algorithm for Quadratic Knapsack Problems, 1984,
doi:10.1016/0167-6377(84)90010-5 (the multiplier is between two neighbours among the points where an
entry meets a bound).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.numerics import divide
from gradtx.projections import leaves
from gradtx.projections.box import bounds
from gradtx.types import Array, PyTree, TreeT


def projection_box_section(x: TreeT, lower: Any, upper: Any, w: PyTree, c: Any) -> TreeT:
    r"""The nearest point between two bounds whose entries have a weighted sum.

    .. math:: y = \min(\max(x + \tau w, l), u), \qquad \langle w, y \rangle = c

    Args:
        x: the tree to project; real. All its leaves form one vector.
        lower: :math:`l`, a number, an array that fits every leaf, or a tree of them; may be
            infinite.
        upper: :math:`u`, likewise.
        w: :math:`w`, likewise, of any sign, but finite.
        c: :math:`c`, a number.

    Raises:
        ValueError: a lower bound is above the upper one, or no point of the box has this sum, so
            that the set is empty (checked unless one of them is traced; then the result is the
            point of the box whose sum is nearest to `c`); or a bound or `w` is a different tree
            or does not fit its leaf.

    The result is exact up to rounding: the values of :math:`\tau` at which entries meet their
    bounds are sorted, and the sum is computed at about :math:`\log_2 2n` of them. JAXopt bisects
    :math:`\tau` to a tolerance.

    Source: P. Brucker, An O(n) Algorithm for Quadratic Knapsack Problems, 1984,
    doi:10.1016/0167-6377(84)90010-5.

    >>> projection_box_section(jnp.array([0.0, 0.5, 3.0]), 0.0, 1.0, 1.0, 2.0).tolist()
    [0.25, 0.75, 1.0]
    """
    name = "projection_box_section"
    xs = leaves.arrays(name, x, real=True)
    lows, highs = bounds(name, x, lower, upper)
    weights = leaves.beside(name, "w", w, x)
    if np.ndim(c) != 0:
        raise ValueError(f"{name}: c must be a number, not an array of {np.shape(c)}")
    if leaves.known(lower, upper, w, c):
        _check_sum(name, xs, lows, highs, weights, c)
    flat = leaves.joined(xs)
    if not flat.size:
        return x

    def like_x(parts: list[Any]) -> Array:
        pairs = zip(xs, parts, strict=True)
        return leaves.joined([jnp.broadcast_to(jnp.asarray(v, u.dtype), u.shape) for u, v in pairs])

    c = jnp.asarray(c, flat.dtype)
    vector = _on_section(flat, like_x(lows), like_x(highs), like_x(weights), c)
    return leaves.rebuild(x, leaves.divided(vector, xs))


def _check_sum(
    name: str, xs: list[Array], lows: list[Any], highs: list[Any], weights: list[Any], c: Any
) -> None:
    """Raise ValueError if no point between the bounds has the sum `c`, beyond rounding."""
    least, most, size, precision = 0.0, 0.0, abs(float(c)), 0.0
    for x, *parts in zip(xs, lows, highs, weights, strict=True):
        low, high, w = (np.broadcast_to(np.asarray(part, float), x.shape) for part in parts)
        ends = [np.multiply(w, end, where=w != 0, out=np.zeros(x.shape)) for end in (low, high)]
        least += np.minimum(*ends).sum()
        most += np.maximum(*ends).sum()
        size += np.sum(np.abs(ends), where=np.isfinite(ends))
        precision = max(precision, float(jnp.finfo(x.dtype).eps))
    if not least - 8 * precision * size <= c <= most + 8 * precision * size:
        raise ValueError(
            f"{name}: the set is empty for c={c}: between the bounds sums are from {least:g} to "
            f"{most:g}"
        )


def _on_section(x: Array, low: Array, high: Array, w: Array, c: Array) -> Array:
    top = jnp.max(jnp.abs(jax.lax.stop_gradient(w)))
    w, c = divide(w, top), divide(c, top)
    # Far from the box the values of tau are rounded as x is: a first one brings x near.
    _, first = _searched(*jax.lax.stop_gradient((x, low, high, w, c)))
    return _searched(x + first * w, low, high, w, c)[0]


def _searched(x: Array, low: Array, high: Array, w: Array, c: Array) -> tuple[Array, Array]:
    """The point of the section, and a finite value of tau for it."""
    # Where tau comes from below, and where it goes to, each entry of x + tau w meets a bound.
    start, end = jnp.where(w > 0, low, high), jnp.where(w > 0, high, low)
    fixed = jax.lax.stop_gradient((x, low, high, w))
    starts, ends = (
        jax.lax.stop_gradient(jnp.where(w == 0, side, (bound - x) / jnp.where(w == 0, 1, w)))
        for bound, side in ((start, -jnp.inf), (end, jnp.inf))
    )
    before, after = _neighbours(starts, ends, fixed, jax.lax.stop_gradient(c))
    # Between them the sum is linear in tau: `still` are the entries at their first bound, `again`
    # those at their second, and the rest is free.
    still, again = starts >= after, ends <= before
    free = ~(still | again)
    bound = jnp.where(still, start, jnp.where(again, end, 0))
    weight = jnp.where(free, w, 0)
    free_values = jnp.where(free, jnp.where(w == 0, jnp.clip(x, low, high), x), 0)
    tau = divide(c - jnp.sum(w * bound) - jnp.sum(weight * free_values), jnp.sum(weight * weight))
    moved = x + tau * w
    # An entry at its bound that is free counts as free in the derivative too.
    moved = moved + jax.lax.stop_gradient(jnp.clip(moved, low, high) - moved)
    inside = jnp.where(w == 0, jnp.clip(x, low, high), moved)
    known = jnp.where(jnp.isfinite(before), before, jnp.where(jnp.isfinite(after), after, 0))
    return jnp.where(free, inside, bound), jnp.where(jnp.any(weight != 0), tau, known)


def _neighbours(
    starts: Array, ends: Array, fixed: tuple[Array, ...], c: Array
) -> tuple[Array, Array]:
    """The two neighbouring values of tau at which entries meet bounds with the sum `c` between."""
    x, low, high, w = fixed
    points = jnp.sort(jnp.concatenate([starts, ends, jnp.array([-jnp.inf, jnp.inf], x.dtype)]))
    first = jnp.sum(points == -jnp.inf, dtype=jnp.int32) - 1
    last = first + 1 + jnp.sum(jnp.isfinite(points), dtype=jnp.int32)

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        left, right = ends
        middle = (left + right) // 2
        tau = jnp.where(middle > left, points[middle], 0)
        below = jnp.sum(w * jnp.clip(x + tau * w, low, high)) <= c
        inner = middle > left
        return jnp.where(inner & below, middle, left), jnp.where(inner & ~below, middle, right)

    times = points.size.bit_length()
    left, right = jax.lax.fori_loop(0, times, halve, (first, last))
    return points[left], points[right]
