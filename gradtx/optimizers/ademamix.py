"""AdEMAMix and its simplified form."""

from typing import Any, NamedTuple

from gradtx import numerics
from gradtx.checks import Decay, LearningRate, NonNegative
from gradtx.core.pair import (
    GradientTransformation,
    optimizer,
    transformation,
)
from gradtx.engine.lift import elementwise
from gradtx.leaves.paths import Where
from gradtx.numerics import (
    Step,
    abs_sq,
    accumulator_dtype,
    compute_dtype,
    debias,
    ema,
    zero_mean,
    zeros_like,
)
from gradtx.transforms.decay import descent
from gradtx.types import Array, Counter, DType, NonNegativeSlots, Slots


class ScaleByAdemamixState(NamedTuple):
    """count, count_m2: i32[]; m1, m2, nu: like the parameters, nu real, m2 and nu f32 or wider."""

    count: Counter
    count_m2: Counter
    m1: Slots
    m2: Slots
    nu: NonNegativeSlots


@transformation(update_size="adam")
def scale_by_ademamix(
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    b3: Decay = 0.9999,
    alpha: NonNegative = 6.0,
    eps: NonNegative = 1e-8,
    eps_root: NonNegative = 0.0,
    mu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""Adam with a second, very slow momentum.

    .. math::
        m_{1} &\leftarrow \beta_1 m_{1} + (1 - \beta_1) g_t, \qquad
        m_{2} \leftarrow \beta_3 m_{2} + (1 - \beta_3) g_t, \\
        \nu &\leftarrow \beta_2 \nu + (1 - \beta_2) |g_t|^2, \qquad
        u_t = \frac{\hat m_1 + \alpha m_2}{\sqrt{\hat\nu + \bar\epsilon} + \epsilon}

    with :math:`\hat m_1 = m_1 / (1 - \beta_1^t)`, :math:`\hat\nu = \nu / (1 - \beta_2^t)`.

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`.
        b2: :math:`\beta_2` in :math:`[0, 1)`.
        b3: :math:`\beta_3` in :math:`[0, 1)`; the paper warms it up with a schedule.
        alpha: :math:`\alpha \ge 0`; the paper warms it up with a schedule.
        eps: :math:`\epsilon \ge 0`, outside the root.
        eps_root: :math:`\bar\epsilon \ge 0`, inside the root.
        mu_dtype: the type in which :math:`m_1` and :math:`m_2` are kept. Unless given, the
            parameter's for :math:`m_1`, and float32 or wider for :math:`m_2`: in bfloat16, as Optax
            may keep it, :math:`m_2` does not move when :math:`\beta_3` is near 1.

    State: `ScaleByAdemamixState`. :math:`\nu` is in float32 or wider; Optax keeps it in `mu_dtype`.
    Schedules are evaluated at ``count``; ``count_m2``, which Optax uses instead, is kept in step.

    Source: M. Pagliardini, P. Ablin and D. Grangier, The AdEMAMix Optimizer: Better, Faster, Older,
    2024, arXiv:2409.03137, algorithm 1.

    >>> import jax.numpy as jnp
    >>> tx = scale_by_ademamix(alpha=0.0)
    >>> tx.update(jnp.array([4.0]), tx.init(jnp.zeros(1)))[0].round(6).tolist()
    [1.0]
    """

    def slots(p: Array) -> dict[str, Array]:
        return {
            "m1": zero_mean(p, mu_dtype),
            "m2": zero_mean(p, compute_dtype(p.dtype) if mu_dtype is None else mu_dtype),
            "nu": zeros_like(p, accumulator_dtype(p)),
        }

    def rule(g: Array, s: Any, t: Step) -> Any:
        m1, m2, nu = ema(g, s.m1, b1), ema(g, s.m2, b3), ema(abs_sq(g), s.nu, b2)
        u = (debias(m1, b1, t) + alpha * m2) / (numerics.root(debias(nu, b2, t) + eps_root) + eps)
        return u, {"m1": m1, "m2": m2, "nu": nu}

    return elementwise(ScaleByAdemamixState, slots, rule)


@optimizer(update_size="adam")
def ademamix(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    b3: Decay = 0.9999,
    alpha: NonNegative = 5.0,
    eps: NonNegative = 1e-8,
    eps_root: NonNegative = 0.0,
    mu_dtype: DType | None = None,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
) -> GradientTransformation:
    r"""AdEMAMix: Adam with a second, very slow momentum.

    .. math::
        m_{1,t} &= \beta_1 m_{1,t-1} + (1 - \beta_1) g_t, &
        \hat m_{1,t} &= \frac{m_{1,t}}{1 - \beta_1^t}, \\
        m_{2,t} &= \beta_3 m_{2,t-1} + (1 - \beta_3) g_t, \\
        \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, &
        \hat\nu_t &= \frac{\nu_t}{1 - \beta_2^t}, \\
        \theta_t &= \theta_{t-1} - \eta \left(
            \frac{\hat m_{1,t} + \alpha m_{2,t}}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon}
            + \lambda \theta_{t-1}\right)

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: :math:`\beta_1`, decay of the fast momentum, in :math:`[0, 1)`.
        b2: :math:`\beta_2`, decay of the second moment, in :math:`[0, 1)`.
        b3: :math:`\beta_3`, decay of the slow momentum, in :math:`[0, 1)`.
        alpha: :math:`\alpha`, weight of the slow momentum, at least 0.
        eps: :math:`\epsilon`, added to the root, at least 0.
        eps_root: :math:`\bar\epsilon`, added under the root, at least 0.
        mu_dtype: the type of both momenta.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.

    Source: M. Pagliardini, P. Ablin and D. Grangier, The AdEMAMix Optimizer: Better, Faster, Older,
    2024, arXiv:2409.03137, algorithm 1.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = ademamix(0.05, b3=0.99)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=500)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return descent(
        scale_by_ademamix(b1, b2, b3, alpha, eps, eps_root, mu_dtype),
        learning_rate,
        weight_decay,
        mask,
    )


class ScaleBySimplifiedAdEMAMixState(NamedTuple):
    """t: i32[]; m, n: like the parameters, n real and in float32 or wider."""

    t: Counter
    m: Slots
    n: NonNegativeSlots


@transformation
def scale_by_simplified_ademamix(
    b1: Decay = 0.99,
    b2: Decay = 0.95,
    alpha: NonNegative = 0.0,
    eps: NonNegative = 1e-8,
    eps_root: NonNegative = 0.0,
) -> GradientTransformation:
    r"""AdEMAMix with the gradient in place of the fast momentum, and the slow one as a sum.

    .. math::
        m \leftarrow \beta_1 m + g_t, \qquad n \leftarrow \beta_2 n + (1 - \beta_2) |g_t|^2, \qquad
        u_t = \frac{m + \alpha g_t}{\sqrt{n / (1 - \beta_2^t) + \bar\epsilon} + \epsilon}

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`. The momentum is a sum, not a mean: steps are up to
            :math:`1 / (1 - \beta_1)` times those of Adam.
        b2: :math:`\beta_2` in :math:`[0, 1)`.
        alpha: :math:`\alpha \ge 0`.
        eps: :math:`\epsilon \ge 0`, outside the root.
        eps_root: :math:`\bar\epsilon \ge 0`, inside the root.

    State: `ScaleBySimplifiedAdEMAMixState`. For a complex parameter `n` is real; Optax averages the
    squares of the complex numbers.

    Source: D. Morwani et al., Connections between Schedule-Free Optimizers, AdEMAMix, and
    Accelerated SGD Variants, 2025, arXiv:2502.02431.

    >>> import jax.numpy as jnp
    >>> tx = scale_by_simplified_ademamix(alpha=1.0)
    >>> tx.update(jnp.array([4.0]), tx.init(jnp.zeros(1)))[0].round(6).tolist()
    [2.0]
    """

    def slots(p: Array) -> dict[str, Array]:
        return {"m": zeros_like(p), "n": zeros_like(p, accumulator_dtype(p))}

    def rule(g: Array, s: Any, t: Step) -> Any:
        m, n = g + b1 * s.m, ema(abs_sq(g), s.n, b2)
        u = (m + alpha * g) / (numerics.root(debias(n, b2, t) + eps_root) + eps)
        return u, {"m": m, "n": n}

    return elementwise(ScaleBySimplifiedAdEMAMixState, slots, rule)


@optimizer
def simplified_ademamix(
    learning_rate: LearningRate,
    b1: Decay = 0.99,
    b2: Decay = 0.95,
    alpha: NonNegative = 0.0,
    eps: NonNegative = 1e-8,
    eps_root: NonNegative = 0.0,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
) -> GradientTransformation:
    r"""Simplified AdEMAMix: one momentum, kept as a sum, plus the gradient.

    .. math::
        m_t &= \beta_1 m_{t-1} + g_t, \qquad
        n_t = \beta_2 n_{t-1} + (1 - \beta_2) |g_t|^2, \\
        \theta_t &= \theta_{t-1} - \eta \left(
            \frac{m_t + \alpha g_t}{\sqrt{n_t / (1 - \beta_2^t) + \bar\epsilon} + \epsilon}
            + \lambda \theta_{t-1}\right)

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: :math:`\beta_1`, decay of the momentum, in :math:`[0, 1)`.
        b2: :math:`\beta_2`, decay of the second moment, in :math:`[0, 1)`.
        alpha: :math:`\alpha`, weight of the gradient, at least 0.
        eps: :math:`\epsilon`, added to the root, at least 0.
        eps_root: :math:`\bar\epsilon`, added under the root, at least 0.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.

    Source: D. Morwani et al., Connections between Schedule-Free Optimizers, AdEMAMix, and
    Accelerated SGD Variants, 2025, arXiv:2502.02431.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = simplified_ademamix(1e-3, b1=0.9, alpha=10.0)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=500)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return descent(
        scale_by_simplified_ademamix(b1, b2, alpha, eps, eps_root),
        learning_rate,
        weight_decay,
        mask,
    )
