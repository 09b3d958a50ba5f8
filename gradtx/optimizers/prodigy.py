"""Prodigy."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import Decay, NonNegative, Positive
from gradtx.core.pair import GradientTransformation, transformation
from gradtx.engine.tree import treewise
from gradtx.leaves.paths import Where
from gradtx.numerics import (
    Step,
    abs_sq,
    accumulator_dtype,
    compute_dtype,
    divide,
    ema,
    own_copy,
    root,
    zeros_like,
)
from gradtx.numerics.compiler_hints import sums_in_one_pass
from gradtx.optimizers.dadapt import rate_of_step
from gradtx.types import Array, Counter, NonNegativeSlots, Slots, TreeScalar


class ProdigyState(NamedTuple):
    """Slots and numbers in float32 or wider, `exp_avg_sq` real; count: i32[].

    params0: the starting point, in the parameters' types; estim_lr: the current learning rate;
    numerator_weighted: the numerator of its estimate.
    """

    exp_avg: Slots
    exp_avg_sq: NonNegativeSlots
    grad_sum: Slots
    params0: Slots
    estim_lr: TreeScalar
    numerator_weighted: TreeScalar
    count: Counter


class _ProdigyOptions(NamedTuple):
    """Hyperparameters under the names of :func:`prodigy`."""

    learning_rate: Any
    b1: Any
    b2: Any
    b3: Any
    eps: Any
    estim_lr0: Any
    estim_lr_coef: Any
    weight_decay: Any
    safeguard_warmup: bool
    bias_correction: bool


def _step(
    g: list[Array], s: Any, t: Step, p: list[Array], chosen: list[bool], options: _ProdigyOptions
) -> Any:
    """The equations of :func:`prodigy`; the leaves that are `chosen` decay."""
    d, rate = s.estim_lr, rate_of_step(options, s, t)
    weight = d / options.estim_lr0 * (d if options.safeguard_warmup else rate)

    def first(g: Array, m: Array) -> Array:
        return ema(d * g, m, options.b1)

    def second(g: Array, v: Array) -> Array:
        return ema(abs_sq(d * g), v, options.b2)

    def summed(g: Array, a: Array) -> Array:
        return options.b3 * a + weight * g

    def product(g: Array, start: Array, p: Array) -> Array:
        return (jnp.conj(g) * (start - p)).real

    def direction(m: Array, v: Array, p: Array, decays: bool) -> Array:
        u = -rate * (m / (root(v) + new * options.eps))
        return u - (options.weight_decay * rate) * p if decays else u

    mean = jax.tree.map(first, g, s.exp_avg)
    square = jax.tree.map(second, g, s.exp_avg_sq)
    total = jax.tree.map(summed, g, s.grad_sum)
    products = jax.tree.map(product, g, s.params0, p)
    back, norm = sums_in_one_pass(products, jax.tree.map(jnp.abs, total))
    numerator = options.b3 * s.numerator_weighted + d / options.estim_lr0 * rate * back
    new = jnp.maximum(d, divide(options.estim_lr_coef * numerator, norm))
    directions = jax.tree.map(direction, mean, square, p, chosen)
    return directions, {
        "exp_avg": mean,
        "exp_avg_sq": square,
        "grad_sum": total,
        "estim_lr": new,
        "numerator_weighted": numerator,
    }


@transformation
def prodigy(
    learning_rate: NonNegative = 1.0,
    betas: tuple[Decay, Decay] = (0.9, 0.999),
    beta3: Decay | None = None,
    eps: NonNegative = 1e-8,
    estim_lr0: Positive = 1e-6,
    estim_lr_coef: Positive = 1.0,
    weight_decay: NonNegative = 0.0,
    safeguard_warmup: bool = False,
    weight_decay_mask: Where | None = None,
    *,
    bias_correction: bool = True,
) -> GradientTransformation:
    r"""AdamW whose learning rate `d` grows with the distance that the parameters have traveled.

    With :math:`\lambda_t = d_t \gamma_t \sqrt{1 - \beta_2^t} / (1 - \beta_1^t)`,

    .. math::
        n_t &= \beta_3 n_{t-1}
            + \frac{d_t}{d_1} \lambda_t \langle g_t, \theta_0 - \theta_{t-1} \rangle, \qquad
        s_t = \beta_3 s_{t-1} + \frac{d_t}{d_1} \lambda_t g_t, \\
        m_t &= \beta_1 m_{t-1} + (1 - \beta_1) d_t g_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) d_t^2 |g_t|^2, \\
        d_{t+1} &= \max\Big(d_t, c\, \frac{n_t}{\lVert s_t \rVert_1}\Big), \\
        \theta_t &= \theta_{t-1} - \lambda_t
            \Big(\frac{m_t}{\sqrt{\nu_t} + d_{t+1} \epsilon} + w\, \theta_{t-1}\Big)

    The inner product and the norm are taken over all leaves together.

    Args:
        learning_rate: :math:`\gamma_t \ge 0`, a factor on the estimate: 1, or a schedule that
            starts or ends at 0 and is 1 at its highest.
        betas: :math:`(\beta_1, \beta_2)` in :math:`[0, 1)`, numbers or arrays.
        beta3: :math:`\beta_3` in :math:`[0, 1)`; None for :math:`\sqrt{\beta_2}`.
        eps: :math:`\epsilon \ge 0`.
        estim_lr0: :math:`d_1 > 0`, smaller than any good learning rate. In bfloat16 and float16
            parameters a step of this size must not be lost to rounding, or the estimate never
            grows.
        estim_lr_coef: :math:`c > 0`; larger values give larger rates.
        weight_decay: :math:`w \ge 0`, decoupled.
        safeguard_warmup: use :math:`d_t` for :math:`\lambda_t` in :math:`s_t`, so that a schedule
            that starts small does not make the estimate large.
        weight_decay_mask: which parameters decay, as in :func:`add_decayed_weights`. All of them
            count in the estimate.
        bias_correction: correct for the start of the moments at 0, as in Optax; without it
            :math:`\lambda_t = d_t \gamma_t`, which is the default of the authors' code.

    The update is the step itself, sign included: chain no learning rate after it.

    State: `ProdigyState`, in float32 or wider, since :math:`d_t g_t` is small from the start
    (Optax: in the parameters' types). As long as all gradients, or the schedule, have been zero,
    the estimate stays as it is; in Optax it becomes NaN, and with it every later step.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: K. Mishchenko and A. Defazio, Prodigy: An Expeditiously Adaptive Parameter-Free Learner,
    2023, arXiv:2306.06101, algorithm 4, with the bias correction and the division by :math:`d_1` of
    the authors' code.

    >>> import gradtx
    >>> result = gradtx.solve(lambda x: jnp.sum(x**2), jnp.ones(3), prodigy(), max_steps=500)
    >>> bool(result.value < 1e-3)
    True
    """
    b1, b2 = betas
    b3 = b2**0.5 if beta3 is None else beta3
    options = _ProdigyOptions(
        *(learning_rate, b1, b2, b3, eps, estim_lr0, estim_lr_coef, weight_decay),
        *(safeguard_warmup, bias_correction),
    )

    def slots(p: Array) -> dict[str, Array]:
        wide = compute_dtype(p.dtype)
        return {
            "exp_avg": zeros_like(p, wide),
            "exp_avg_sq": zeros_like(p, accumulator_dtype(p)),
            "grad_sum": zeros_like(p, wide),
            "params0": own_copy(p),
        }

    def numbers(p: list[Array]) -> dict[str, Any]:
        return {"estim_lr": estim_lr0, "numerator_weighted": 0.0}

    def rule(g: list[Array], s: Any, t: Step, p: list[Array], *, chosen: list[bool]) -> Any:
        return _step(g, s, t, p, chosen, options)

    return treewise(ProdigyState, slots, rule, start=numbers, mask=weight_decay_mask)
