"""MARS: variance-reduced gradients, and the optimizers built on them."""

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import Decay, LearningRate, Limit, NonNegative
from gradtx.composition.chain import chain_reading_old
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import elementwise, leafwise
from gradtx.leaves.paths import Where
from gradtx.numerics import Step, norm, shrunk
from gradtx.numerics.compiler_hints import planned, recompute, replace
from gradtx.optimizers.adam import scale_by_adam
from gradtx.optimizers.sgd import scale_by_sign
from gradtx.transforms.decay import add_decayed_weights
from gradtx.transforms.momentum import ema as moving_average
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, Counter, DType, Slots


class MarsState(NamedTuple):
    """count: i32[]; last: the gradients of the previous step, like the parameters."""

    count: Counter
    last: Slots


@transformation
def mars(
    b1: Decay = 0.95, gamma: NonNegative = 0.025, max_norm: Limit | None = 1.0
) -> GradientTransformation:
    r"""Correct the gradient by its change since the last step, which reduces its variance.

    .. math:: c_t = g_t + \gamma \frac{\beta_1}{1 - \beta_1} (g_t - g_{t-1}), \quad
        c_1 = g_1, \qquad u_t = c_t \min(1, m / \lVert c_t\rVert)

    It comes first in a chain, before any optimizer whose momentum decays by :math:`\beta_1`.

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`, that of the optimizer that follows.
        gamma: :math:`\gamma \ge 0`; a number, an array, or a schedule.
        max_norm: :math:`m \ge 0`, the largest norm of a leaf; None for no clipping, in which
            case `Rows` work too.

    This is the approximate version: :math:`g_{t-1}` is the gradient of the previous batch at the
    previous parameters; the exact one evaluates the current batch there, at the cost of a second
    gradient.

    State: `MarsState`.

    Source: H. Yuan et al., MARS: Unleashing the Power of Variance Reduction for Training Large
    Models, 2024, arXiv:2411.10438, algorithm 1 and section 3.3. As in the paper, and unlike in the
    authors' code, the first gradient is not corrected.

    >>> tx = mars(b1=0.5, gamma=0.5, max_norm=None)
    >>> state = tx.init(jnp.zeros(1))
    >>> for g in (4.0, 2.0):
    ...     updates, state = tx.update(jnp.array([g]), state)
    >>> updates.tolist()
    [1.0]
    """

    def weight(t: Step) -> Array:
        def first_or_later() -> Array:
            return jnp.where(t.number == 1, 0, gamma * b1 / (1 - b1))

        return t.once("weight of the change", 0, first_or_later)

    def rule(g: Array, s: Any, t: Step) -> Any:
        c = g + weight(t) * (g - s.last)
        if max_norm is not None:
            c = shrunk(c, norm(c), max_norm)
        return c, {"last": g}

    def corrected(weight: Array, g: Array, last: Array) -> Array:
        return (1 + weight) * g - weight * last

    def plan(g: Array, s: Any, t: Step) -> Any:
        """The correction is computed for its norm, and again for the update, not stored."""
        correct = partial(corrected, weight(t))
        if max_norm is None:
            c = correct(g, s.last)
        else:
            first = recompute(correct, g, s.last, after=t)
            length = norm(first, again=(correct, (g, s.last)), costly=True)
            c = recompute(correct, g, s.last, after=length.value, on="all")
            c = shrunk(c, length, max_norm)
        return c, {"last": replace(s.last, g)}

    scope = elementwise if max_norm is None else leafwise
    return scope(MarsState, None, planned(rule, plan))


@optimizer
def mars_adamw(
    learning_rate: LearningRate,
    b1: Decay = 0.95,
    b2: Decay = 0.99,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    *,
    gamma: NonNegative = 0.025,
    max_norm: Limit | None = 1.0,
    mu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""MARS-AdamW: AdamW on the corrected gradients of :func:`mars`.

    .. math::
        c_t &= g_t + \gamma \frac{\beta_1}{1 - \beta_1} (g_t - g_{t-1}), \qquad c_1 = g_1, \qquad
            \tilde c_t = c_t \min(1, m / \lVert c_t\rVert), \\
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) \tilde c_t, \qquad
            \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |\tilde c_t|^2, \\
        \theta_t &= \theta_{t-1} - \eta \left(\frac{\mu_t / (1 - \beta_1^t)}
            {\sqrt{\nu_t / (1 - \beta_2^t)} + \epsilon} + \lambda\theta_{t-1}\right)

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule. The
            authors take 3e-3.
        b1: decay of the first moment, in :math:`[0, 1)`.
        b2: decay of the second moment, in :math:`[0, 1)`.
        eps: added to the root of the second moment.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        gamma: :math:`\gamma`, the weight of the correction, as in :func:`mars`.
        max_norm: `m`, the largest norm of a leaf's corrected gradient; None for no clipping.
        mu_dtype: the type of the first moment.

    The authors' code uses plain AdamW for vectors; :func:`partition` can do the same here.

    Source: H. Yuan et al., MARS: Unleashing the Power of Variance Reduction for Training Large
    Models, 2024, arXiv:2411.10438, algorithm 2.

    >>> import gradtx
    >>> tx = mars_adamw(0.05)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return chain_reading_old(
        "last",
        mars(b1, gamma, max_norm),
        scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )


@optimizer
def mars_lion(
    learning_rate: LearningRate,
    b1: Decay = 0.95,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    *,
    gamma: NonNegative = 0.025,
    max_norm: Limit | None = 1.0,
    mu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""MARS-Lion: the sign of a moving average of the corrected gradients of :func:`mars`.

    .. math::
        c_t &= g_t + \gamma \frac{\beta_1}{1 - \beta_1} (g_t - g_{t-1}), \qquad c_1 = g_1, \qquad
            \tilde c_t = c_t \min(1, m / \lVert c_t\rVert), \\
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) \tilde c_t, \qquad
            \theta_t = \theta_{t-1} - \eta (\mathrm{sign}(\mu_t) + \lambda\theta_{t-1})

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: :math:`\beta_1` in :math:`[0, 1)`.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        gamma: :math:`\gamma`, the weight of the correction, as in :func:`mars`.
        max_norm: `m`, the largest norm of a leaf's corrected gradient; None for no clipping.
        mu_dtype: the type of the momentum.

    Source: H. Yuan et al., MARS: Unleashing the Power of Variance Reduction for Training Large
    Models, 2024, arXiv:2411.10438, algorithm 3.

    >>> import gradtx
    >>> tx = mars_lion(0.02)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-1))
    True
    """
    return chain_reading_old(
        "last",
        mars(b1, gamma, max_norm),
        moving_average(b1, debias=False, accumulator_dtype=mu_dtype),
        scale_by_sign(),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )
