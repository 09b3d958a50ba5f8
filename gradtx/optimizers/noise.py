"""Noisy stochastic gradient descent."""

from typing import Any

from gradtx.checks import NonNegative
from gradtx.composition.chain import chain
from gradtx.pair import GradientTransformation, optimizer
from gradtx.transforms.noise import add_noise
from gradtx.transforms.scaling import scale_by_learning_rate


@optimizer
def noisy_sgd(
    learning_rate: NonNegative,
    eta: NonNegative = 0.01,
    gamma: NonNegative = 0.55,
    key: Any = None,
    *,
    seed: int | None = None,
) -> GradientTransformation:
    r"""Gradient descent with noise: :math:`\theta \leftarrow \theta - \alpha\, u`.

    The direction `u` is that of :func:`add_noise`.

    Args:
        learning_rate: :math:`\alpha \ge 0`; a number, an array, or a schedule.
        eta: variance of the noise at the first step, at least 0.
        gamma: how fast it falls, at least 0.
        key: a random key or an integer seed; 0 unless given.
        seed: Optax's old name for `key`.

    Source: A. Neelakantan et al., Adding Gradient Noise Improves Learning for Very Deep Networks,
    2015, arXiv:1511.06807.

    >>> noisy_sgd(0.1, key=1)
    noisy_sgd(learning_rate=0.1, eta=0.01, gamma=0.55, key=1)
    """
    return chain(add_noise(eta, gamma, key, seed=seed), scale_by_learning_rate(learning_rate))
