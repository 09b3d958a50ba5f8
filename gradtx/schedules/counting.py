"""Steps and values for schedules: exact up to the last count, and within their range."""

import math
from typing import Any

import jax
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
    if isinstance(number, int) or (isinstance(number, float) and number.is_integer()):
        return int(number) if abs(number) <= LAST else float(number)
    return number


def floating(count: Any) -> Array:
    """A count as a floating-point number."""
    return jnp.asarray(count, jnp.result_type(float))


def quotient(count: Any, divisor: Any) -> Any:
    """``count / divisor``, in double precision where JAX has it.

    XLA multiplies with the inverse of a divisor that it knows, which may give less than a whole
    number: how many times a divisor fits into a count is ``count // divisor``.

    JAX divides 32-bit integers in float32. Their product with a Python number is of the default
    type, and leaves a step in the type of its parameters; only strict promotion refuses it.
    """
    config: Any = jax.config
    if config.jax_enable_x64 and config.jax_numpy_dtype_promotion == "standard":
        count = 1.0 * count
    return count / divisor


def raised(base: Any, exponent: Any) -> Any:
    """``base ** exponent`` for a base that is not rounded to the exponent's type before its power.

    Beyond the largest number it is infinite, for Python's numbers too.

    >>> round(float(raised(0.99999, jnp.float32(500_000))), 6), 0.99999**500_000
    (0.006738, 0.006737778...)
    """
    if isinstance(exponent, int | float) or not isinstance(base, int | float) or base <= 0:
        try:
            return base**exponent
        except OverflowError:
            return math.inf
    near = float(np.asarray(base, jnp.result_type(exponent)))
    if near in (0, base):
        return base**exponent
    power, lost = base**exponent, math.log1p((base - near) / near) * exponent
    # Multiplied by the lost factor, a power that is 0 or infinite could become NaN.
    return jnp.where((power == 0) | jnp.isinf(power), power, power * jnp.exp(lost))


def within(value: Any, start: Any, end: Any) -> Array:
    """`value`, which rounding may have brought past one of two ends between which it lies.

    >>> float(within(-4.7e-8, 1.0, 0.0))
    0.0
    """
    return jnp.clip(value, jnp.minimum(start, end), jnp.maximum(start, end))
