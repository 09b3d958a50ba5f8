"""Logarithms of probabilities, with finite gradients where a probability is 0."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.numerics import is_zero
from gradtx.types import Array

Axis = int | tuple[int, ...] | None


def product(weight: Array, log: Array) -> Array:
    """``weight * log``, and 0 where the weight is 0 and the logarithm infinite."""
    void = (weight == 0) & jnp.isinf(log)
    return jnp.where(void, 0, weight * jnp.where(void, 0, log))


def shifted(x: Array, axis: Axis, where: Any = None) -> tuple[Array, Array, Array]:
    """`x` minus its largest entry, the log-sum-exp of the result, and that entry.

    Subtracting first keeps the digits: the logarithm lies between 0 and that of the number of
    entries. The largest entry itself is left out of the sum, so that a logarithm near 0 keeps its
    digits too, and so do its derivatives. Masked entries are -inf; where all are masked, so is the
    largest, and the logarithm is 0.
    """
    if where is not None:
        x = jnp.where(where, x, -jnp.inf)
    top = _first_largest(jax.lax.stop_gradient(x), axis)
    largest = jax.lax.stop_gradient(_largest(x, axis))
    finite = jnp.isfinite(largest)
    top = top & finite
    largest = jnp.where(finite, jnp.sum(jnp.where(top, x, 0), axis, keepdims=True), largest)
    x = jnp.where(top, 0, x - jnp.where(finite, largest, 0))
    rest = jnp.sum(jnp.where(top, 0, jnp.exp(x)), axis, keepdims=True)
    other = jnp.log(jnp.where(finite | (rest == 0), 1, rest))
    return x, jnp.where(finite, jnp.log1p(jnp.where(finite, rest, 0)), other), largest


def _largest(x: Array, axis: Axis) -> Array:
    return jnp.max(x, axis, keepdims=True, initial=-jnp.inf)


def _first_largest(x: Array, axis: Axis) -> Array:
    """Whether an entry is the first of the largest ones; none is if one is NaN."""
    axes = (
        range(x.ndim) if axis is None else (axis,) if isinstance(axis, int | np.integer) else axis
    )
    number, length = jnp.zeros([], jnp.int32), 1
    for i in axes:
        number = number + length * jax.lax.broadcasted_iota(jnp.int32, x.shape, i % x.ndim)
        length *= x.shape[i]
    is_largest = x == _largest(x, axis)
    first = jnp.where(is_largest, number, length)
    return number == jnp.min(first, axis, keepdims=True, initial=length)


def log_softmax(x: Array, axis: Axis, where: Any = None) -> Array:
    """The logarithm of the softmax over the entries that are not masked; -inf at those that are."""
    x, log_sum, _ = shifted(x, axis, where)
    return x - log_sum


def complement(log_p: Array) -> Array:
    """``1 - exp(log_p)``; it keeps its digits near 0, and its derivative everywhere.

    The derivative of ``expm1`` is 1 plus its value, which has no digits where ``exp`` is small.
    """
    near = log_p > -0.5
    return jnp.where(near, -jnp.expm1(jnp.where(near, log_p, 0)), 1 - jnp.exp(log_p))


def over_classes(where: Any, like: Array, axis: Axis) -> Any:
    """A mask of examples as a mask of entries; a mask of entries, or None, unchanged."""
    where = None if where is None else jnp.asarray(where)
    if where is None or where.ndim == like.ndim:
        return where
    return jnp.expand_dims(where, range(like.ndim) if axis is None else axis)


def at_label(x: Array, labels: Array, axis: int = -1) -> Array:
    """The entries of `x` at integer labels; NaN for a label that is too large."""
    return jnp.squeeze(jnp.take_along_axis(x, jnp.expand_dims(labels, axis), axis), axis)


def has_z_loss(z_loss: Any) -> bool:
    """Whether a z-loss is asked for: not by the number 0."""
    return not is_zero(z_loss)


def z_penalty(z_loss: Any, log_sum: Array) -> Array:
    """`z_loss` times the square of the logarithm of a softmax's denominator."""
    return jnp.asarray(z_loss, log_sum.dtype) * jnp.square(log_sum)
