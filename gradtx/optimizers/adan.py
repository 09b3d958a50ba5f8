"""Adan."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx import numerics
from gradtx.checks import Decay, Fraction, LearningRate, NonNegative
from gradtx.core.pair import (
    GradientTransformation,
    optimizer,
    transformation,
)
from gradtx.engine.lift import elementwise
from gradtx.leaves.paths import Where
from gradtx.numerics import Step, abs_sq, accumulator_dtype, debias, ema, zeros_like
from gradtx.numerics.compiler_hints import replace
from gradtx.transforms.decay import descent
from gradtx.types import Array, Counter, NonNegativeSlots, Slots


class ScaleByAdanState(NamedTuple):
    """m, v, n, g: like the parameters, n real and in float32 or wider; t: i32[]."""

    m: Slots
    v: Slots
    n: NonNegativeSlots
    g: Slots
    t: Counter


@transformation(update_size="adam")
def scale_by_adan(
    b1: Decay = 0.98,
    b2: Decay = 0.92,
    b3: Decay = 0.99,
    eps: NonNegative = 1e-8,
    eps_root: NonNegative = 0.0,
    *,
    difference_weight: Fraction | None = None,
) -> GradientTransformation:
    r"""Adam with Nesterov momentum estimated from differences of gradients.

    .. math::
        d_t &= g_t - g_{t-1}, \quad d_1 = 0, \\
        m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad
        v_t = \beta_2 v_{t-1} + (1 - \beta_2) d_t, \\
        n_t &= \beta_3 n_{t-1} + (1 - \beta_3) |g_t + \kappa d_t|^2, \\
        u_t &= \frac{\hat m_t + \kappa \hat v_t}{\sqrt{\hat n_t + \bar\epsilon} + \epsilon}

    where a hat divides by :math:`1 - \beta_i^t`.

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`.
        b2: :math:`\beta_2` in :math:`[0, 1)`.
        b3: :math:`\beta_3` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`, outside the root.
        eps_root: :math:`\bar\epsilon \ge 0`, inside the root.
        difference_weight: :math:`\kappa` in :math:`[0, 1]`; :math:`1 - \beta_2` unless given, as in
            Optax. **The paper and its authors' code take** :math:`\beta_2`: the paper's
            :math:`1 - \beta_2` is for decays defined as 1 minus ours, so its default weight is
            0.92 where Optax has 0.08.

    State: `ScaleByAdanState`; :math:`n` is kept in float32 or wider.

    Source: X. Xie et al., Adan: Adaptive Nesterov Momentum Algorithm for Faster Optimizing Deep
    Models, 2022, arXiv:2208.06677, algorithm 1.

    >>> tx = scale_by_adan()
    >>> updates, state = tx.update(jnp.array([4.0]), tx.init(jnp.zeros(1)))
    >>> updates.round(6).tolist(), int(state.t)
    ([1.0], 1)
    """
    weight = 1 - b2 if difference_weight is None else difference_weight

    def slots(p: Array) -> dict[str, Array]:
        n = zeros_like(p, accumulator_dtype(p))
        return {"m": zeros_like(p), "v": zeros_like(p), "n": n, "g": zeros_like(p)}

    def rule(g: Array, s: Any, t: Step) -> Any:
        diff = jnp.where(t.number == 1, 0, g - s.g)
        m, v = ema(g, s.m, b1), ema(diff, s.v, b2)
        n = ema(abs_sq(g + weight * diff), s.n, b3)
        u = debias(m, b1, t) + weight * debias(v, b2, t)
        new = {"m": m, "v": v, "n": n, "g": replace(s.g, g, v, n)}
        return u / (numerics.root(debias(n, b3, t) + eps_root) + eps), new

    return elementwise(ScaleByAdanState, slots, rule)


@optimizer(update_size="adam")
def adan(
    learning_rate: LearningRate,
    b1: Decay = 0.98,
    b2: Decay = 0.92,
    b3: Decay = 0.99,
    eps: NonNegative = 1e-8,
    eps_root: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    *,
    difference_weight: Fraction | None = None,
) -> GradientTransformation:
    r"""Adan: Adam with Nesterov momentum estimated from differences of gradients.

    .. math::
        d_t &= g_t - g_{t-1}, \quad d_1 = 0, \\
        m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad
        v_t = \beta_2 v_{t-1} + (1 - \beta_2) d_t, \\
        n_t &= \beta_3 n_{t-1} + (1 - \beta_3) |g_t + \kappa d_t|^2, \\
        \hat m_t &= \frac{m_t}{1 - \beta_1^t}, \qquad
        \hat v_t = \frac{v_t}{1 - \beta_2^t}, \qquad
        \hat n_t = \frac{n_t}{1 - \beta_3^t}, \\
        \theta_t &= \theta_{t-1} - \eta \left(
            \frac{\hat m_t + \kappa \hat v_t}{\sqrt{\hat n_t + \bar\epsilon} + \epsilon}
            + \lambda \theta_{t-1}\right)

    The paper decays by dividing by :math:`1 + \lambda\eta`, which is the same to first order.

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: :math:`\beta_1`, decay of the gradients, in :math:`[0, 1)`.
        b2: :math:`\beta_2`, decay of their differences, in :math:`[0, 1)`.
        b3: :math:`\beta_3`, decay of the squares, in :math:`[0, 1)`.
        eps: :math:`\epsilon`, added to the root, at least 0.
        eps_root: :math:`\bar\epsilon`, added under the root, at least 0.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        difference_weight: :math:`\kappa` in :math:`[0, 1]`, weight of the differences;
            :math:`1 - \beta_2` unless given, and `b2` in the paper's algorithm.

    Source: X. Xie et al., Adan: Adaptive Nesterov Momentum Algorithm for Faster Optimizing Deep
    Models, 2022, arXiv:2208.06677, algorithm 1.

    >>> import gradtx
    >>> tx = adan(0.1, difference_weight=0.92)  # the paper's
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return descent(
        scale_by_adan(b1, b2, b3, eps, eps_root, difference_weight=difference_weight),
        learning_rate,
        weight_decay,
        mask,
    )
