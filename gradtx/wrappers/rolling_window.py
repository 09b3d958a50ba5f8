"""The last values of a number in a rolling window, and whether the next is out of the ordinary.

The limit lies a number of standard deviations above the mean of the window. A number can also be
shortened to a quantile of the window.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.numerics import cast, increment, shrink_factor
from gradtx.numerics.norms import Chip, Scales, norm_of_sums, sums_of_squares
from gradtx.types import Array

# Equal numbers have no deviation, so that anything larger would be a spike.
_LEAST_DEVIATION = 0.01
_LARGEST = float(jnp.finfo(jnp.float32).max)


class Rolling(NamedTuple):
    """values: f32[window], the last finite ones, none above its limit; seen: i32[], how many."""

    values: Array
    seen: Array


def entered(
    window: Rolling, x: Array, counts: Array, deviations: Any, warmup: int
) -> tuple[Rolling, Array]:
    """The window after a new value, and whether that value is a spike.

    Args:
        window: the last values.
        x: the new value, which enters as the limit if it is above that.
        counts: whether it enters the window.
        deviations: how many standard deviations above the mean the limit is; None for no limit.
        warmup: how many values the window must hold before there is a limit.
    """
    values, seen = map(jnp.asarray, window)
    limit = jnp.array(_LARGEST, jnp.float32)
    if deviations is not None:
        limit = jnp.where(seen >= warmup, _limit(window, deviations), limit)
    put = values.at[seen % len(values)].set(jnp.minimum(x, limit))
    later = increment(seen)
    # It wraps around long before it overflows.
    later = jnp.where(later >= 2 * len(values), later - len(values), later)
    new_window = Rolling(jnp.where(counts, put, values), jnp.where(counts, later, seen))
    return new_window, counts & (x > limit)


def quantile_factor(norms: Rolling, norm: Array, quantile: Any, warmup: int) -> Array:
    """The factor that shortens a gradient of some norm to a quantile of the norms in the window."""
    if quantile is None:
        return jnp.ones([], jnp.float32)
    limit = _quantile(norms.values, jnp.minimum(norms.seen, len(norms.values)), quantile)
    return cast(jnp.where(norms.seen >= warmup, shrink_factor(norm, limit), 1.0), jnp.float32)


def _limit(window: Rolling, deviations: Any) -> Array:
    """The mean of the window plus a number of its standard deviations."""
    values, seen = window
    there = jnp.arange(len(values)) < seen
    n = jnp.maximum(jnp.sum(there, dtype=jnp.float32), 1)
    mean = jnp.sum(jnp.where(there, values, 0)) / n

    def sums(scales: Scales, off: Array, *, on: Chip | None = None) -> list[Array]:
        return [total / n for total in sums_of_squares(scales, off, on=on)]

    std = norm_of_sums(sums, (jnp.where(there, values - mean, 0),)).number
    limit = mean + deviations * jnp.maximum(std, _LEAST_DEVIATION * jnp.abs(mean))
    return cast(limit, jnp.float32)


def _quantile(values: Array, n: Array, q: Any) -> Array:
    """The quantile of the first `n` values, interpolated between two of them."""
    ordered = jnp.sort(jnp.where(jnp.arange(len(values)) < n, values, _LARGEST))
    last = jnp.maximum(n - 1, 0)
    at = q * last.astype(jnp.float32)
    low = jnp.floor(at).astype(jnp.int32)
    high = jnp.minimum(low + 1, last)
    share = at - low.astype(at.dtype)
    return (1 - share) * ordered[low] + share * ordered[high]
