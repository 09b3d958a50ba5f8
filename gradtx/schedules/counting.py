"""Steps and values for schedules: exact up to the last count, and within their range."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from gradtx.types import Array

LAST = int(np.iinfo(np.int32).max)
"""The last step that a counter holds."""


def steps(number: Any) -> Any:
    """A number of steps comparable with counts: an integer if whole, at most the largest count.

    >>> steps(1e4), steps(2.5), steps(10**12)
    (10000, 2.5, 1000000000000.0)
    """
    if isinstance(number, int | float) and number == int(number):
        return int(number) if abs(number) <= LAST else float(number)
    return number


def floating(count: Any) -> Array:
    """A count as a floating-point number."""
    return jnp.asarray(count, jnp.result_type(float))


def within(value: Any, start: Any, end: Any) -> Array:
    """`value`, which rounding may have brought past one of two ends between which it lies.

    >>> float(within(-4.7e-8, 1.0, 0.0))
    0.0
    """
    return jnp.clip(value, jnp.minimum(start, end), jnp.maximum(start, end))
