"""Optimistic gradient descent and optimistic Adam, for games."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import Decay, LearningRate, NonNegative, Number
from gradtx.composition.chain import chain_reading_old
from gradtx.core.pair import (
    GradientTransformation,
    optimizer,
    transformation,
)
from gradtx.engine.lift import elementwise
from gradtx.names.namespace import warn
from gradtx.numerics import real_dtype
from gradtx.numerics.compiler_hints import delay, fuse, planned
from gradtx.optimizers.adam import scale_by_adam
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, DType, Slots, TreeScalar


class ScaleByOptimisticGradientState(NamedTuple):
    """is_initial_step: bool[]; previous_gradient: like the parameters."""

    is_initial_step: TreeScalar
    previous_gradient: Slots


@transformation
def scale_by_optimistic_gradient(alpha: Number = 1.0, beta: Number = 1.0) -> GradientTransformation:
    r"""Extrapolate from the last two updates.

    .. math:: u_t = (\alpha + \beta) g_t - \beta g_{t-1}, \qquad g_0 = g_1

    Args:
        alpha: :math:`\alpha`, of the gradient.
        beta: :math:`\beta`, of the negative momentum.

    State: `ScaleByOptimisticGradientState`.

    Source: A. Mokhtari, A. Ozdaglar and S. Pattathil, A Unified Analysis of Extra-gradient and
    Optimistic Gradient Methods for Saddle Point Problems, 2019, arXiv:1901.08511.

    >>> tx = scale_by_optimistic_gradient()
    >>> _, state = tx.update(jnp.array([1.0]), tx.init(jnp.zeros(1)))
    >>> tx.update(jnp.array([3.0]), state)[0].tolist()
    [5.0]
    """

    def rule(g: Array, s: Any, t: Any) -> Any:
        previous = jnp.where(s.is_initial_step, g, s.previous_gradient)
        return (alpha + beta) * g - beta * previous, {"previous_gradient": g}

    def plan(g: Array, s: Any, t: Any) -> Any:
        """The slot, which becomes the gradient, is written by the kernel that reads its old value.

        A TPU fuses a quotient with what reads it, and others wait for the direction.
        """
        g = fuse(g, after=s.is_initial_step.astype(real_dtype(g.dtype)))
        direction, new = rule(g, s, t)
        return direction, {n: delay(x, after=direction, on="all but tpu") for n, x in new.items()}

    return elementwise(
        ScaleByOptimisticGradientState,
        None,
        planned(rule, plan),
        start={"is_initial_step": True},
        advance=lambda s, t: {"is_initial_step": False},
    )


@optimizer
def optimistic_gradient_descent(
    learning_rate: LearningRate, alpha: Number = 1.0, beta: Number = 1.0
) -> GradientTransformation:
    r"""Optimistic gradient descent: each gradient is extrapolated from the one before.

    .. math:: \theta_t = \theta_{t-1}
        - \eta \left((\alpha + \beta) g_t - \beta g_{t-1}\right), \qquad g_0 = g_1

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        alpha: :math:`\alpha`, of the gradient; this and the next: a number, an array, or a
            schedule.
        beta: :math:`\beta`, of the negative momentum.

    Source: A. Mokhtari, A. Ozdaglar and S. Pattathil, A Unified Analysis of Extra-gradient and
    Optimistic Gradient Methods for Saddle Point Problems, 2019, arXiv:1901.08511.

    >>> import gradtx
    >>> tx = optimistic_gradient_descent(0.1)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return chain_reading_old(
        "previous_gradient",
        scale_by_optimistic_gradient(alpha, beta),
        scale_by_learning_rate(learning_rate),
    )


@optimizer
def optimistic_adam(
    learning_rate: NonNegative,
    optimism: NonNegative | None = None,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    eps_root: NonNegative = 0.0,
    mu_dtype: DType | None = None,
    *,
    nesterov: bool = True,
) -> GradientTransformation:
    r"""Optimistic Adam: each direction of Adam is extrapolated from the one before.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
            \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \\
        \bar\mu_t &= \frac{\beta_1 \mu_t}{1 - \beta_1^{t+1}}
            + \frac{(1 - \beta_1) g_t}{1 - \beta_1^t}, \qquad
            a_t = \frac{\bar\mu_t}{\sqrt{\nu_t / (1 - \beta_2^t) + \bar\epsilon} + \epsilon}, \\
        \theta_t &= \theta_{t-1} - (\eta + \omega) a_t + \omega a_{t-1}

    with :math:`a_0 = a_1`. Without Nesterov momentum
    :math:`\bar\mu_t = \mu_t / (1 - \beta_1^t)`.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or (not in Optax) a schedule.
        optimism: :math:`\omega \ge 0`; the learning rate unless given.
        b1: decay of the first moment, in :math:`[0, 1)`.
        b2: decay of the second moment, in :math:`[0, 1)`.
        eps: added to the root, at least 0.
        eps_root: added under the root, at least 0.
        mu_dtype: the type of the first moment.
        nesterov: use Nesterov momentum.

    It is deprecated, with a warning, as in Optax: :func:`optimistic_adam_v2` is the same method
    with other parameters.

    Source: C. Daskalakis et al., Training GANs with Optimism, 2018, arXiv:1711.00141, algorithm 1.

    >>> import gradtx, warnings
    >>> with warnings.catch_warnings(action="ignore"):
    ...     tx = optimistic_adam(0.05, optimism=0.02)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    warn("optimistic_adam: use `optimistic_adam_v2` instead", DeprecationWarning)
    return chain_reading_old(
        "previous_gradient",
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
        scale_by_optimistic_gradient(
            alpha=learning_rate, beta=learning_rate if optimism is None else optimism
        ),
        scale_by_learning_rate(1.0),
    )


@optimizer
def optimistic_adam_v2(
    learning_rate: LearningRate,
    *,
    alpha: Number = 1.0,
    beta: Number = 1.0,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    eps_root: NonNegative = 0.0,
    mu_dtype: DType | None = None,
    nesterov: bool = True,
) -> GradientTransformation:
    r"""Optimistic Adam whose weights do not depend on the learning rate.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
            \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \\
        \bar\mu_t &= \frac{\beta_1 \mu_t}{1 - \beta_1^{t+1}}
            + \frac{(1 - \beta_1) g_t}{1 - \beta_1^t}, \qquad
            a_t = \frac{\bar\mu_t}{\sqrt{\nu_t / (1 - \beta_2^t) + \bar\epsilon} + \epsilon}, \\
        \theta_t &= \theta_{t-1} - \eta \left((\alpha + \beta) a_t - \beta a_{t-1}\right)

    with :math:`a_0 = a_1`. Without Nesterov momentum
    :math:`\bar\mu_t = \mu_t / (1 - \beta_1^t)`.

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        alpha: :math:`\alpha`, of the direction.
        beta: :math:`\beta`, of the negative momentum.
        b1: decay of the first moment, in :math:`[0, 1)`.
        b2: decay of the second moment, in :math:`[0, 1)`.
        eps: added to the root, at least 0.
        eps_root: added under the root, at least 0.
        mu_dtype: the type of the first moment.
        nesterov: use Nesterov momentum.

    Source: C. Daskalakis et al., Training GANs with Optimism, 2018, arXiv:1711.00141, algorithm 1.

    >>> import gradtx
    >>> tx = optimistic_adam_v2(0.05)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return chain_reading_old(
        "previous_gradient",
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
        scale_by_optimistic_gradient(alpha=alpha, beta=beta),
        scale_by_learning_rate(learning_rate),
    )
