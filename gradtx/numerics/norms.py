"""Euclidean norms of any finite numbers, also of those whose squares overflow or vanish.

The plain sum of squares is taken first. Where it is infinite, or so small that squares have lost
digits, the entries are multiplied by a power of two and their squares summed again: on a CPU in a
loop that seldom runs; on other chips the three sums are taken in one pass.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.numerics.control import inside
from gradtx.numerics.mathematics import abs_sq, add_each, divide
from gradtx.numerics.precision import as_inexact, widen
from gradtx.programs.contexts import for_comparison
from gradtx.programs.tracing import as_call, is_staged, is_tracer
from gradtx.types import Array, DType, PyTree

Axes = int | Sequence[int] | None

Scales = Sequence[Any]

Chip = Literal["cpu", "other"]

Again = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function, and its arguments."""


class Norm(NamedTuple):
    """A norm, ``value * unit``, which itself may be larger than the largest number.

    unit: a power of two; 1 wherever the plain sum of squares will do.
    """

    value: Array
    unit: Array

    @property
    def number(self) -> Array:
        """The norm as one number: infinity if it is larger than any other."""
        return self.value * self.unit

    @classmethod
    def of(cls, number: Array) -> "Norm":
        """The parts of a norm that is given as a number."""
        far = _far(number.dtype)
        unit = jnp.where(number > far, far, 1).astype(number.dtype)
        return cls(number / unit, unit)

    def at_least(self, least: Any) -> "Norm":
        """The larger of the norm and a number."""
        if isinstance(least, int | float) and least == 0:
            return self
        small = self.number < least
        return Norm(jnp.where(small, least, self.value), jnp.where(small, 1, self.unit))


def norm(
    x: Array,
    axes: Axes = None,
    *,
    again: Again | None = None,
    costly: bool = False,
    looped: bool = False,
) -> Norm:
    """The norm of all entries, or over `axes`, which are kept; in at least float32.

    Args:
        x: an array.
        axes: the axes to sum over; None for all, without keeping them.
        again: how to compute `x` once more, if it is not stored: a loop would have it stored.
        costly: whether `x` is so costly to compute that three sums would have it stored on a TPU or
            a GPU. Its plain squares are then summed there, which must neither overflow nor vanish.
        looped: whether several norms too may have a loop on a CPU, whose turns are for all of them.

    The derivative at zero is 0.

    >>> float(norm(jnp.array([3 * 2.0**100, 4 * 2.0**100])).number) / 2**100
    5.0
    """
    return _norm(x, axes, again, 1, costly, looped)


def root_mean_square(x: Array, axes: Axes = None, *, again: Again | None = None) -> Norm:
    """The root mean square of all entries, or over `axes`, as in :func:`norm`; 0 for none."""
    count = x.size if axes is None else _size(x, axes)
    return _norm(x, axes, again, max(count, 1))


def rms(x: Array) -> Array:
    """The root mean square as one number."""
    return root_mean_square(x).number


def plain_rms(x: Array, axes: Axes = None) -> Array:
    """The root mean square where squares are in range, as of quotients of numbers of one size."""
    count = max(x.size if axes is None else _size(x, axes), 1)
    total = jnp.sum(abs_sq(jax.lax.stop_gradient(widen(x))), axes, keepdims=axes is not None)
    value = jnp.sqrt(total / count)
    return with_derivative(Norm(value, jnp.ones_like(value)), [x], axes, count).value


def _size(x: Array, axes: int | Sequence[int]) -> int:
    of = (axes,) if isinstance(axes, int) else axes
    return functools.reduce(lambda n, axis: n * x.shape[axis], of, 1)


def _norm(
    x: Array,
    axes: Axes,
    again: Again | None,
    count: int,
    costly: bool = False,
    looped: bool = False,
) -> Norm:
    x = as_inexact(x)
    sums = functools.partial(_means_of_squares, axes, count)
    if isinstance(axes, tuple) and not axes:
        size = jnp.abs(widen(jax.lax.stop_gradient(x)))
        length = Norm(size, jnp.ones_like(size))
    elif again is not None:
        of_one, arrays = again
        length = norm_of_sums(sums, (x,), ((lambda *arrays: (of_one(*arrays),)), arrays), costly)
    elif is_tracer(x):
        over = axes if axes is None or isinstance(axes, int) else tuple(axes)
        length = _traced(x, over, count, costly, axes is not None and not looped)
    else:
        length = norm_of_sums(sums, (x,), costly=costly)
    return with_derivative(length, [x], axes, count)


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _traced(x: Array, axes: Axes, count: int, costly: bool, independent: bool) -> Norm:
    """The norm as a function that is called, traced once for all leaves of a shape."""
    sums = functools.partial(_means_of_squares, axes, count)
    return norm_of_sums(sums, (x,), costly=costly, independent=independent)


def _means_of_squares(
    axes: Axes, count: int, scales: Scales, x: Array, *, on: Chip | None = None
) -> list[Array]:
    totals = sums_of_squares(scales, x, axes, on=on)
    return totals if count == 1 else [total / count for total in totals]


def sums_of_squares(
    scales: Scales, x: Array, axes: Axes = None, *, on: Chip | None = None
) -> list[Array]:
    """The sum of squares of `x` times each scale (None is 1), over `axes`, which are kept.

    On a TPU or a GPU several sums are one reduction.
    """
    x, over, keep = widen(x), range(x.ndim) if axes is None else axes, axes is not None
    over = (over,) if isinstance(over, int) else tuple(over)
    # XLA would square the scale of a single entry by itself, which overflows.
    if x.size == 1 and not for_comparison.value:
        scales = jax.lax.optimization_barrier(list(scales))
    terms = [abs_sq(x if scale is None else x * scale) for scale in scales]

    def separate_sums(*terms: Array) -> list[Array]:
        if not keep:
            return [jax.lax.reduce_sum(term, over) for term in terms]
        return [jnp.sum(term, over, keepdims=True) for term in terms]

    def one_reduction(*terms: Array) -> list[Array]:
        zeros = tuple(np.zeros([], term.dtype) for term in terms)
        of = [axis % x.ndim for axis in over]
        totals = jax.lax.reduce(terms, zeros, add_each, of)
        return [jnp.expand_dims(total, of) if keep else total for total in totals]

    return one_reduction(*terms) if on == "other" and len(terms) > 1 else separate_sums(*terms)


def norm_of_sums(
    sums: Callable[..., list[Array]],
    arrays: PyTree,
    again: Again | None = None,
    costly: bool = False,
    independent: bool = False,
) -> Norm:
    """The root of ``sums((None,), *arrays)[0]``, as a constant to differentiation.

    Args:
        sums: ``(scales, *arrays, on=None) -> sums of squares``, one for each scale, by which
            numbers are multiplied before they are squared; None is 1. `on` is the kind of chip for
            which they are traced, or None where that is not known.
        arrays: the arrays to sum.
        again: computes the arrays once more, for a second pass.
        costly: whether chips other than a CPU take the plain sum alone.
        independent: whether no norm may depend on another, as in a loop for all of them.
    """
    arrays = jax.lax.stop_gradient(arrays)
    function, needed = _themselves, arrays
    if again is not None:
        function, needed = again[0], jax.lax.stop_gradient(again[1])

    def if_needed(on: Chip | None = None) -> Array:
        short = _shortened(sums((None,), *arrays, on=on)[0])

        def over_again(i: Array, short: Array) -> Array:
            unit, scale = _units(i, short)
            (total,) = sums((scale,), *function(*inside(needed, i)), on=on)
            return _improved(i, short, total, unit)

        first, end = _needed_turns(short)
        return _turns(first, end, over_again, short)

    def at_once(on: Chip) -> Array:
        far = _far_of(jax.tree.leaves(arrays))
        return _of_three(*sums(_units_of_three(far), *arrays, on=on), far=far)

    def as_it_is(on: Chip) -> Array:
        return _shortened(sums((None,), *arrays, on=on)[0])

    if any(map(is_tracer, jax.tree.leaves(arrays))):
        on_cpu = functools.partial(at_once if independent else if_needed, "cpu")
        on_others = functools.partial(as_it_is if costly else at_once, "other")
        return _in_parts(jax.lax.platform_dependent(cpu=on_cpu, default=on_others))
    return _in_parts(if_needed())


def sums_in_units(sums: Callable[..., list[Array]], arrays: PyTree) -> Array:
    """Three sums of squares of a part of all entries, to be added to those of other parts.

    :func:`norm_in_units` makes the norm of their totals. `sums` is as in :func:`norm_of_sums`. The
    units are those of float32 for all parts, so that float64 norms are right from 1e-178 to 1e178.
    """
    return jnp.stack(sums(_units_of_three(_far(jnp.float32)), *arrays))


def norm_in_units(totals: Array) -> Norm:
    """The norm from the totals of :func:`sums_in_units`, as a constant to differentiation."""
    return _in_parts(_of_three(*jax.lax.stop_gradient(totals), far=_far(jnp.float32)))


def _themselves(*arrays: Any) -> Any:
    return arrays


@jax.jit
def _needed_turns(short: Array) -> tuple[Array, Array]:
    """The first turn is for norms that are too large, the second for those that are too small."""
    # Extremes are compared, since booleans would be one array more.
    first = jnp.where(jnp.max(short, initial=0) == jnp.inf, 0, 1)
    end = jnp.where(jnp.min(short, initial=1) < _least(short.dtype), 2, 1)
    return first, end


@jax.jit
def _units(turn: Array, like: Array) -> tuple[Array, Array]:
    """The unit of norms in a turn of the loop, and the scale for it, 1 / unit."""
    far = _far(like.dtype)
    unit = jnp.where(turn == 0, far, 1 / far).astype(like.dtype)
    return unit, 1 / unit


@functools.partial(jax.jit, static_argnames="far")
def _of_three(plain: Array, of_large: Array, of_small: Array, far: float) -> Array:
    """The shortened norm from the sums of squares in the units of :func:`_units_of_three`."""
    least = _least(plain.dtype)
    short = _shortened(plain)
    small = jnp.where(short < least, _shortened(of_small, 1 / far), short)
    return jnp.where(short == jnp.inf, _shortened(of_large, far), small)


@jax.jit
def _improved(i: Array, short: Array, total: Array, unit: Array) -> Array:
    """The shortened norm, where too large (in turn 0) or too small, from squares in a unit."""
    wrong = jnp.where(i == 0, short == jnp.inf, short < _least(short.dtype))
    return jnp.where(wrong, _shortened(total, unit), short)


def _least(dtype: DType) -> float:
    """The least shortened norm of up to 2**32 numbers whose squares have kept their digits.

    Digits lost below the least normal number are then beyond the last place. The bound does not
    depend on how many there are, so that a formula is the same for any number of rows.
    """
    kind = jnp.finfo(dtype)
    return float(float(kind.tiny) / float(kind.eps)) ** 0.5


def _far(dtype: DType) -> float:
    """A power of two; times it, or its inverse, numbers have squares without over- or underflow."""
    return float(2.0 ** (5 * jnp.finfo(dtype).maxexp // 8))


def _far_of(arrays: Sequence[Any]) -> float:
    """The power of two of :func:`_far` that is a number in the types of all arrays."""
    return min(
        (_far(jnp.promote_types(x.dtype, jnp.float32)) for x in arrays), default=_far(jnp.float32)
    )


def _units_of_three(far: float) -> Scales:
    """The scales of the three sums: plain, for norms that are too large, for those too small."""
    return None, 1 / far, far


# Times this factor the norm of 2**32 finite numbers is finite. It is a single array then, so that a
# branch needs no memory for two.
_SHORT = 2.0**-16


def _shortened(total: Array, unit: Any = 1.0) -> Array:
    return jnp.sqrt(total) * (unit * _SHORT)


def _turns(first: Array, end: Array, body: Callable[[Any, Array], Array], now: Array) -> Array:
    """A loop keeps its result in the memory of `now`; under ``vmap`` it runs only if needed."""
    if is_tracer(now):
        return jax.lax.fori_loop(first, end, body, now)
    for i in range(int(first), int(end)):
        now = body(i, now)
    return now


@jax.jit
def _in_parts(short: Array) -> Norm:
    """The norm, from its shortened value."""
    far, edge = _far(short.dtype), 2.0 ** (jnp.finfo(short.dtype).maxexp // 2 - 1)
    large, small = short > edge * _SHORT, (short < _SHORT / edge) & (short > 0)

    def chosen(if_large: float, if_small: float, otherwise: float) -> Array:
        least = jnp.where(small, if_small, otherwise)
        return jnp.where(large, if_large, least).astype(short.dtype)

    value = short * chosen(1 / (_SHORT * far), far / _SHORT, 1 / _SHORT)
    return Norm(value, chosen(far, 1 / far, 1.0))


def with_derivative(parts: Norm, xs: Sequence[Array], axes: Axes = None, count: int = 1) -> Norm:
    """A norm of arrays, with its derivative with respect to these; 0 where the norm is 0."""
    of = _of_staged if is_staged(parts.value) else _of_arrays
    over = axes if axes is None or isinstance(axes, int) else tuple(axes)
    return Norm(of(over, count, parts.value, parts.unit, list(xs)), parts.unit)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _of_arrays(axes: Axes, count: int, value: Array, unit: Array, xs: list[Array]) -> Array:
    return value


# A function with a custom derivative is traced at every call, and this one once for a shape.
_of_staged = jax.jit(_of_arrays, static_argnums=(0, 1), inline=True)


@_of_arrays.defjvp
def _differentiate(axes: Axes, count: int, primals: Any, tangents: Any) -> Any:
    value, unit, xs = primals
    value = _of_arrays(axes, count, value, unit, xs)  # which has a derivative too

    def change(x: Array, dx: Array) -> Array:
        x, dx = widen(x) / unit, widen(dx) / unit
        moved = (divide(x, value * count).conj() * dx).real
        return jnp.sum(moved, axes, keepdims=axes is not None)

    changes = [change(x, dx) for x, dx in zip(xs, tangents[2], strict=True)]
    return value, functools.reduce(jnp.add, changes, jnp.zeros_like(value))


def shrink_factors(length: Norm, most: Any) -> tuple[Array, Array]:
    """Two factors that together shorten `length` to `most`: ``min(1, most / length)``.

    The first is 1, or a power of two if their product would be too small a number.
    """
    return in_two(signed_factor(length, most))


@as_call
def in_two(signed: Array) -> tuple[Array, Array]:
    """The factors of :func:`shrink_factors` from :func:`signed_factor`."""
    power = jnp.where(signed < 0, 1 / _far(signed.dtype), 1)
    return power.astype(signed.dtype), jnp.abs(signed)


def shrunk(x: Array, length: Norm, most: Any) -> Array:
    """`x`, whose norm is `length`, shortened to at most `most`.

    >>> x = jnp.array([3e38, 3e38])
    >>> shrunk(x, norm(x), 1.0).round(4).tolist()
    [0.70..., 0.70...]
    """
    power, factor = shrink_factors(length, most)
    return x * power * factor


@as_call
def signed_factor(length: Norm, most: Any) -> Array:
    """Both factors of :func:`shrink_factors` as one array, below 0 where there is a power."""
    within = length.number <= most
    shorter = jnp.where(length.unit > 1, -length.value, length.number)
    return jnp.where(within, 1, most) / jnp.where(within, 1, shorter)


def shrink_factor(length: Array, most: Any) -> Array:
    """The factor of :func:`shrink_factors` for a norm that is one number."""
    return shrink_factors(Norm(length, jnp.ones_like(length)), most)[1]


def ratio_factors(
    size: Norm, length: Norm, coefficient: Any = 1.0, eps: Any = 0.0
) -> tuple[Array, Array]:
    """Two factors that together are ``coefficient * size / (length + eps)``; 0 for a length of 0.

    The first is a power of two, as in :func:`shrink_factors`.
    """
    ratio = divide(coefficient * size.value, length.value + eps / length.unit)
    return 1 / length.unit, ratio * size.unit
