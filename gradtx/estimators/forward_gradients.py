"""Forward gradients: derivatives along random directions, without a backward pass."""

from typing import Any

from gradtx.checks import PositiveInt
from gradtx.estimators.estimator import Evaluations, estimator
from gradtx.types import Array


@estimator
def forward_gradients(samples: PositiveInt = 1, key: Any = 0) -> Evaluations:
    r"""Estimate gradients from derivatives along normal directions, in forward mode.

    .. math:: \hat g = \frac{1}{n} \sum_{k=1}^{n} \left(\nabla f(\theta)^\top z_k\right) z_k,
        \qquad z_k \sim N(0, I)

    Args:
        samples: :math:`n \ge 1`, how many directions, one after another.
        key: a random key or an integer seed, with which a state begins.

    Each direction takes one ``jax.jvp``, which keeps no activations. The estimate is unbiased,
    and the value that a step returns is the loss at the parameters; with `has_aux` the loss is
    evaluated once more. The variance grows with the number of parameters. In contrast to
    :func:`spsa` the loss must be differentiable in forward mode, and there is no scale to choose.

    Returns:
        An estimator, data as an optimizer is, for the argument `gradients` of :func:`minimize`,
        :func:`make_step` and :func:`compute_gradients`.

    Raises:
        ValueError: `samples` is below 1.

    Source: A. G. Baydin, B. A. Pearlmutter, D. Syme, F. Wood and P. Torr, Gradients without
    Backpropagation, 2022, arXiv:2202.08587, definition 1.

    >>> import jax, gradtx, jax.numpy as jnp
    >>> estimate = forward_gradients(samples=1000)
    >>> value, grads = gradtx.compute_gradients(
    ...     lambda x: jnp.sum(x**2),
    ...     jnp.ones(2),
    ...     gradients=estimate,
    ...     gradients_key=jax.random.key(0),
    ... )
    >>> float(value), bool(jnp.allclose(grads, 2, atol=0.5))
    (2.0, True)
    """

    def weights(slopes: Array) -> Array:
        return slopes / samples

    return Evaluations("normal", samples, None, weights)
