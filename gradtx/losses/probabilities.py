"""Logarithms of probabilities, with finite gradients where a probability is 0."""

from typing import Any

import jax
import jax.numpy as jnp

from gradtx.types import Array

Axis = int | tuple[int, ...] | None


def product(weight: Array, log: Array) -> Array:
    """``weight * log``, and 0 where the weight is 0 and the logarithm infinite."""
    void = (weight == 0) & jnp.isinf(log)
    return jnp.where(void, 0, weight * jnp.where(void, 0, log))


def shifted(x: Array, axis: Axis, where: Any = None) -> tuple[Array, Array, Array]:
    """`x` minus its largest entry, the log-sum-exp of the result, and that entry.

    Subtracting first keeps the digits: the logarithm lies between 0 and that of the number of
    entries. Masked entries are -inf; where all are masked, so is the largest, and the logarithm is
    0.
    """
    if where is not None:
        x = jnp.where(where, x, -jnp.inf)
    largest = jax.lax.stop_gradient(jnp.max(x, axis, keepdims=True, initial=-jnp.inf))
    x = x - jnp.where(jnp.isfinite(largest), largest, 0)
    total = jnp.sum(jnp.exp(x), axis, keepdims=True)
    return x, jnp.log(jnp.where(total == 0, 1, total)), largest


def log_softmax(x: Array, axis: Axis, where: Any = None) -> Array:
    """The logarithm of the softmax over the entries that are not masked; -inf at those that are."""
    x, log_sum, _ = shifted(x, axis, where)
    return x - log_sum


def over_classes(where: Any, like: Array, axis: Axis) -> Any:
    """A mask of examples as a mask of entries; a mask of entries, or None, unchanged."""
    where = None if where is None else jnp.asarray(where)
    if where is None or where.ndim == like.ndim:
        return where
    return jnp.expand_dims(where, axis)  # type: ignore[arg-type]


def at_label(x: Array, labels: Array, axis: int = -1) -> Array:
    """The entries of `x` at integer labels; NaN for a label that is too large."""
    return jnp.squeeze(jnp.take_along_axis(x, jnp.expand_dims(labels, axis), axis), axis)


def has_z_loss(z_loss: Any) -> bool:
    """Whether a z-loss is asked for: not by the number 0."""
    return not (isinstance(z_loss, int | float) and z_loss == 0)


def z_penalty(z_loss: Any, log_sum: Array) -> Array:
    """`z_loss` times the square of the logarithm of a softmax's denominator."""
    return jnp.asarray(z_loss, log_sum.dtype) * jnp.square(log_sum)
