"""RMSProp."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx import numerics
from gradtx.checks import Decay, Fraction, InitialNonNegative, LearningRate, NonNegative
from gradtx.composition.chain import chain, identity
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import elementwise
from gradtx.engine.zero_gradients import ZeroGradient
from gradtx.numerics import (
    Step,
    abs_sq,
    accumulator_dtype,
    compute_dtype,
    debias,
    ema,
    full_like,
    zeros_like,
)
from gradtx.transforms.momentum import trace
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, Counter, NonNegativeSlots, Slots


class ScaleByRmsState(NamedTuple):
    """nu: like the parameters, real and in float32 or wider."""

    nu: NonNegativeSlots


class ScaleByRmsWithCountState(NamedTuple):
    """count: i32[]; nu: like the parameters, real and in float32 or wider."""

    count: Counter
    nu: NonNegativeSlots


class ScaleByRStdDevState(NamedTuple):
    """mu, nu: like the parameters, nu real, both in float32 or wider."""

    mu: Slots
    nu: NonNegativeSlots


class ScaleByRStdDevWithCountState(NamedTuple):
    """count: i32[]; mu, nu: like the parameters, nu real, both in float32 or wider."""

    count: Counter
    mu: Slots
    nu: NonNegativeSlots


def _root(square: Array, eps: Any, eps_in_sqrt: bool) -> Array:
    return numerics.root(square + eps) if eps_in_sqrt else numerics.root(square) + eps


@transformation(update_size="adam")
def scale_by_rms(
    decay: Decay = 0.9,
    eps: NonNegative = 1e-8,
    initial_scale: InitialNonNegative = 0.0,
    eps_in_sqrt: bool = True,
    bias_correction: bool = False,
) -> GradientTransformation:
    r"""Divide by the root of a moving average of the squared gradients.

    .. math:: \nu \leftarrow \gamma \nu + (1 - \gamma) |g|^2, \qquad u = g / \sqrt{\nu + \epsilon}

    Args:
        decay: :math:`\gamma` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`.
        initial_scale: :math:`\nu_0 \ge 0`.
        eps_in_sqrt: whether :math:`\epsilon` stands inside the root; PyTorch adds it outside.
        bias_correction: divide :math:`\nu` by :math:`1 - \gamma^t`.

    State: `ScaleByRmsState`, or `ScaleByRmsWithCountState` with bias correction.

    Source: T. Tieleman and G. Hinton, Lecture 6.5 of Neural Networks for Machine Learning, 2012.

    >>> tx = scale_by_rms(0.75, eps=0.0)
    >>> tx.update(jnp.array([3.0]), tx.init(jnp.zeros(1)))[0].tolist()
    [2.0]
    """

    def slots(p: Array) -> dict[str, Array]:
        return {"nu": full_like(p, initial_scale, accumulator_dtype(p))}

    def rule(g: Array, s: Any, t: Step) -> Any:
        nu = ema(abs_sq(g), s.nu, decay)
        square = debias(nu, decay, t) if bias_correction else nu
        return g / _root(square, eps, eps_in_sqrt), {"nu": nu}

    state = ScaleByRmsWithCountState if bias_correction else ScaleByRmsState
    return elementwise(state, slots, rule, zero_gradient=ZeroGradient({"nu": decay}))


@transformation
def scale_by_stddev(
    decay: Decay = 0.9,
    eps: NonNegative = 1e-8,
    initial_scale: InitialNonNegative = 0.0,
    eps_in_sqrt: bool = True,
    bias_correction: bool = False,
) -> GradientTransformation:
    r"""Divide by a moving standard deviation of the gradients: centered RMSProp.

    .. math:: \mu \leftarrow \gamma \mu + (1 - \gamma) g, \quad
        \nu \leftarrow \gamma \nu + (1 - \gamma) |g|^2, \quad
        u = g / \sqrt{\nu - |\mu|^2 + \epsilon}

    Args:
        decay: :math:`\gamma` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`.
        initial_scale: :math:`\nu_0 \ge 0`.
        eps_in_sqrt: whether :math:`\epsilon` stands inside the root; PyTorch adds it outside.
        bias_correction: divide :math:`\mu` and :math:`\nu` by :math:`1 - \gamma^t`.

    State: `ScaleByRStdDevState`, or `ScaleByRStdDevWithCountState` with bias correction. Both
    moments are kept in float32 or wider, since their difference is taken. A difference that
    rounding makes negative counts as 0, and one of infinite numbers as infinite, where Optax gives
    NaN.

    Source: A. Graves, Generating Sequences with Recurrent Neural Networks, 2013, arXiv:1308.0850,
    equations 38-45.

    >>> tx = scale_by_stddev(0.5, eps=0.0)
    >>> tx.update(jnp.array([3.0]), tx.init(jnp.zeros(1)))[0].tolist()
    [2.0]
    """

    def slots(p: Array) -> dict[str, Array]:
        return {
            "mu": zeros_like(p, compute_dtype(p.dtype)),
            "nu": full_like(p, initial_scale, accumulator_dtype(p)),
        }

    def rule(g: Array, s: Any, t: Step) -> Any:
        mu, nu = ema(g, s.mu, decay), ema(abs_sq(g), s.nu, decay)
        mean = debias(mu, decay, t) if bias_correction else mu
        square = debias(nu, decay, t) if bias_correction else nu
        # Where the mean square is infinite, the square of the mean may be infinite too.
        variance = jnp.where(square < jnp.inf, jnp.maximum(square - abs_sq(mean), 0), square)
        return g / _root(variance, eps, eps_in_sqrt), {"mu": mu, "nu": nu}

    state = ScaleByRStdDevWithCountState if bias_correction else ScaleByRStdDevState
    return elementwise(state, slots, rule, zero_gradient=ZeroGradient({"mu": decay, "nu": decay}))


@optimizer(update_size="adam")
def rmsprop(
    learning_rate: LearningRate,
    decay: Decay = 0.9,
    eps: NonNegative = 1e-8,
    initial_scale: InitialNonNegative = 0.0,
    eps_in_sqrt: bool = True,
    centered: bool = False,
    momentum: Fraction | None = None,
    nesterov: bool = False,
    bias_correction: bool = False,
) -> GradientTransformation:
    r"""RMSProp: divide by the root of a moving average of the squared gradients.

    .. math::
        \nu &\leftarrow \gamma \nu + (1 - \gamma) |g|^2, \qquad
            v = \eta\, \frac{g}{\sqrt{\nu + \epsilon}}, \\
        m &\leftarrow \mu m + v, \qquad
            \theta \leftarrow \theta - m
            \;\text{ or, with Nesterov momentum, }\; \theta - (v + \mu m)

    Without momentum :math:`m = v`. If centered, :math:`\nu - |\bar g|^2` takes the place of
    :math:`\nu` under the root, where :math:`\bar g` is the moving average of the gradients; bias
    correction divides both averages by :math:`1 - \gamma^t`.

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        decay: :math:`\gamma` in :math:`[0, 1)`, of the moving averages.
        eps: :math:`\epsilon \ge 0`, added to the second moment or to its root.
        initial_scale: the second moment at the start.
        eps_in_sqrt: whether `eps` stands inside the root; PyTorch adds it outside.
        centered: divide by the standard deviation (:func:`scale_by_stddev`).
        momentum: :math:`\mu` in :math:`[0, 1]`; None for no momentum.
        nesterov: use Nesterov momentum.
        bias_correction: correct the moving averages for their start at 0.

    Source: T. Tieleman and G. Hinton, Lecture 6.5 of Neural Networks for Machine Learning, 2012;
    A. Graves, 2013, arXiv:1308.0850 (centered, with momentum).

    >>> import gradtx
    >>> tx = rmsprop(0.02)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    by = scale_by_stddev if centered else scale_by_rms
    return chain(
        by(decay, eps, initial_scale, eps_in_sqrt, bias_correction),
        scale_by_learning_rate(learning_rate),
        identity() if momentum is None else trace(momentum, nesterov),
    )
