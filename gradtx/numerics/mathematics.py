"""Mathematics on one array that several rules share."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from gradtx.numerics.precision import widen
from gradtx.types import Array


def abs_sq(x: Array) -> Array:
    """The squared absolute value, real also for complex `x`."""
    if jnp.iscomplexobj(x):
        return jax.lax.square(x.real) + jax.lax.square(x.imag)
    # JAX's own operation takes no booleans.
    is_boolean = jnp.issubdtype(jnp.result_type(x), jnp.bool_)
    return jnp.square(x) if is_boolean else jax.lax.square(x)


def is_zero(x: Any) -> bool:
    """Whether `x` is the number 0, and no array, so that a program may leave its term out."""
    return isinstance(x, int | float) and x == 0


def log_of(x: Any) -> Any:
    """The logarithm; of a Python number that of the number, not of what rounding makes of it.

    >>> log_of(0.999999), log_of(0.0)
    (-1.00000050002...e-06, -inf)
    """
    if isinstance(x, float | int):
        return math.log(x) if x > 0 else -math.inf
    return jnp.log(x)


def add_each(xs: tuple[Array, ...], ys: tuple[Array, ...]) -> tuple[Array, ...]:
    """The sum of each pair, as the function of a reduction of several arrays at once.

    JAX keeps its trace by the function, so that it is one for all reductions.
    """
    return tuple(map(jax.lax.add, xs, ys))


def sum_sq(x: Array) -> Array:
    """The sum of squared absolute values, in at least float32.

    >>> float(sum_sq(jnp.full(10, 300.0, jnp.float16)))
    900000.0
    """
    return jnp.sum(abs_sq(widen(x)))


def ema(new: Array, old: Array, decay: Any) -> Array:
    """The exponential moving average ``decay * old + (1 - decay) * new``."""
    return decay * old + (1 - decay) * new


def all_finite(x: Array) -> Array:
    """Whether no entry is NaN or infinite.

    It is computed by a sum, for which XLA on CPUs stores nothing; it would store booleans.

    >>> bool(all_finite(jnp.array([1e30, jnp.inf])))
    False
    """
    return jnp.sum(x * 0) == 0


def any_nan(x: Array) -> Array:
    """Whether an entry is NaN: if so, the sum of the signs is.

    >>> bool(any_nan(jnp.array([jnp.inf, -jnp.inf]))), bool(any_nan(jnp.array([jnp.nan])))
    (False, True)
    """
    if jnp.iscomplexobj(x):
        return any_nan(x.real) | any_nan(x.imag)
    return jnp.isnan(jnp.sum(jnp.sign(widen(x))))


def bounded(x: Array, terms: int = 1) -> Array:
    """`x`, but at most the largest number of which `terms` together have a finite sum.

    For sums and means of squares that are kept: two infinite ones, divided by each other or
    subtracted, would be NaN at all later steps. NaN stays NaN.

    >>> float(bounded(jnp.float32(jnp.inf), terms=2)) == float(jnp.finfo("float32").max) / 2
    True
    """
    most = float(jnp.finfo(x.dtype).max) / terms
    return jnp.where(x > most, most, x)


def squarable(x: Array) -> Array:
    """`x`, or where its square is infinite, the largest number of its sign whose square is not.

    >>> bool(jnp.isfinite(jnp.square(squarable(jnp.float32(-1e30)))))
    True
    """
    most = float(jnp.finfo(x.dtype).max) ** 0.5 * (1 - 1e-6)
    return jnp.where(jnp.abs(x) > most, jnp.sign(x) * most, x)


def cube_root(x: Array) -> Array:
    """The cube root of numbers that are not negative, to 3e-6 in float32; its derivative at 0 is 0.

    It uses a logarithm, which is computed for many entries at once: XLA for CPUs calls the C
    library's ``cbrt`` for one entry at a time, which takes fifteen times as long.

    >>> cube_root(jnp.array([0.0, 8.0])).round(5).tolist()
    [0.0, 2.0]
    """
    nothing = x == 0  # there the logarithm has no derivative
    return jnp.where(nothing, 0, jnp.exp(jnp.log(jnp.where(nothing, 1, x)) / 3))


def divide(x: Array, y: Array) -> Array:
    """``x / y``, and 0 where `y` is 0.

    >>> divide(jnp.array([0.0, 3.0]), jnp.array([0.0, 2.0])).tolist()
    [0.0, 1.5]
    """
    return jnp.where(y == 0, 0, x / jnp.where(y == 0, 1, y))


def quotient_up_to(most: Any, x: Array, y: Array) -> Array:
    """The least of ``x / y`` and `most`, for `y` of at least 0.

    Where `y` is 0 it is `most` if `x` is positive, as near there, and 0 otherwise.

    >>> quotient_up_to(3.0, jnp.array([4.0, 4.0, 0.0]), jnp.array([2.0, 0.0, 0.0])).tolist()
    [2.0, 3.0, 0.0]
    """
    limit = jnp.where((x > 0) & jnp.isfinite(most), most, 0)
    return jnp.where(y == 0, limit, jnp.minimum(divide(x, y), most))


def infinity(dtype: Any, sign: float = 1.0) -> Array:
    """An infinite number, as in states before the first step; also under ``jax_debug_infs``.

    >>> float(infinity("float32"))
    inf
    """
    with jax.debug_infs(False):
        return jnp.full([], sign * jnp.inf, dtype)


def inverse_root(x: Array) -> Array:
    """``1 / sqrt(x)``, and 0 where `x` is 0.

    >>> inverse_root(jnp.array([0.0, 4.0])).tolist()
    [0.0, 0.5]
    """
    return 1 / jnp.sqrt(jnp.where(x > 0, x, jnp.inf))


def row_mean(x: Array) -> Array:
    """The mean of each row, along the first dimension, with the other dimensions of length 1.

    >>> row_mean(jnp.array([[1.0, 3.0], [4.0, 4.0]])).tolist()
    [[2.0], [4.0]]
    """
    return x if x.ndim < 2 else jnp.mean(x, axis=tuple(range(1, x.ndim)), keepdims=True)


def one_per_row(x: Array) -> Array:
    """The first entry of each row: an array with the shape and sharding of `row_mean`."""
    return x if x.ndim < 2 else x[(slice(None), *(slice(0, 1) for _ in x.shape[1:]))]


def shrink(x: Array, l1: Any, l2: Any = 0.0) -> Array:
    """The proximal map of ``l1 |x| + l2 |x|^2 / 2``: entries of at most `l1` become 0.

    >>> shrink(jnp.array([3.0, -0.5]), 1.0, 1.0).tolist()
    [1.0, -0.0]
    """
    return jnp.sign(x) * (jnp.maximum(jnp.abs(x) - l1, 0) / (1 + l2))
