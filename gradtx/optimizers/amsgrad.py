"""AMSGrad."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx import numerics
from gradtx.checks import Decay, LearningRate, NonNegative
from gradtx.composition.chain import chain
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import elementwise
from gradtx.numerics import Step, abs_sq, accumulator_dtype, debias, ema, zero_mean, zeros_like
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, Counter, DType, NonNegativeSlots, Slots


class ScaleByAmsgradState(NamedTuple):
    """count: i32[]; mu, nu, nu_max: like the parameters, the last two real, float32 or wider."""

    count: Counter
    mu: Slots
    nu: NonNegativeSlots
    nu_max: NonNegativeSlots


@transformation(update_size="adam")
def scale_by_amsgrad(
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    eps_root: NonNegative = 0.0,
    mu_dtype: DType | None = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
    *,
    max_before_correction: bool = False,
    epsilon_hat: bool = False,
) -> GradientTransformation:
    r"""Adam with the largest second moment so far.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, &
        \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \\
        \nu^{\max}_t &= \max(\nu^{\max}_{t-1}, \hat\nu_t), &
        u_t &= \frac{\hat\mu_t}{\sqrt{\nu^{\max}_t + \bar\epsilon} + \epsilon}

    with :math:`\hat\mu_t = \mu_t / (1 - \beta_1^t)` and :math:`\hat\nu_t = \nu_t / (1 -
    \beta_2^t)`.

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`.
        b2: :math:`\beta_2` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`, outside the root.
        eps_root: :math:`\bar\epsilon \ge 0`, inside the root.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.
        bias_correction_mu: correct :math:`\mu`; the paper does not.
        bias_correction_nu: correct :math:`\nu`; the paper does not.
        max_before_correction: take the maximum of :math:`\nu_t` itself and correct the maximum, as
            PyTorch and Keras do. With the maximum of the corrected moments (Optax's, and the
            default) the large correction of the first step, which rests on one gradient, is never
            forgotten.
        epsilon_hat: add :math:`\epsilon` to the root before the bias correction of :math:`\nu`, if
            there is one, as Keras does.

    The paper's algorithm has neither correction: set both `bias_correction_mu` and
    `bias_correction_nu` to False.

    State: `ScaleByAmsgradState`.

    Source: S. J. Reddi, S. Kale and S. Kumar, On the Convergence of Adam and Beyond, 2018,
    arXiv:1904.09237, algorithm 2.

    >>> tx = scale_by_amsgrad()
    >>> updates, state = tx.update(jnp.array([4.0]), tx.init(jnp.zeros(1)))
    >>> updates.round(6).tolist()
    [1.0]
    """

    def slots(p: Array) -> dict[str, Array]:
        dtype = accumulator_dtype(p)
        return {
            "mu": zero_mean(p, mu_dtype),
            "nu": zeros_like(p, dtype),
            "nu_max": zeros_like(p, dtype),
        }

    def rule(g: Array, s: Any, t: Step) -> Any:
        mu, nu = ema(g, s.mu, b1), ema(abs_sq(g), s.nu, b2)
        m = debias(mu, b1, t, divided=True) if bias_correction_mu else mu
        first = max_before_correction or not bias_correction_nu
        nu_max = jnp.maximum(s.nu_max, nu if first else debias(nu, b2, t))
        v = debias(nu_max, b2, t) if max_before_correction and bias_correction_nu else nu_max
        new = {"mu": mu, "nu": nu, "nu_max": nu_max}
        is_corrected = epsilon_hat and bias_correction_nu
        added = numerics.epsilon_hat(eps, b2, t) if is_corrected else eps
        return m / (numerics.root(v + eps_root) + added), new

    return elementwise(ScaleByAmsgradState, slots, rule)


@optimizer(update_size="adam")
def amsgrad(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    eps_root: NonNegative = 0.0,
    mu_dtype: DType | None = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
    *,
    max_before_correction: bool = False,
    epsilon_hat: bool = False,
) -> GradientTransformation:
    r"""AMSGrad: Adam with the largest second moment so far.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, &
        \hat\mu_t &= \frac{\mu_t}{1 - \beta_1^t}, \\
        \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, &
        \hat\nu_t &= \frac{\nu_t}{1 - \beta_2^t}, \\
        \nu^{\max}_t &= \max(\nu^{\max}_{t-1}, \hat\nu_t), \\
        \theta_t &= \theta_{t-1}
            - \eta\, \frac{\hat\mu_t}{\sqrt{\nu^{\max}_t + \bar\epsilon} + \epsilon}

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: :math:`\beta_1`, decay of the first moment, in :math:`[0, 1)`.
        b2: :math:`\beta_2`, decay of the second moment, in :math:`[0, 1)`.
        eps: :math:`\epsilon`, added to the root, at least 0.
        eps_root: :math:`\bar\epsilon`, added under the root, at least 0.
        mu_dtype: the type of the first moment.
        bias_correction_mu: correct the first moment; else :math:`\hat\mu_t = \mu_t`.
        bias_correction_nu: correct the second moment; else :math:`\hat\nu_t = \nu_t`.
        max_before_correction: take the maximum of :math:`\nu_t` and correct that, as PyTorch and
            Keras do.
        epsilon_hat: add `eps` before the bias correction, as Keras does.

    Source: S. J. Reddi, S. Kale and S. Kumar, On the Convergence of Adam and Beyond, 2018,
    arXiv:1904.09237, algorithm 2.

    >>> import gradtx
    >>> tx = amsgrad(0.1, bias_correction_mu=False, bias_correction_nu=False)  # the paper's
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=300)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return chain(
        scale_by_amsgrad(
            b1,
            b2,
            eps,
            eps_root,
            mu_dtype,
            bias_correction_mu,
            bias_correction_nu,
            max_before_correction=max_before_correction,
            epsilon_hat=epsilon_hat,
        ),
        scale_by_learning_rate(learning_rate),
    )
