"""AdaMax and its variant with decoupled weight decay."""

from typing import Any

import jax.numpy as jnp

from gradtx.checks import Decay, LearningRate, NonNegative
from gradtx.composition.chain import chain
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import elementwise
from gradtx.leaves.paths import Where
from gradtx.numerics import Step, debias, ema, moments
from gradtx.optimizers.adam import ScaleByAdamState
from gradtx.transforms.decay import descent
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array


@transformation(update_size="adam")
def scale_by_adamax(
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    *,
    eps_in_max: bool = True,
) -> GradientTransformation:
    r"""Divide a moving average of the gradients by the decaying maximum of their sizes.

    .. math::
        \mu_t = \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
        \nu_t = \max(\beta_2 \nu_{t-1}, |g_t| + \epsilon), \qquad
        u_t = \frac{\mu_t}{(1 - \beta_1^t)\, \nu_t}

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`.
        b2: :math:`\beta_2` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`.
        eps_in_max: whether :math:`\epsilon` stands inside the maximum, as in PyTorch and Optax;
            Keras adds it to :math:`\nu_t` in the denominator.

    State: `ScaleByAdamState`; :math:`\nu` is real, and in float32 or wider. Optax keeps it in the
    parameter's type, where it does not decay in bfloat16 and a zero gradient gives NaN in float16.

    Source: D. P. Kingma and J. Ba, Adam: A Method for Stochastic Optimization, 2015,
    arXiv:1412.6980, algorithm 2.

    >>> tx = scale_by_adamax()
    >>> updates, state = tx.update(jnp.array([4.0]), tx.init(jnp.zeros(1)))
    >>> updates.round(6).tolist(), state.nu.tolist()
    ([1.0], [4.0])
    """

    def rule(g: Array, s: Any, t: Step) -> Any:
        mu = ema(g, s.mu, b1)
        nu = jnp.maximum(b2 * s.nu, jnp.abs(g) + (eps if eps_in_max else 0))
        return debias(mu, b1, t, divided=True) / (nu if eps_in_max else nu + eps), {
            "mu": mu,
            "nu": nu,
        }

    return elementwise(ScaleByAdamState, moments, rule)


@optimizer(update_size="adam")
def adamax(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    *,
    eps_in_max: bool = True,
) -> GradientTransformation:
    r"""AdaMax: steps along the mean gradient, divided by a decaying maximum of the gradient's size.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
        \nu_t = \max(\beta_2 \nu_{t-1}, |g_t| + \epsilon), \\
        \theta_t &= \theta_{t-1} - \eta\, \frac{\mu_t}{(1 - \beta_1^t)\, \nu_t}

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: :math:`\beta_1`, decay of the mean, in :math:`[0, 1)`.
        b2: :math:`\beta_2`, decay of the maximum, in :math:`[0, 1)`.
        eps: :math:`\epsilon`, added to the size of the gradient, at least 0.
        eps_in_max: whether `eps` stands inside the maximum, as in :func:`scale_by_adamax`.

    Source: D. P. Kingma and J. Ba, Adam: A Method for Stochastic Optimization, 2015,
    arXiv:1412.6980, algorithm 2.

    >>> import gradtx
    >>> tx = adamax(0.1)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return chain(
        scale_by_adamax(b1, b2, eps, eps_in_max=eps_in_max), scale_by_learning_rate(learning_rate)
    )


@optimizer(update_size="adam")
def adamaxw(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 1e-4,
    mask: Where | None = None,
) -> GradientTransformation:
    r"""AdaMax with decoupled weight decay.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
        \nu_t = \max(\beta_2 \nu_{t-1}, |g_t| + \epsilon), \\
        \theta_t &= \theta_{t-1} - \eta \left(\frac{\mu_t}{(1 - \beta_1^t)\, \nu_t}
            + \lambda \theta_{t-1}\right)

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: :math:`\beta_1`, decay of the mean, in :math:`[0, 1)`.
        b2: :math:`\beta_2`, decay of the maximum, in :math:`[0, 1)`.
        eps: :math:`\epsilon`, added to the size of the gradient, at least 0.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.

    Source: I. Loshchilov and F. Hutter, Decoupled Weight Decay Regularization, 2019,
    arXiv:1711.05101, applied to AdaMax.

    >>> import gradtx
    >>> tx = adamaxw(0.1, weight_decay=1e-3)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return descent(scale_by_adamax(b1, b2, eps), learning_rate, weight_decay, mask)
