"""Optimistic gradient descent and optimistic Adam, for games."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import Decay, NonNegative, Number
from gradtx.engine.lift import elementwise
from gradtx.numerics import real_dtype, zeros_like
from gradtx.numerics.steering import delay, fuse
from gradtx.optimizers.adam import scale_by_adam
from gradtx.pair import (
    GradientTransformation,
    optimizer,
    transformation,
)
from gradtx.training.apply import chain_reading_old
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

    def slots(p: Array) -> dict[str, Array]:
        return {"previous_gradient": zeros_like(p)}

    def rule(g: Array, s: Any, t: Any) -> Any:
        g = fuse(g, after=s.is_initial_step.astype(real_dtype(g.dtype)))
        previous = jnp.where(s.is_initial_step, g, s.previous_gradient)
        direction = (alpha + beta) * g - beta * previous
        return direction, {"previous_gradient": delay(g, after=direction, on="all but tpu")}

    return elementwise(
        ScaleByOptimisticGradientState,
        slots,
        rule,
        start={"is_initial_step": True},
        advance=lambda s, t: {"is_initial_step": False},
    )


@optimizer
def optimistic_gradient_descent(
    learning_rate: NonNegative, alpha: Number = 1.0, beta: Number = 1.0
) -> GradientTransformation:
    r"""Optimistic gradient descent: :math:`\theta \leftarrow \theta - \eta\, u`.

    The direction `u` is that of :func:`scale_by_optimistic_gradient`.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        alpha: weight of the gradient; this and the next: a number, an array, or a schedule.
        beta: weight of the negative momentum.

    Source: A. Mokhtari, A. Ozdaglar and S. Pattathil, A Unified Analysis of Extra-gradient and
    Optimistic Gradient Methods for Saddle Point Problems, 2019, arXiv:1901.08511.

    >>> optimistic_gradient_descent(0.1)
    optimistic_gradient_descent(learning_rate=0.1, alpha=1.0, beta=1.0)
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
    r"""Optimistic Adam: :math:`\theta \leftarrow \theta - (\eta + \omega) a_t + \omega a_{t-1}`.

    :math:`a_t` is the direction of :func:`scale_by_adam`.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or (not in Optax) a schedule.
        optimism: :math:`\omega \ge 0`; the learning rate unless given.
        b1: decay of the first moment, in :math:`[0, 1)`.
        b2: decay of the second moment, in :math:`[0, 1)`.
        eps: added to the root, at least 0.
        eps_root: added under the root, at least 0.
        mu_dtype: the type of the first moment.
        nesterov: use Nesterov momentum.

    Optax calls it deprecated in favour of :func:`optimistic_adam_v2`, which is the same with
    another parameterization; here both stay.

    Source: C. Daskalakis et al., Training GANs with Optimism, 2018, arXiv:1711.00141, algorithm 1.

    >>> tx = optimistic_adam(1e-3, optimism=5e-4)
    """
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
    learning_rate: NonNegative,
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

    .. math:: \theta \leftarrow \theta - \eta \left((\alpha + \beta) a_t - \beta a_{t-1}\right)

    :math:`a_t` is the direction of :func:`scale_by_adam`.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        alpha: weight of the direction.
        beta: weight of the negative momentum.
        b1: decay of the first moment, in :math:`[0, 1)`.
        b2: decay of the second moment, in :math:`[0, 1)`.
        eps: added to the root, at least 0.
        eps_root: added under the root, at least 0.
        mu_dtype: the type of the first moment.
        nesterov: use Nesterov momentum.

    Source: C. Daskalakis et al., Training GANs with Optimism, 2018, arXiv:1711.00141, algorithm 1.

    >>> tx = optimistic_adam_v2(lambda count: 1e-3 / (1 + count))
    """
    return chain_reading_old(
        "previous_gradient",
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
        scale_by_optimistic_gradient(alpha=alpha, beta=beta),
        scale_by_learning_rate(learning_rate),
    )
