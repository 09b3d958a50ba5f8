"""Noisy stochastic gradient descent."""

from typing import Any

from gradtx.checks import LearningRate, NonNegative
from gradtx.composition.chain import chain
from gradtx.core.pair import GradientTransformation, optimizer
from gradtx.transforms.noise import add_noise
from gradtx.transforms.scaling import scale_by_learning_rate


@optimizer
def noisy_sgd(
    learning_rate: LearningRate,
    eta: NonNegative = 0.01,
    gamma: NonNegative = 0.55,
    key: Any = None,
    *,
    seed: Any = None,
) -> GradientTransformation:
    r"""Gradient descent with noise whose variance falls.

    .. math:: \theta_t = \theta_{t-1}
        - \alpha \left(g_t + \sqrt{\eta / t^\gamma}\; \xi_t\right), \qquad \xi_t \sim N(0, 1)

    Args:
        learning_rate: :math:`\alpha \ge 0`; a number, an array, or a schedule.
        eta: :math:`\eta \ge 0`, the variance of the noise at the first step.
        gamma: :math:`\gamma \ge 0`, how fast it falls.
        key: a random key or an integer seed; 0 unless given.
        seed: Optax's old name for `key`.

    Source: A. Neelakantan et al., Adding Gradient Noise Improves Learning for Very Deep Networks,
    2015, arXiv:1511.06807.

    >>> import jax.numpy as jnp
    >>> import gradtx
    >>> tx = noisy_sgd(0.1, key=1)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-1))
    True
    """
    return chain(add_noise(eta, gamma, key, seed=seed), scale_by_learning_rate(learning_rate))
