"""Adadelta."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx import numerics
from gradtx.checks import Decay, NonNegative
from gradtx.composition.chain import chain, chain_reading_old
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import elementwise
from gradtx.leaves.paths import Where
from gradtx.numerics import abs_sq, accumulator_dtype, ema, zeros_like
from gradtx.numerics.compiler_hints import delay, planned
from gradtx.transforms.decay import add_decayed_weights, decayed_elsewhere
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, NonNegativeSlots


class ScaleByAdaDeltaState(NamedTuple):
    """e_g, e_x: like the parameters, real and in float32 or wider."""

    e_g: NonNegativeSlots
    e_x: NonNegativeSlots


@transformation
def scale_by_adadelta(
    rho: Decay = 0.9, eps: NonNegative = 1e-6, *, eps_in_sqrt: bool = True
) -> GradientTransformation:
    r"""Divide by the root mean square of the gradients, multiply by that of the updates.

    .. math::
        E_g \leftarrow \rho E_g + (1 - \rho) |g|^2, \qquad
        u = \frac{\sqrt{E_x + \epsilon}}{\sqrt{E_g + \epsilon}}\, g, \qquad
        E_x \leftarrow \rho E_x + (1 - \rho) |u|^2

    Args:
        rho: :math:`\rho` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`; it also sets the size of the first steps.
        eps_in_sqrt: whether :math:`\epsilon` stands inside both roots, as in the paper, PyTorch,
            Keras and Optax; otherwise it is added to them.

    State: `ScaleByAdaDeltaState`. For a complex parameter both are real; Optax averages the
    squares of the complex numbers.

    Source: M. D. Zeiler, ADADELTA: An Adaptive Learning Rate Method, 2012, arXiv:1212.5701,
    algorithm 1.

    >>> tx = scale_by_adadelta(0.75, eps=1e-6)
    >>> tx.update(jnp.array([8.0]), tx.init(jnp.zeros(1)))[0].round(6).tolist()
    [0.0020000000949949026]
    """
    invertible = eps_in_sqrt and isinstance(rho, float) and rho > 0

    def slots(p: Array) -> dict[str, Array]:
        dtype = accumulator_dtype(p)
        return {"e_g": zeros_like(p, dtype), "e_x": zeros_like(p, dtype)}

    def root(e: Array) -> Array:
        return numerics.root(e + eps) if eps_in_sqrt else numerics.root(e) + eps

    def ratio(e_x: Array, e_g: Array) -> Array:
        return root(e_x) / root(e_g)

    def rule(g: Array, s: Any, t: Any) -> Any:
        e_g = ema(abs_sq(g), s.e_g, rho)
        u = g * ratio(s.e_x, e_g)
        return u, {"e_g": e_g, "e_x": ema(abs_sq(u), s.e_x, rho)}

    def plan(g: Array, s: Any, t: Any) -> Any:
        """The new squares without a square that overflows, and the step from the new squares.

        XLA copies a donated slot whose old value is read after the new one is written. So the step
        reads the old E_x in terms of the new one; all terms are positive, nothing cancels.
        """
        e_g = ema(abs_sq(g), s.e_g, rho)
        e_x = rho * s.e_x + _share(g, (1 - rho) * (s.e_x + eps), e_g + eps)
        if invertible:
            square = (e_x + rho * eps) / (rho * (e_g + eps) + _product(g, 1 - rho, g))
        else:
            square = (s.e_x + eps) / (e_g + eps)
        return g * jnp.sqrt(square), {"e_g": e_g, "e_x": e_x}

    def plan_outside(g: Array, s: Any, t: Any) -> Any:
        """The ratio of the roots is computed twice.

        XLA would store what the new parameter and the new slot share.
        """
        e_g = ema(abs_sq(g), s.e_g, rho)
        again = ratio(delay(s.e_x, after=e_g), delay(e_g, after=e_g))
        e_x = ema(abs_sq(g * again), s.e_x, rho)
        return g * ratio(s.e_x, e_g), {"e_g": e_g, "e_x": e_x}

    chosen = planned(rule, plan if eps_in_sqrt else plan_outside)
    return elementwise(ScaleByAdaDeltaState, slots, chosen)


def _product(x: Array, weight: Any, y: Array) -> Array:
    """``weight * |x|^2`` for equal `x` and `y`: a square that two kernels read would be stored."""
    return weight * abs_sq(x) if jnp.iscomplexobj(x) else (x * weight) * y


def _share(g: Array, weight: Any, denominator: Array) -> Array:
    """``weight * |g|^2 / denominator``, and 0 where the square overflows."""
    if jnp.iscomplexobj(g):
        return _share(g.real, weight, denominator) + _share(g.imag, weight, denominator)
    return (g * weight) * (g / denominator)


@optimizer
def adadelta(
    learning_rate: NonNegative | None = None,
    rho: Decay = 0.9,
    eps: NonNegative = 1e-6,
    weight_decay: NonNegative = 0.0,
    weight_decay_mask: Where | None = None,
    *,
    eps_in_sqrt: bool = True,
) -> GradientTransformation:
    r"""Adadelta: Adagrad over a window, with steps in the units of the parameters.

    .. math::
        E_g &\leftarrow \rho E_g + (1 - \rho) |g|^2, \\
        u &= \frac{\sqrt{E_x + \epsilon}}{\sqrt{E_g + \epsilon}}\, g, \\
        E_x &\leftarrow \rho E_x + (1 - \rho) |u|^2, \\
        \theta &\leftarrow \theta - \eta\, u

    where :math:`g` is the gradient plus :math:`\lambda\theta`, and both averages start at 0.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule. None for 1, as in
            the paper; in Optax the update then has the wrong sign and ascends.
        rho: :math:`\rho`, decay of the mean squares, in :math:`[0, 1)`.
        eps: :math:`\epsilon`, added to the mean squares, at least 0.
        weight_decay: :math:`\lambda \ge 0`, an L2 penalty as in PyTorch: it decays through the
            gradient, not through the step.
        weight_decay_mask: which parameters decay, as in :func:`add_decayed_weights`.
        eps_in_sqrt: whether `eps` stands inside the roots, as in :func:`scale_by_adadelta`.

    Source: M. D. Zeiler, ADADELTA: An Adaptive Learning Rate Method, 2012, arXiv:1212.5701,
    algorithm 1.

    >>> import gradtx
    >>> tx = adadelta()
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=500)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    # Without decay the gradient is left alone: g + 0 p, which is read three times, would be stored.
    plain = numerics.is_zero(weight_decay)
    links = (
        (decayed_elsewhere if plain else add_decayed_weights)(weight_decay, weight_decay_mask),
        scale_by_adadelta(rho, eps, eps_in_sqrt=eps_in_sqrt),
        scale_by_learning_rate(1.0 if learning_rate is None else learning_rate),
    )
    return chain(*links) if eps_in_sqrt else chain_reading_old("e_x", *links)
