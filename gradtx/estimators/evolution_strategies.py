"""Evolution strategies: a population around the parameters, judged by ranks."""

from typing import Any

import jax.numpy as jnp

from gradtx.checks import Positive, PositiveInt, check_one_number
from gradtx.estimators.estimator import Evaluations, estimator
from gradtx.types import Array


@estimator
def evolution_strategies(
    population: PositiveInt, scale: Positive, ranks: bool = True, key: Any = 0
) -> Evaluations:
    r"""Estimate gradients of a loss that is smoothed by normal noise, from a population.

    .. math:: \hat g = \frac{1}{n \sigma} \sum_{k=1}^{n/2} (F_k^+ - F_k^-)\, z_k,
        \qquad F_k^\pm = f(\theta \pm \sigma z_k), \qquad z_k \sim N(0, I)

    Args:
        population: :math:`n`, an even number of points, in pairs on both sides of the parameters.
        scale: :math:`\sigma > 0`, the deviation of the noise. A number or an array.
        ranks: whether :math:`F` is the loss's rank among the population, evenly from -1/2 to 1/2:
            the estimate is then the same for any increasing function of the loss, and outliers
            count no more than others. Equal losses share the mean of their ranks, and losses that
            are not finite rank last; if none is finite, the gradient is NaN.
        key: a random key or an integer seed, with which a state begins.

    The loss is evaluated `n` times, one after another, and never differentiated. The value that a
    step returns is the mean of these losses; with `has_aux` the loss is evaluated once more, at the
    parameters. With ``ranks=False`` the estimate is that of :func:`spsa` with half as many samples
    from the normal distribution, and unbiased for the smoothed loss.

    Returns:
        An estimator, data as an optimizer is, for the argument `gradients` of :func:`minimize`,
        :func:`make_step` and :func:`compute_gradients`.

    Raises:
        ValueError: `population` is odd or below 2; `scale` is not above 0, or several numbers.
        TypeError: `scale` is a schedule.

    Source: T. Salimans, J. Ho, X. Chen, S. Sidor and I. Sutskever, Evolution Strategies as a
    Scalable Alternative to Reinforcement Learning, 2017, arXiv:1703.03864, algorithm 1 and section
    2.1, with pairs of opposite signs. There equal rewards get ranks in their order.

    >>> import gradtx, jax.numpy as jnp
    >>> estimate = evolution_strategies(population=20, scale=0.1)
    >>> step = gradtx.make_step(
    ...     lambda x: jnp.sum((x - 1) ** 2), gradtx.sgd(0.02), gradients=estimate
    ... )
    >>> params = jnp.zeros(2)
    >>> state = step.init(params)
    >>> for _ in range(100):
    ...     params, state, value = step(params, state)
    >>> bool(jnp.allclose(params, 1, atol=0.1))
    True
    """
    if population % 2:
        raise ValueError(
            f"evolution_strategies: population must be even, not {population}: its points come in "
            "pairs on both sides of the parameters"
        )

    def weights(values: Array) -> Array:
        check_one_number("evolution_strategies", "scale", scale)
        shaped = _centered_ranks(values) if ranks else values
        return (shaped[:, 0] - shaped[:, 1]) / (population * scale)

    return Evaluations("normal", population // 2, (scale, -scale), weights)


def _centered_ranks(values: Array) -> Array:
    """The ranks of values, evenly from -1/2 to 1/2; NaN where no value is finite."""
    finite = jnp.isfinite(values)
    flat = jnp.where(finite, values, jnp.inf).ravel()
    ordered = jnp.sort(flat)
    below = jnp.searchsorted(ordered, flat, side="left")
    up_to = jnp.searchsorted(ordered, flat, side="right")
    rank = (below + up_to - 1).astype(values.dtype) / 2  # the mean of those that are equal
    centered = rank.reshape(values.shape) / (values.size - 1) - 0.5
    return jnp.where(jnp.any(finite), centered, jnp.nan)
