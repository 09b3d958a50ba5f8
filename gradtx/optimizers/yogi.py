"""Yogi."""

from typing import Any

import jax.numpy as jnp

from gradtx.checks import Decay, InitialNonNegative, InitialNumber, LearningRate, NonNegative
from gradtx.composition.chain import chain
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import elementwise
from gradtx.numerics import Step, abs_sq, accumulator_dtype, debias, ema, full_like, root
from gradtx.optimizers.adam import ScaleByAdamState
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array


@transformation(update_size="adam")
def scale_by_yogi(
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-3,
    eps_root: NonNegative = 0.0,
    initial_accumulator_value: InitialNonNegative = 1e-6,
    *,
    initial_mean: InitialNumber | None = None,
    bias_correction: bool = True,
) -> GradientTransformation:
    r"""Adam whose second moment moves by a fraction of the squared gradient, not of the difference.

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
        initial_accumulator_value: :math:`\nu_0 \ge 0`.
        initial_mean: :math:`\mu_0`; equal to :math:`\nu_0` unless given, as in Optax.
        bias_correction: divide the moments by :math:`1 - \beta^t`, as in Optax. The paper does
            not, and starts its mean at 0: ``initial_mean=0.0, bias_correction=False``.

    State: `ScaleByAdamState`; :math:`\nu` is kept in float32 or wider.

    Source: M. Zaheer et al., Adaptive Methods for Nonconvex Optimization, 2018, NeurIPS,
    algorithm 2.

    >>> tx = scale_by_yogi(initial_accumulator_value=0.0, eps=0.0)
    >>> tx.update(jnp.array([4.0]), tx.init(jnp.zeros(1)))[0].round(6).tolist()
    [1.0]
    """

    def slots(p: Array) -> dict[str, Array]:
        return {
            "mu": full_like(p, initial_accumulator_value if initial_mean is None else initial_mean),
            "nu": full_like(p, initial_accumulator_value, accumulator_dtype(p)),
        }

    def rule(g: Array, s: Any, t: Step) -> Any:
        mu, square = ema(g, s.mu, b1), abs_sq(g)
        nu = s.nu - (1 - b2) * jnp.sign(s.nu - square) * square
        mean, second = mu, nu
        if bias_correction:
            mean, second = debias(mu, b1, t, divided=True), debias(nu, b2, t)
        return mean / (root(second + eps_root) + eps), {"mu": mu, "nu": nu}

    return elementwise(ScaleByAdamState, slots, rule)


@optimizer(update_size="adam")
def yogi(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-3,
    *,
    initial_accumulator_value: InitialNonNegative = 1e-6,
    initial_mean: InitialNumber | None = None,
    bias_correction: bool = True,
) -> GradientTransformation:
    r"""Yogi: Adam whose second moment moves by a fraction of the squared gradient.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \\
        \nu_t &= \nu_{t-1} - (1 - \beta_2)\, \mathrm{sign}(\nu_{t-1} - |g_t|^2)\, |g_t|^2, \\
        \theta_t &= \theta_{t-1} - \eta\,
            \frac{\mu_t / (1 - \beta_1^t)}{\sqrt{\nu_t / (1 - \beta_2^t)} + \epsilon}

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: decay of the first moment, in :math:`[0, 1)`.
        b2: rate of the second moment, in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`, added to the root.
        initial_accumulator_value: :math:`\nu_0 \ge 0`; this and the rest as in
            :func:`scale_by_yogi`.
        initial_mean: :math:`\mu_0`; None for :math:`\nu_0`.
        bias_correction: divide the moments by :math:`1 - \beta^t`.

    The paper's version is ``yogi(1e-2, initial_mean=0.0, bias_correction=False)``.

    Source: M. Zaheer et al., Adaptive Methods for Nonconvex Optimization, 2018, NeurIPS,
    algorithm 2.

    >>> import gradtx
    >>> tx = yogi(0.05)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    by = scale_by_yogi(
        b1,
        b2,
        eps,
        initial_accumulator_value=initial_accumulator_value,
        initial_mean=initial_mean,
        bias_correction=bias_correction,
    )
    return chain(by, scale_by_learning_rate(learning_rate))
