"""D-Adaptation: AdamW that estimates its learning rate from the distance to the solution."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx import tree
from gradtx.checks import Decay, InitialPositive, NonNegative
from gradtx.core.pair import GradientTransformation, transformation
from gradtx.engine.tree import treewise
from gradtx.numerics import (
    Step,
    abs_sq,
    accumulator_dtype,
    compute_dtype,
    divide,
    ema,
    root,
    zeros_like,
)
from gradtx.numerics.compiler_hints import delay, planned, recompute, sums_in_one_pass
from gradtx.types import Array, Counter, NonNegativeSlots, Slots, TreeScalar


class DAdaptAdamWState(NamedTuple):
    """Slots and numbers in float32 or wider, `exp_avg_sq` real; count: i32[].

    estim_lr: the current learning rate; numerator_weighted: the numerator of its estimate.
    """

    exp_avg: Slots
    exp_avg_sq: NonNegativeSlots
    grad_sum: Slots
    estim_lr: TreeScalar
    numerator_weighted: TreeScalar
    count: Counter


def rate_of_step(options: Any, s: Any, t: Step) -> Array:
    r"""The rate :math:`\lambda_t` of D-Adaptation and Prodigy, from the estimate in the slots.

    options: with `learning_rate`, `b1`, `b2` and `bias_correction`, which makes the averages count
    as if the bias of their start at 0 had been corrected.
    """
    rate: Array = s.estim_lr * options.learning_rate
    if options.bias_correction:
        rate = rate * (jnp.sqrt(t.bias_correction(options.b2)) / t.bias_correction(options.b1))
    return rate


class _DAdaptation(NamedTuple):
    """The equations of :func:`dadapt_adamw`, with its hyperparameters; root_b2: that of `b2`."""

    learning_rate: Any
    b1: Any
    b2: Any
    root_b2: Any
    eps: Any
    weight_decay: Any
    bias_correction: bool

    def scaled(self, x: Array, v: Array) -> Array:
        r"""A quotient by :math:`\sqrt{\nu} + \epsilon`, and 0 where nothing has been seen."""
        # A condition would have XLA store the quotient.
        return x / (root(v) + jnp.maximum(self.eps, jnp.finfo(v.dtype).tiny))

    def averages(self, rate: Array, g: list[Array], s: Any) -> dict[str, list[Array]]:
        r"""The averages :math:`m_t`, :math:`\nu_t` and :math:`s_t`."""

        def first(g: Array, m: Array) -> Array:
            return ema(rate * g, m, self.b1)

        def second(g: Array, v: Array) -> Array:
            return ema(abs_sq(g), v, self.b2)

        def summed(g: Array, a: Array) -> Array:
            return ema(rate * g, a, self.root_b2)

        return {
            "exp_avg": jax.tree.map(first, g, s.exp_avg),
            "exp_avg_sq": jax.tree.map(second, g, s.exp_avg_sq),
            "grad_sum": jax.tree.map(summed, g, s.grad_sum),
        }

    def estimate(self, rate: Array, s: Any, product: Array, norm: Array) -> dict[str, Array]:
        """The next estimate and its numerator, from the inner product and the norm."""
        numerator = ema(rate * product, s.numerator_weighted, self.root_b2)
        distance = divide(numerator, (1 - self.root_b2) * norm)
        return {
            "estim_lr": jnp.maximum(s.estim_lr, distance),
            "numerator_weighted": numerator,
        }

    def directions(self, rate: Array, new: dict[str, list[Array]], p: list[Array]) -> list[Array]:
        """The steps of all leaves, their decay included."""

        def direction(m: Array, v: Array, p: Array) -> Array:
            return self.scaled(-m, v) - (self.weight_decay * rate) * p

        return jax.tree.map(direction, new["exp_avg"], new["exp_avg_sq"], p)


@transformation
def dadapt_adamw(
    learning_rate: NonNegative = 1.0,
    betas: tuple[Decay, Decay] = (0.9, 0.999),
    eps: NonNegative = 1e-8,
    estim_lr0: InitialPositive = 1e-6,
    weight_decay: NonNegative = 0.0,
    *,
    bias_correction: bool = True,
) -> GradientTransformation:
    r"""AdamW whose learning rate `d` grows with a lower bound on the distance to the solution.

    With :math:`\lambda_t = d_t \gamma_t \sqrt{1 - \beta_2^t} / (1 - \beta_1^t)`,

    .. math::
        n_t &= \sqrt{\beta_2}\, n_{t-1} + (1 - \sqrt{\beta_2})\, \lambda_t
            \Big\langle g_t, \frac{s_{t-1}}{\sqrt{\nu_{t-1}} + \epsilon} \Big\rangle, \\
        m_t &= \beta_1 m_{t-1} + (1 - \beta_1) \lambda_t g_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \\
        s_t &= \sqrt{\beta_2}\, s_{t-1} + (1 - \sqrt{\beta_2}) \lambda_t g_t, \qquad
        d_{t+1} = \max\Big(d_t, \frac{n_t}{(1 - \sqrt{\beta_2}) \lVert s_t \rVert_1}\Big), \\
        \theta_t &= \theta_{t-1} - \frac{m_t}{\sqrt{\nu_t} + \epsilon} - \lambda_t w\, \theta_{t-1}

    The inner product and the norm are over all leaves together.

    Args:
        learning_rate: :math:`\gamma_t \ge 0`, a factor of the estimate: 1, or a schedule that
            starts or ends at 0 and is 1 at its highest.
        betas: :math:`(\beta_1, \beta_2)` in :math:`[0, 1)`, numbers or arrays.
        eps: :math:`\epsilon \ge 0`.
        estim_lr0: :math:`d_1 > 0`, smaller than any good learning rate.
        weight_decay: :math:`w \ge 0`, decoupled.
        bias_correction: correct for the start of the moments at 0, as in Optax; without it
            :math:`\lambda_t = d_t \gamma_t`, which is the default of the authors' code.

    The update is the step itself, sign included: no learning rate follows.

    State: `DAdaptAdamWState`, in float32 or wider, since :math:`\lambda_t g_t` is small from the
    start (Optax: in the parameters' types). As long as every gradient, or the schedule, has been
    zero, the estimate stays as it is; in Optax it becomes NaN, and so does every later step.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: A. Defazio and K. Mishchenko, Learning-Rate-Free Learning by D-Adaptation, 2023,
    arXiv:2301.07733, algorithm 5, with the bias correction of the authors' code.

    >>> import gradtx
    >>> tx = dadapt_adamw()
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=500)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    b1, b2 = betas
    step = _DAdaptation(learning_rate, b1, b2, b2**0.5, eps, weight_decay, bias_correction)

    def slots(p: Array) -> dict[str, Array]:
        wide = compute_dtype(p.dtype)
        return {
            "exp_avg": zeros_like(p, wide),
            "exp_avg_sq": zeros_like(p, accumulator_dtype(p)),
            "grad_sum": zeros_like(p, wide),
        }

    def numbers(p: list[Array]) -> dict[str, Any]:
        return {"estim_lr": estim_lr0, "numerator_weighted": 0.0}

    def rule(g: list[Array], s: Any, t: Step, p: list[Array]) -> Any:
        lam = rate_of_step(step, s, t)
        product = tree.vdot(g, jax.tree.map(step.scaled, s.grad_sum, s.exp_avg_sq)).real
        new = step.averages(lam, g, s)
        norm = tree.norm(new["grad_sum"], 1)
        return step.directions(lam, new, p), {**new, **step.estimate(lam, s, product, norm)}

    def plan(g: list[Array], s: Any, t: Step, p: list[Array]) -> Any:
        """The slots wait for the product, which reads their old values and is then summed anew.

        The pass that sums the norm sums it too, so that nothing is stored between the two.
        """
        lam = rate_of_step(step, s, t)

        def product_of(g: Array, a: Array, v: Array) -> Array:
            return (jnp.conj(g) * recompute(step.scaled, a, v, after=t)).real

        products = jax.tree.map(product_of, g, s.grad_sum, s.exp_avg_sq)
        read = sums_in_one_pass(products)[0]
        new = step.averages(lam, [delay(x, after=read) for x in g], s)
        sizes = jax.tree.map(jnp.abs, new["grad_sum"])
        product, norm = sums_in_one_pass(products, sizes)
        estimates = step.estimate(lam, s, product, norm)
        return step.directions(lam, new, p), {**new, **estimates}

    return treewise(DAdaptAdamWState, slots, planned(rule, plan), start=numbers)
