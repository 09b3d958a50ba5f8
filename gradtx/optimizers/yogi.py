"""Yogi."""

from typing import Any

import jax.numpy as jnp

from gradtx.checks import Decay, NonNegative
from gradtx.composition.chain import chain
from gradtx.engine.lift import elementwise
from gradtx.numerics import Step, abs_sq, accumulator_dtype, debias, ema, full_like
from gradtx.optimizers.adam import ScaleByAdamState
from gradtx.pair import GradientTransformation, optimizer, transformation
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array


@transformation
def scale_by_yogi(
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-3,
    eps_root: NonNegative = 0.0,
    initial_accumulator_value: NonNegative = 1e-6,
) -> GradientTransformation:
    r"""Adam whose second moment moves by a part of the squared gradient, not of the difference.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \\
        \nu_t &= \nu_{t-1} - (1 - \beta_2)\, \mathrm{sign}(\nu_{t-1} - |g_t|^2)\, |g_t|^2, \\
        u_t &= \frac{\mu_t / (1 - \beta_1^t)}{\sqrt{\nu_t / (1 - \beta_2^t) + \bar\epsilon} +
        \epsilon}

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`.
        b2: :math:`\beta_2` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`, outside the root.
        eps_root: :math:`\bar\epsilon \ge 0`, inside the root.
        initial_accumulator_value: :math:`\mu_0 = \nu_0 \ge 0`. Like Optax this starts both moments
            there, and corrects them; the paper does neither.

    State: `ScaleByAdamState`; :math:`\nu` is kept in float32 or wider.

    Source: M. Zaheer et al., Adaptive Methods for Nonconvex Optimization, 2018, NeurIPS,
    algorithm 2.

    >>> tx = scale_by_yogi(initial_accumulator_value=0.0, eps=0.0)
    >>> tx.update(jnp.array([4.0]), tx.init(jnp.zeros(1)))[0].round(6).tolist()
    [1.0]
    """

    def slots(p: Array) -> dict[str, Array]:
        return {
            "mu": full_like(p, initial_accumulator_value),
            "nu": full_like(p, initial_accumulator_value, accumulator_dtype(p)),
        }

    def rule(g: Array, s: Any, t: Step) -> Any:
        mu, square = ema(g, s.mu, b1), abs_sq(g)
        nu = s.nu - (1 - b2) * jnp.sign(s.nu - square) * square
        u = debias(mu, b1, t, divided=True) / (jnp.sqrt(debias(nu, b2, t) + eps_root) + eps)
        return u, {"mu": mu, "nu": nu}

    return elementwise(ScaleByAdamState, slots, rule)


@optimizer
def yogi(
    learning_rate: NonNegative, b1: Decay = 0.9, b2: Decay = 0.999, eps: NonNegative = 1e-3
) -> GradientTransformation:
    r"""Yogi: :math:`\theta \leftarrow \theta - \eta\, u` with `u` of :func:`scale_by_yogi`.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        b1: decay of the first moment, in :math:`[0, 1)`.
        b2: rate of the second moment, in :math:`[0, 1)`.
        eps: added to the root, at least 0.

    Source: M. Zaheer et al., Adaptive Methods for Nonconvex Optimization, 2018, NeurIPS,
    algorithm 2.

    >>> yogi(1e-2)
    yogi(learning_rate=0.01, b1=0.9, b2=0.999, eps=0.001)
    """
    return chain(scale_by_yogi(b1, b2, eps), scale_by_learning_rate(learning_rate))
