"""MoMo: momentum and Adam with a step size from a model of the loss."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx import numerics, tree
from gradtx.checks import Decay, InitialNumber, NonNegative
from gradtx.core.pair import GradientTransformation, transformation
from gradtx.engine.tree import treewise
from gradtx.numerics import (
    Step,
    abs_sq,
    accumulator_dtype,
    compute_dtype,
    ema,
    quotient_up_to,
    zeros_like,
)
from gradtx.numerics.compiler_hints import fuse, planned, recompute, sums_in_one_pass
from gradtx.types import Array, Counter, NonNegativeSlots, Slots, TreeScalar


class MomoState(NamedTuple):
    """exp_avg: like the parameters; it and the numbers are in float32 or wider; count: i32[].

    barf: the average loss; gamma: the average of the inner products of gradient and parameters; lb:
    the current lower bound.
    """

    exp_avg: Slots
    barf: TreeScalar
    gamma: TreeScalar
    lb: TreeScalar
    count: Counter


class MomoAdamState(NamedTuple):
    """`MomoState` with exp_avg_sq, the second moment: real, in float32 or wider."""

    exp_avg: Slots
    exp_avg_sq: NonNegativeSlots
    barf: TreeScalar
    gamma: TreeScalar
    lb: TreeScalar
    count: Counter


def _inner(x: list[Array], y: list[Array]) -> Array:
    return tree.vdot(x, y).real


def _products(x: list[Array], y: list[Array]) -> list[Array]:
    """The entries of the inner product of the leaves, still to be summed."""
    return [(jnp.conj(a) * b).real for a, b in zip(x, y, strict=True)]


class _Model:
    r"""The loss as the averages model it, and the step that its lower bound allows.

    Args:
        height: :math:`\bar f + \langle d, \theta \rangle - \gamma` is the model at the parameters;
            `height` is :math:`\bar f - \gamma`.
        slope: :math:`\langle d, \theta \rangle`.
        square: :math:`\lVert d \rVert^2_{D^{-1}}`.
        weight: :math:`\rho`, the sum of the averages' weights.
        shrink: :math:`1 + \alpha w`.
        bound: the least value of the lower bound; None to leave the lower bound as it is.
    """

    def __init__(
        self, height: Array, slope: Array, square: Array, weight: Any, shrink: Any, bound: Any
    ) -> None:
        self.height, self.slope, self.square = height, slope, square
        self.weight, self.shrink, self.bound = weight, shrink, bound

    def step(self, alpha: Any, lower: Array) -> tuple[Array, Array]:
        r"""The step :math:`\tau`, and the lower bound for the next step."""
        cap = self.shrink * self.height + self.slope
        if self.bound is not None:
            halved = jnp.maximum(cap / (2 * self.weight * self.shrink), self.bound)
            lower = jnp.where(cap < self.shrink * self.weight * lower, halved, lower)
        gap = jnp.maximum(cap - self.shrink * self.weight * lower, 0)
        tau = quotient_up_to(alpha / self.weight, gap, self.square)
        if self.bound is not None:
            reached = (self.height + self.slope - tau * self.square / 2) / self.weight
            lower = jnp.maximum(reached, self.bound)
        return tau, lower


class _MomoOptions(NamedTuple):
    """Hyperparameters of the model of the loss."""

    learning_rate: Any
    weight_decay: Any
    lower_bound: Any
    adapt_lower_bound: bool

    def numbers(self) -> dict[str, Any]:
        """The numbers of the tree at the start."""
        return {"barf": 0.0, "gamma": 0.0, "lb": self.lower_bound}

    def step(
        self, s: Any, value: Array, products: tuple[Array, ...], beta: Any, weight: Any
    ) -> tuple[Array, Any, Any, dict[str, Array]]:
        r"""The numbers of the step, and the new numbers of the tree.

        Args:
            s: the state.
            value: the loss.
            products: of the parameters with gradient and momentum, and of momentum and direction.
            beta: the decay of the averages.
            weight: the sum of their weights.

        Returns:
            :math:`\tau`, :math:`1 + \alpha w`, the factor of the parameters in the step, and slots.
        """
        along, slope, square = products
        barf, gamma = ema(value, s.barf, beta), ema(along, s.gamma, beta)
        shrink = 1 + self.learning_rate * self.weight_decay
        bound = self.lower_bound if self.adapt_lower_bound else None
        model = _Model(barf - gamma, slope, square, weight, shrink, bound)
        tau, lower = model.step(self.learning_rate, s.lb)
        decay = self.learning_rate * self.weight_decay / shrink
        return tau, shrink, decay, {"barf": barf, "gamma": gamma, "lb": lower}


@transformation
def momo(
    learning_rate: NonNegative = 1.0,
    beta: Decay = 0.9,
    lower_bound: InitialNumber = 0.0,
    weight_decay: NonNegative = 0.0,
    adapt_lower_bound: bool = False,
) -> GradientTransformation:
    r"""Momentum whose step takes a model of the loss to its lower bound, up to a largest rate.

    .. math::
        \bar f_t &= \beta \bar f_{t-1} + (1 - \beta) f_t, \qquad
            d_t = \beta d_{t-1} + (1 - \beta) g_t, \\
        \gamma_t &= \beta \gamma_{t-1} + (1 - \beta) \langle g_t, \theta_{t-1} \rangle, \\
        \tau_t &= \min\Big(\alpha_t, \frac{\big((1 + \alpha_t w)(\bar f_t - f^\star - \gamma_t)
            + \langle d_t, \theta_{t-1} \rangle\big)_+}{\lVert d_t \rVert^2}\Big), \\
        \theta_t &= \frac{\theta_{t-1} - \tau_t d_t}{1 + \alpha_t w}

    The three averages start from their first values: :math:`\bar f_1 = f_1`, :math:`d_1 = g_1` and
    :math:`\gamma_1 = \langle g_1, \theta_0 \rangle`.

    Args:
        learning_rate: :math:`\alpha_t \ge 0`, the largest step; a number, an array, or a schedule.
        beta: the decay of the averages, in :math:`[0, 1)`.
        lower_bound: :math:`f^\star`, a lower bound of the loss; a number or an array.
        weight_decay: :math:`w \ge 0`; a number, an array, or a schedule.
        adapt_lower_bound: estimate the bound along the way, from `lower_bound` upwards.

    ``update`` needs the parameters and the extra argument ``value``, the loss. The update is the
    step itself, sign included: chain no learning rate after it. Inner products and norms are taken
    over all leaves together. Where :math:`d_t = 0` the step is 0.

    State: `MomoState`. :math:`d_t` is in float32 or wider: the model is a difference of large
    numbers. With weight decay the paper and the authors' code divide :math:`\tau_t d_t` by
    :math:`1 + \alpha_t w`, and Optax does not.

    Raises:
        ValueError: ``update`` is called without parameters or without ``value``.

    Source: F. Schaipp, R. Ohana, M. Eickenberg, A. Defazio and R. M. Gower, MoMo: Momentum Models
    for Adaptive Learning Rates, 2024, arXiv:2305.07583, algorithms 1 and 3.

    >>> import gradtx
    >>> tx = momo()
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    options = _MomoOptions(learning_rate, weight_decay, lower_bound, adapt_lower_bound)

    def slots(p: Array) -> dict[str, Array]:
        return {"exp_avg": zeros_like(p, compute_dtype(p.dtype))}

    def momentum(g: list[Array], s: Any, p: list[Array], b: Array) -> Any:
        """The momentum, and the inner products of the model."""
        d = jax.tree.map(lambda g, d: ema(g, d, b), g, s.exp_avg)
        return d, (_inner(g, p), _inner(d, p), tree.norm_sq(d))

    def plan(g: list[Array], s: Any, p: list[Array], b: Array) -> Any:
        """On a GPU the kernel that sums the momentum also writes it."""
        d = jax.tree.map(lambda g, d: ema(g, d, b), g, s.exp_avg)
        d = jax.tree.map(lambda d: fuse(d, after=s.barf, on="cuda"), d)
        term = jax.tree.map(lambda d: fuse(d, after=s.gamma, on="cuda"), d)
        return d, sums_in_one_pass(_products(g, p), _products(d, p), _products(d, term))

    momentum_and_products = planned(momentum, plan)

    def rule(g: list[Array], s: Any, t: Step, p: list[Array], *, value: Array) -> Any:
        b = jnp.where(t.number == 1, 0.0, beta)
        d, products = momentum_and_products(g, s, p, b)
        tau, shrink, decay, new = options.step(s, value, products, b, 1.0)
        scale = tau / shrink
        directions = jax.tree.map(lambda d, p: -decay * p - scale * d, d, p)
        return directions, {"exp_avg": d, **new}

    return treewise(MomoState, slots, rule, start=options.numbers())


@transformation
def momo_adam(
    learning_rate: NonNegative = 1e-2,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    lower_bound: InitialNumber = 0.0,
    weight_decay: NonNegative = 0.0,
    adapt_lower_bound: bool = False,
) -> GradientTransformation:
    r"""Adam whose step takes a model of the loss to its lower bound, up to a largest rate.

    .. math::
        \bar f_t &= \beta_1 \bar f_{t-1} + (1 - \beta_1) f_t, \qquad
            d_t = \beta_1 d_{t-1} + (1 - \beta_1) g_t, \\
        \gamma_t &= \beta_1 \gamma_{t-1} + (1 - \beta_1) \langle g_t, \theta_{t-1} \rangle, \qquad
            \rho_t = 1 - \beta_1^t, \\
        \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \qquad
            D_t = \epsilon + \sqrt{\nu_t / (1 - \beta_2^t)}, \\
        \tau_t &= \min\Big(\frac{\alpha_t}{\rho_t},
            \frac{\big((1 + \alpha_t w)(\bar f_t - \rho_t f^\star - \gamma_t)
            + \langle d_t, \theta_{t-1} \rangle\big)_+}{\langle d_t, d_t / D_t \rangle}\Big), \\
        \theta_t &= \frac{\theta_{t-1} - \tau_t\, d_t / D_t}{1 + \alpha_t w}

    Args:
        learning_rate: :math:`\alpha_t \ge 0`, the largest step; a number, an array, or a schedule.
        b1: :math:`\beta_1` in :math:`[0, 1)`; this and the next two: a number, an array, or a
            schedule.
        b2: :math:`\beta_2` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`.
        lower_bound: :math:`f^\star`, a lower bound of the loss.
        weight_decay: :math:`w \ge 0`.
        adapt_lower_bound: estimate the bound along the way, from `lower_bound` upwards.

    ``update`` needs the parameters and the extra argument ``value``, the loss. The remarks
    on :func:`momo` apply here too, including the difference from Optax.

    State: `MomoAdamState`, in float32 or wider.

    Raises:
        ValueError: ``update`` is called without parameters or without ``value``.

    Source: F. Schaipp, R. Ohana, M. Eickenberg, A. Defazio and R. M. Gower, MoMo: Momentum Models
    for Adaptive Learning Rates, 2024, arXiv:2305.07583, algorithms 2 and 3.

    >>> import gradtx
    >>> tx = momo_adam(0.1)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    options = _MomoOptions(learning_rate, weight_decay, lower_bound, adapt_lower_bound)

    def slots(p: Array) -> dict[str, Array]:
        return {
            "exp_avg": zeros_like(p, compute_dtype(p.dtype)),
            "exp_avg_sq": zeros_like(p, accumulator_dtype(p)),
        }

    def averages(g: list[Array], s: Any) -> tuple[list[Array], list[Array]]:
        d = jax.tree.map(lambda g, d: ema(g, d, b1), g, s.exp_avg)
        return d, jax.tree.map(lambda g, v: ema(abs_sq(g), v, b2), g, s.exp_avg_sq)

    def rule(g: list[Array], s: Any, t: Step, p: list[Array], *, value: Array) -> Any:
        d, square = averages(g, s)

        def scaled(d: Array, v: Array) -> Array:
            return d / (eps + numerics.root(v / t.bias_correction(b2)))

        u = jax.tree.map(scaled, d, square)
        products = _inner(g, p), _inner(d, p), _inner(d, u)
        tau, shrink, decay, new = options.step(s, value, products, b1, t.bias_correction(b1))
        directions = jax.tree.map(lambda u, p: -decay * p - tau / shrink * u, u, p)
        return directions, {"exp_avg": d, "exp_avg_sq": square, **new}

    def plan(g: list[Array], s: Any, t: Step, p: list[Array], *, value: Array) -> Any:
        """The quotient is computed for its product, and again for the step, not stored.

        The root of the bias correction is a factor of the whole.
        """
        d, square = averages(g, s)
        root = jnp.sqrt(t.bias_correction(b2))
        small = eps * root

        def scaled(d: Array, v: Array) -> Array:
            return d / (small + numerics.root(v))

        u = jax.tree.map(lambda d, v: recompute(scaled, d, v, after=t), d, square)
        sums = sums_in_one_pass(_products(g, p), _products(d, p), _products(d, u))
        products = *sums[:2], root * sums[2]
        tau, shrink, decay, new = options.step(s, value, products, b1, t.bias_correction(b1))
        scale = tau * root / shrink

        def direction(d: Array, v: Array, p: Array) -> Array:
            return -decay * p - scale * recompute(scaled, d, v, after=tau)

        directions = jax.tree.map(direction, d, square, p)
        return directions, {"exp_avg": d, "exp_avg_sq": square, **new}

    return treewise(MomoAdamState, slots, planned(rule, plan), start=options.numbers())
