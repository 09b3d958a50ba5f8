"""An interval that holds a minimum along a line, and where to try next within it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.numerics import divide
from gradtx.types import Array


class Point(NamedTuple):
    """A rate with the loss and its slope along the line."""

    rate: Array
    value: Array
    slope: Array


def _cubic(a: Point, b: Point) -> tuple[Array, Array]:
    """The minimum of the cubic through two points with their slopes, and whether it has one."""
    step = b.rate - a.rate
    theta = divide(3 * (a.value - b.value), step) + a.slope + b.slope
    size = jnp.maximum(jnp.abs(theta), jnp.maximum(jnp.abs(a.slope), jnp.abs(b.slope)))
    square = divide(theta, size) ** 2 - divide(a.slope, size) * divide(b.slope, size)
    root = size * jnp.sqrt(jnp.maximum(square, 0))
    root = jnp.where(step > 0, root, -root)
    below = 2 * root - a.slope + b.slope
    place = a.rate + step * divide(root - a.slope + theta, below)
    sound = (step != 0) & (size > 0) & (square >= 0) & (below != 0)
    return place, sound & jnp.isfinite(place)


def _secant(a: Point, b: Point) -> Array:
    """Where a straight line through two slopes is zero."""
    return b.rate + divide(b.slope, b.slope - a.slope) * (a.rate - b.rate)


def _parabola(a: Point, b: Point) -> Array:
    """Where the parabola through two values and the slope at the first is lowest."""
    step = b.rate - a.rate
    return a.rate + divide(a.slope, divide(a.value - b.value, step) + a.slope) / 2 * step


def choose(condition: Array, this: Any, that: Any) -> Any:
    """`this` if `condition` holds, otherwise `that`; both are trees."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), this, that)


def next_interval(
    best: Point, other: Point, at: Point, bracketed: Array, least: Array, most: Array
) -> tuple[Point, Point, Array, Array]:
    """The new ends of the interval and the next trial rate, as in Moré and Thuente, section 4.

    `least` and `most` bound the rate while no interval is known.
    """
    (cubic, has_minimum), secant, parabola = (
        _cubic(best, at),
        _secant(best, at),
        _parabola(best, at),
    )
    forward = at.rate > best.rate

    # 1: higher than the best, so a minimum lies between them.
    higher = ~(at.value <= best.value)
    near = jnp.abs(cubic - best.rate) < jnp.abs(parabola - best.rate)
    between = jnp.where(near, cubic, cubic + (parabola - cubic) / 2)
    between = jnp.where(has_minimum & jnp.isfinite(between), between, (best.rate + at.rate) / 2)

    # 2: lower, and the slope has turned, so a minimum lies between them as well.
    turned = ~higher & (at.slope * best.slope < 0)
    farther = jnp.abs(cubic - at.rate) > jnp.abs(secant - at.rate)
    crossed = jnp.where(farther & has_minimum, cubic, secant)

    # 3: lower and flatter: the minimum lies ahead, if the cubic has one there.
    flatter = ~higher & ~turned & (jnp.abs(at.slope) < jnp.abs(best.slope))
    ahead = has_minimum & (jnp.where(forward, cubic > at.rate, cubic < at.rate))
    reach = jnp.where(ahead, cubic, jnp.where(forward, most, least))
    near = jnp.abs(reach - at.rate) < jnp.abs(secant - at.rate)
    inside = jnp.where(near, reach, secant)
    limit = at.rate + 0.66 * (other.rate - at.rate)
    inside = jnp.where(forward, jnp.minimum(limit, inside), jnp.maximum(limit, inside))
    outside = jnp.clip(jnp.where(near, secant, reach), least, most)
    gentler = jnp.where(bracketed, inside, outside)

    # 4: lower and no flatter.
    across, has_minimum = _cubic(at, other)
    across = jnp.where(has_minimum, across, (at.rate + other.rate) / 2)
    steeper = jnp.where(bracketed, across, jnp.where(forward, most, least))

    trial = jnp.where(flatter, gentler, steeper)
    trial = jnp.where(turned, crossed, trial)
    trial = jnp.where(higher, between, trial)
    far = choose(higher, at, choose(turned, best, other))
    return choose(higher, best, at), far, bracketed | higher | turned, trial
