"""Regression losses: one number for each prediction."""

from typing import Any

import jax
import jax.numpy as jnp

from gradtx.losses.arguments import check_shapes, floating, real
from gradtx.types import Array


def squared_error(predictions: Any, targets: Any | None = None) -> Array:
    r"""The squared error :math:`(x - y)^2`.

    Args:
        predictions: :math:`x`, floating-point.
        targets: :math:`y`, of the same shape; 0 unless given.

    >>> squared_error(jnp.array([1.0, 3.0]), jnp.array([1.0, 1.0])).tolist()
    [0.0, 4.0]
    """
    if targets is not None:
        check_shapes("squared_error", predictions=predictions, targets=targets)
    return jnp.square(_errors("squared_error", predictions, targets))


def absolute_error(predictions: Any, targets: Any | None = None) -> Array:
    r"""The absolute error :math:`|x - y|`, whose gradient is the sign of :math:`x - y`, 0 at 0.

    Args:
        predictions: :math:`x`, floating-point.
        targets: :math:`y`, of the same shape; 0 unless given.

    Raises:
        ValueError: the shapes differ.

    Optax has no such loss. Keras's ``MeanAbsoluteError`` and PyTorch's ``L1Loss`` are its mean.

    >>> absolute_error(jnp.array([1.0, 3.0]), jnp.array([1.0, 5.0])).tolist()
    [0.0, 2.0]
    """
    if targets is not None:
        check_shapes("absolute_error", predictions=predictions, targets=targets)
    error = _errors("absolute_error", predictions, targets)
    return error * jax.lax.stop_gradient(jnp.sign(error))  # the slope of jnp.abs at 0 is 1


def l2_loss(predictions: Any, targets: Any | None = None) -> Array:
    r"""Half the squared error, :math:`\tfrac12 (x - y)^2`, whose gradient is :math:`x - y`.

    Args:
        predictions: :math:`x`, floating-point.
        targets: :math:`y`, of the same shape; 0 unless given.

    >>> l2_loss(jnp.array([1.0, 3.0]), jnp.array([1.0, 1.0])).tolist()
    [0.0, 2.0]
    """
    if targets is not None:
        check_shapes("l2_loss", predictions=predictions, targets=targets)
    return jnp.square(_errors("l2_loss", predictions, targets)) / 2


def huber_loss(predictions: Any, targets: Any | None = None, *, delta: Any = 1.0) -> Array:
    r"""Half the squared error near 0 and linear farther out, so that the gradient is bounded.

    .. math:: \tfrac12 e^2 \text{ if } |e| \le \delta, \qquad
        \delta\,(|e| - \tfrac12 \delta) \text{ else}, \qquad e = x - y

    Args:
        predictions: :math:`x`, floating-point.
        targets: :math:`y`; 0 unless given.
        delta: :math:`\delta \ge 0`; infinity gives half the squared error.

    Source: P. J. Huber, Robust Estimation of a Location Parameter, 1964.

    >>> huber_loss(jnp.array([1.0, 3.0])).tolist()
    [0.5, 2.5]
    """
    error = jnp.abs(_errors("huber_loss", predictions, targets))
    # 0 times infinity would be NaN.
    delta = jnp.minimum(delta, jnp.finfo(error.dtype).max)
    # The slope of one part is exactly 0 where that of the other is not.
    far = jnp.maximum(error - delta, 0)
    return jnp.square(jnp.minimum(error, delta)) / 2 + delta * far


def log_cosh(predictions: Any, targets: Any | None = None) -> Array:
    r"""The logarithm of the hyperbolic cosine of the error, whose gradient is its tanh.

    .. math:: \log \cosh e \approx \tfrac12 e^2 \text{ near 0, and } |e| - \log 2 \text{ far from
        it}, \qquad e = x - y

    Args:
        predictions: :math:`x`, floating-point.
        targets: :math:`y`; 0 unless given.

    Small errors keep their digits; Optax loses them by subtracting :math:`\log 2` from nearly the
    same number.

    Source: P. Chen, G. Chen and S. Zhang, Log Hyperbolic Cosine Loss Improves Variational
    Auto-Encoder, 2019.

    >>> [round(float(x), 7) for x in log_cosh(jnp.array([1e-3, 100.0]))]
    [5e-07, 99.3068542]
    """
    error = jnp.abs(_errors("log_cosh", predictions, targets))
    near = jnp.log1p(2 * jnp.square(jnp.sinh(jnp.minimum(error, 1) / 2)))
    far = error + jnp.log1p(jnp.exp(-2 * error)) - jnp.log(2.0).astype(error.dtype)
    return jnp.where(error < 1, near, far)


def _errors(where: str, predictions: Any, targets: Any | None) -> Array:
    (x,) = floating(where, predictions=predictions)
    return x if targets is None else x - real(targets, x.dtype)
