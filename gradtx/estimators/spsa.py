"""Simultaneous perturbation: the gradient from two values of the loss."""

from typing import Any

from gradtx.checks import Positive, PositiveInt, check_one_number
from gradtx.estimators.directions import check_distribution
from gradtx.estimators.estimator import Evaluations, estimator
from gradtx.types import Array


@estimator
def spsa(
    scale: Positive = 1e-3,
    samples: PositiveInt = 1,
    distribution: str = "rademacher",
    key: Any = 0,
) -> Evaluations:
    r"""Estimate gradients from the loss at two points on both sides of the parameters.

    .. math:: \hat g = \frac{1}{n} \sum_{k=1}^{n}
        \frac{f(\theta + c z_k) - f(\theta - c z_k)}{2 c} \, z_k

    Args:
        scale: :math:`c > 0`, how far the parameters are moved: small, but so large that the two
            losses differ in their type. A number or an array.
        samples: :math:`n \ge 1`, how many directions, one after another.
        distribution: that of the directions: ``"rademacher"`` for entries of 1 and -1 as in Spall's
            paper, ``"normal"`` as in MeZO, or ``"sphere"`` for normal ones that are brought to the
            length :math:`\sqrt d` for :math:`d` numbers.
        key: a random key or an integer seed, with which a state begins.

    The loss is evaluated `2 n` times and never differentiated: it may be an accuracy, or hold a
    ``jax.pure_callback``. The value that a step returns is the mean of these losses, which differs
    from the loss at the parameters by :math:`O(c^2)`; with `has_aux` the loss is evaluated once
    more, at the parameters, for the value and the auxiliary output.

    The expectation of the estimate is the gradient but for :math:`O(c^2)`; its variance grows with
    the number of parameters, so that steps must be smaller, and hundreds of times more, than those
    of a backward pass. The estimate has :math:`z` in place of the paper's :math:`1/z`, which is the
    same for 1 and -1. Parameters in bfloat16 are moved to the nearest number there.

    Returns:
        An estimator, data as an optimizer is, for the argument `gradients` of :func:`minimize`,
        :func:`make_step` and :func:`compute_gradients`.

    Raises:
        ValueError: `scale` is not above 0, or several numbers, `samples` is below 1, or no
            distribution has this name.
        TypeError: `scale` is a schedule.

    Source: J. C. Spall, Multivariate Stochastic Approximation Using a Simultaneous Perturbation
    Gradient Approximation, 1992, IEEE Transactions on Automatic Control 37, equation 2.2; S.
    Malladi et al., Fine-Tuning Language Models with Just Forward Passes, 2023, arXiv:2305.17333
    (MeZO, with normal directions).

    >>> import gradtx, jax.numpy as jnp
    >>> step = gradtx.make_step(lambda x: jnp.sum((x - 1) ** 2), gradtx.sgd(0.1), gradients=spsa())
    >>> params = jnp.zeros(2)
    >>> state = step.init(params)
    >>> for _ in range(100):
    ...     params, state, value = step(params, state)
    >>> bool(jnp.allclose(params, 1, atol=1e-2))
    True
    """
    check_distribution("spsa", distribution)

    def weights(values: Array) -> Array:
        check_one_number("spsa", "scale", scale)
        return (values[:, 0] - values[:, 1]) / (2 * scale * samples)

    return Evaluations(distribution, samples, (scale, -scale), weights)
