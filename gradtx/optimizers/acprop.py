"""ACProp."""

from typing import Any

import jax.numpy as jnp

from gradtx import numerics
from gradtx.checks import Decay, LearningRate, NonNegative
from gradtx.composition.chain import chain_reading_old
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import elementwise
from gradtx.leaves.paths import Where
from gradtx.numerics import Step, abs_sq, ema, moments
from gradtx.optimizers.adabelief import ScaleByBeliefState
from gradtx.transforms.decay import add_decayed_weights
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array


@transformation
def scale_by_acprop(
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-16,
    eps_root: NonNegative = 1e-16,
) -> GradientTransformation:
    r"""Divide each gradient by the deviation of the earlier ones from their mean.

    .. math::
        u_t &= \frac{g_t}{\sqrt{\nu_{t-1} / (1 - \beta_2^{t-1})} + \epsilon}, \qquad u_1 =
        \frac{g_1}{1 + \epsilon}, \\
        \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t - \mu_{t-1}|^2 + \bar\epsilon, \\
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`.
        b2: :math:`\beta_2` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`, outside the root.
        eps_root: :math:`\bar\epsilon \ge 0`, added to :math:`\nu` at every step, and kept in it.

    What is said of :math:`u_1` holds wherever :math:`\nu_{t-1} = 0`, as in a row of a table that no
    earlier step has touched. The deviation is from the mean before the step, as in Optax's code;
    Optax's documentation writes :math:`\mu_t`, which is the same up to the factor :math:`\beta_1`.

    State: `ScaleByBeliefState`; :math:`\nu` is kept in float32 or wider.

    Source: J. Zhuang et al., Momentum Centering and Asynchronous Update for Adaptive Gradient
    Methods, 2021, arXiv:2110.05454.

    >>> tx = scale_by_acprop()
    >>> tx.update(jnp.array([4.0]), tx.init(jnp.zeros(1)))[0].tolist()
    [4.0]
    """

    def rule(g: Array, s: Any, t: Step) -> Any:
        mu = ema(g, s.mu, b1)
        # In terms of the new mean, g - m' = b1 (g - m): XLA would copy the old one.
        invertible = isinstance(b1, float) and b1 >= 0.5
        deviation = (g - mu) * (1 / b1) if invertible else g - s.mu
        nu = b2 * s.nu + ((1 - b2) * abs_sq(deviation) + eps_root)
        correction = jnp.where(t.number == 1, 1, t.bias_correction(b2, ahead=-1))
        # 1 where there is no second moment yet, be it at the first step or in a row of a table.
        root = numerics.root(jnp.where(s.nu == 0, 1, s.nu * (1 / correction)))
        return g / (root + eps), {"mu": mu, "nu": nu}

    return elementwise(ScaleByBeliefState, moments, rule)


@optimizer
def acprop(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-16,
    eps_root: NonNegative = 1e-16,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
) -> GradientTransformation:
    r"""ACProp: steps along the gradient, divided by the deviation of the earlier gradients.

    .. math::
        \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t - \mu_{t-1}|^2 + \bar\epsilon, \\
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \\
        u_t &= \frac{g_t}{\sqrt{\nu_{t-1} / (1 - \beta_2^{t-1})} + \epsilon}, \qquad
            u_1 = \frac{g_1}{1 + \epsilon}, \\
        \theta_t &= \theta_{t-1} - \eta\, (u_t + \lambda \theta_{t-1})

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule. The
            first step is :math:`-\eta g`, however large the gradient.
        b1: :math:`\beta_1`, decay of the mean, in :math:`[0, 1)`.
        b2: :math:`\beta_2`, decay of the deviation, in :math:`[0, 1)`.
        eps: :math:`\epsilon`, added to the root, at least 0.
        eps_root: :math:`\bar\epsilon`, added to the deviation at every step, at least 0.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.

    Source: J. Zhuang et al., Momentum Centering and Asynchronous Update for Adaptive Gradient
    Methods, 2021, arXiv:2110.05454.

    >>> import gradtx
    >>> tx = acprop(0.1)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return chain_reading_old(
        "nu",
        scale_by_acprop(b1, b2, eps, eps_root),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )
