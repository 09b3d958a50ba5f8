"""MADGRAD."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import Fraction, NonNegative
from gradtx.composition.chain import chain
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import elementwise
from gradtx.numerics import (
    Step,
    abs_sq,
    accumulator_dtype,
    compute_dtype,
    cube_root,
    own_copy,
    zeros_like,
)
from gradtx.transforms.decay import add_decayed_weights
from gradtx.types import Array, Counter, NonNegativeSlots, Slots


class MadgradState(NamedTuple):
    """count: i32[]; grad_sum_sq, s, x0: like the parameters, the two sums in float32 or wider.

    grad_sum_sq is real.
    """

    count: Counter
    grad_sum_sq: NonNegativeSlots
    s: Slots
    x0: Slots


@transformation
def scale_by_madgrad(
    learning_rate: NonNegative, momentum: Fraction = 0.9, eps: NonNegative = 1e-6
) -> GradientTransformation:
    r"""Dual averaging from the starting point, divided by the cube root of summed squares.

    .. math::
        \lambda_t &= (\eta + \epsilon) \sqrt{t}, \qquad
        \nu_t = \nu_{t-1} + \lambda_t |g_t|^2, \qquad s_t = s_{t-1} + \lambda_t g_t, \\
        z_t &= \theta_0 - \frac{s_t}{\sqrt[3]{\nu_t} + \epsilon}, \qquad
        u_t = (1 - \mu)(z_t - \theta_{t-1})

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        momentum: :math:`\mu` in :math:`[0, 1]`.
        eps: :math:`\epsilon \ge 0`; at 0, an entry that has had no gradient becomes NaN. As in
            the authors' code, it is also added to the learning rate unless that is 0; in Optax, to
            0 too, so that a warm-up moves before it begins.

    The update is the step itself, sign included: chain no learning rate after it.

    State: `MadgradState`. ``x0`` is :math:`\theta_0`, a copy of the parameters at ``init``. The
    sums are in float32 or wider; in bfloat16, where Optax keeps them, they stop growing.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: A. Defazio and S. Jelassi, Adaptivity without Compromise: A Momentumized, Adaptive, Dual
    Averaged Gradient Method for Stochastic Optimization, 2021, arXiv:2101.11075, algorithm 1.

    >>> tx = scale_by_madgrad(1.0, momentum=0.0, eps=0.0)
    >>> tx.update(jnp.array([8.0]), tx.init(jnp.zeros(1)), jnp.zeros(1))[0].round(6).tolist()
    [-2.0]
    """

    def slots(p: Array) -> dict[str, Array]:
        return {
            "grad_sum_sq": zeros_like(p, accumulator_dtype(p)),
            "s": zeros_like(p, compute_dtype(p.dtype)),
            "x0": own_copy(p),
        }

    def rule(g: Array, s: Any, t: Step, p: Array) -> Any:
        weight = jnp.where(learning_rate == 0, 0, learning_rate + eps) * jnp.sqrt(t.number)
        squares, dual = s.grad_sum_sq + weight * abs_sq(g), s.s + weight * g
        z = s.x0 - dual / (cube_root(squares) + eps)
        return (1 - momentum) * (z - p), {"grad_sum_sq": squares, "s": dual, "x0": s.x0}

    return elementwise(MadgradState, slots, rule)


@optimizer
def madgrad(
    learning_rate: NonNegative,
    momentum: Fraction = 0.9,
    weight_decay: NonNegative = 0.0,
    eps: NonNegative = 1e-6,
) -> GradientTransformation:
    r"""MADGRAD: dual averaging from the starting point, with momentum.

    .. math::
        \tilde g_t &= g_t + \lambda\theta_{t-1}, \qquad a_t = (\eta + \epsilon) \sqrt{t}, \\
        \nu_t &= \nu_{t-1} + a_t |\tilde g_t|^2, \qquad s_t = s_{t-1} + a_t \tilde g_t, \\
        z_t &= \theta_0 - \frac{s_t}{\sqrt[3]{\nu_t} + \epsilon}, \qquad
            \theta_t = \mu \theta_{t-1} + (1 - \mu) z_t

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        momentum: :math:`\mu` in :math:`[0, 1]`.
        weight_decay: :math:`\lambda \ge 0`; :math:`\lambda\theta` is added to the gradient.
        eps: :math:`\epsilon \ge 0`, added to the cube root and to a learning rate other than 0.

    Source: A. Defazio and S. Jelassi, Adaptivity without Compromise: A Momentumized, Adaptive, Dual
    Averaged Gradient Method for Stochastic Optimization, 2021, arXiv:2101.11075, algorithm 1.

    >>> import gradtx
    >>> tx = madgrad(0.1)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return chain(add_decayed_weights(weight_decay), scale_by_madgrad(learning_rate, momentum, eps))
