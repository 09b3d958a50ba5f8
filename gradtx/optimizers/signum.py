"""Signum."""

from gradtx.checks import Decay, LearningRate
from gradtx.composition.chain import chain
from gradtx.core.pair import GradientTransformation, optimizer
from gradtx.optimizers.sgd import scale_by_sign
from gradtx.transforms.momentum import ema
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import DType


@optimizer(update_size="adam")
def signum(
    learning_rate: LearningRate, beta: Decay = 0.9, accumulator_dtype: DType | None = None
) -> GradientTransformation:
    r"""The sign of the momentum.

    .. math:: m \leftarrow \beta m + (1 - \beta) g, \qquad
        \theta \leftarrow \theta - \eta\, \mathrm{sign}(m)

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        beta: :math:`\beta` in :math:`[0, 1)`.
        accumulator_dtype: the type in which :math:`m` is kept; the parameters' unless given.

    State: `EmaState`.

    Source: J. Bernstein et al., signSGD: Compressed Optimisation for Non-Convex Problems, 2018,
    arXiv:1802.04434, algorithm 2.

    >>> import jax.numpy as jnp
    >>> import gradtx
    >>> tx = signum(0.01)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-1))
    True
    """
    return chain(
        ema(beta, debias=False, accumulator_dtype=accumulator_dtype),
        scale_by_sign(),
        scale_by_learning_rate(learning_rate),
    )
