"""Stochastic gradient descent, and its sign."""

from typing import Any

import jax.numpy as jnp

from gradtx.checks import Fraction, LearningRate
from gradtx.composition.chain import chain, identity
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import elementwise
from gradtx.transforms.momentum import trace
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, DType, EmptyState


@optimizer(update_size="proportional")
def sgd(
    learning_rate: LearningRate,
    momentum: Fraction | None = None,
    nesterov: bool = False,
    accumulator_dtype: DType | None = None,
    *,
    dampening: Fraction | None = None,
) -> GradientTransformation:
    r"""Stochastic gradient descent, optionally with momentum.

    .. math:: m \leftarrow \mu m + (1 - d) g, \qquad
        \theta \leftarrow \theta - \eta m \;\text{ or, with Nesterov, }\; \theta - \eta (g + \mu m)

    Without momentum :math:`m = g`.

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        momentum: :math:`\mu` in :math:`[0, 1]`; None for none, which needs no slot.
        nesterov: use Nesterov momentum.
        accumulator_dtype: the type in which :math:`m` is kept; the parameters' unless given.
        dampening: `d` in :math:`[0, 1]`, from the second step on, as in :func:`trace`.

    The learning rate stands outside the momentum, as in PyTorch and Optax; in Keras it is inside,
    which makes a difference when it changes.

    Source: I. Sutskever et al., On the Importance of Initialization and Momentum in Deep Learning,
    2013, equations 1-4.

    >>> import gradtx
    >>> tx = sgd(0.05, momentum=0.9)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return chain(
        identity()
        if momentum is None
        else trace(momentum, nesterov, accumulator_dtype, dampening=dampening),
        scale_by_learning_rate(learning_rate),
    )


@transformation(update_size="adam")
def scale_by_sign() -> GradientTransformation:
    r"""The sign of each entry; of a complex one, :math:`g / |g|`; of 0, 0.

    Source: J. Bernstein et al., signSGD: Compressed Optimisation for Non-Convex Problems, 2018,
    arXiv:1802.04434.

    >>> tx = scale_by_sign()
    >>> tx.update(jnp.array([-3.0, 0.0]), tx.init(jnp.zeros(2)))[0].tolist()
    [-1.0, 0.0]
    """

    def rule(g: Array, s: Any, t: Any) -> Any:
        return jnp.sign(g), {}

    return elementwise(EmptyState, None, rule)


@optimizer(update_size="adam")
def sign_sgd(learning_rate: LearningRate) -> GradientTransformation:
    r"""Descent by the sign alone: :math:`\theta \leftarrow \theta - \eta\,\mathrm{sign}(g)`.

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.

    Source: J. Bernstein et al., signSGD: Compressed Optimisation for Non-Convex Problems, 2018,
    arXiv:1802.04434, algorithm 1.

    >>> import gradtx
    >>> tx = sign_sgd(0.01)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-1))
    True
    """
    return chain(scale_by_sign(), scale_by_learning_rate(learning_rate))
