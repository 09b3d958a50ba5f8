"""AdaBound."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import Decay, NonNegative, Positive
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import elementwise
from gradtx.leaves.paths import Where
from gradtx.numerics import Step, abs_sq, divide, ema, moments, root
from gradtx.transforms.decay import descent
from gradtx.types import Array, Counter, DType, NonNegativeSlots, Slots


class ScaleByAdaboundState(NamedTuple):
    """count: i32[]; mu, nu: like the parameters, nu real and in float32 or wider unless given."""

    count: Counter
    mu: Slots
    nu: NonNegativeSlots


@transformation
def scale_by_adabound(
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    final_scale: NonNegative = 100.0,
    gamma: Positive = 1e-3,
    *,
    mu_dtype: DType | None = None,
    nu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""Adam whose scaling of the momentum is kept within bounds that close in on one number.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
            \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \\
        u_t &= \mu_t\, \mathrm{clip}\left(\frac{\sqrt{1 - \beta_2^t} / (1 - \beta_1^t)}
            {\sqrt{\nu_t} + \epsilon},\; s \left(1 - \frac{1}{\gamma t + 1}\right),\;
            s \left(1 + \frac{1}{\gamma t}\right)\right)

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`; every number may be an array or a schedule.
        b2: :math:`\beta_2` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`.
        final_scale: :math:`s \ge 0`, the number on which the bounds close in.
        gamma: :math:`\gamma > 0`, how fast the bounds close.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.
        nu_dtype: the type in which :math:`\nu` is kept; float32 or wider unless given.

    State: `ScaleByAdaboundState`. This follows the authors' code: with bias corrections, and
    without the paper's factor :math:`1 / \sqrt{t}`.

    Source: L. Luo et al., Adaptive Gradient Methods with Dynamic Bound of Learning Rate, 2019,
    arXiv:1902.09843, algorithm 2.

    >>> tx = scale_by_adabound(b1=0.0)
    >>> tx.update(jnp.array([4.0, 0.0]), tx.init(jnp.zeros(2)))[0].round(4).tolist()
    [1.0, 0.0]
    """

    def slots(p: Array) -> dict[str, Array]:
        return moments(p, mu_dtype, nu_dtype)

    def rule(g: Array, s: Any, t: Step) -> Any:
        mu, nu = ema(g, s.mu, b1), ema(abs_sq(g), s.nu, b2)
        correction = jnp.sqrt(t.bias_correction(b2)) / t.bias_correction(b1)
        low = final_scale * (1 - 1 / (gamma * t.number + 1))
        high = final_scale * (1 + 1 / (gamma * t.number))
        # Where nu and eps are 0 the scale is clipped from infinity; mu is 0 there.
        scale = jnp.clip(correction / (root(nu) + eps), low, high)
        return mu * scale, {"mu": mu, "nu": nu}

    return elementwise(ScaleByAdaboundState, slots, rule)


@optimizer
def adabound(
    learning_rate: NonNegative,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    final_lr: NonNegative = 0.1,
    gamma: Positive = 1e-3,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    *,
    base_lr: Positive | None = None,
    mu_dtype: DType | None = None,
    nu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""AdaBound: Adam at the start, momentum with the learning rate `final_lr` at the end.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \\
        a_t &= \mathrm{clip}\left(\frac{\sqrt{1 - \beta_2^t} / (1 - \beta_1^t)}
            {\sqrt{\nu_t} + \epsilon},\; s \left(1 - \frac{1}{\gamma t + 1}\right),\;
            s \left(1 + \frac{1}{\gamma t}\right)\right), \\
        \theta_t &= \theta_{t-1} - \eta\, (a_t \mu_t + \lambda \theta_{t-1})

    where `s` is ``final_lr / base_lr``.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        b1: :math:`\beta_1`, decay of the first moment; this and the rest as in
            :func:`scale_by_adabound`.
        b2: :math:`\beta_2`, decay of the second moment.
        eps: :math:`\epsilon`, added to the root.
        final_lr: the learning rate of the momentum at the end.
        gamma: :math:`\gamma > 0`, how fast the bounds close.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        base_lr: the learning rate to which `final_lr` belongs: a schedule that halves one halves
            the other. None for `learning_rate`, which must then not be a schedule.
        mu_dtype: the type of the first moment.
        nu_dtype: the type of the second moment.

    Raises:
        ValueError: `learning_rate` is a schedule and `base_lr` is not given.

    Source: L. Luo et al., Adaptive Gradient Methods with Dynamic Bound of Learning Rate, 2019,
    arXiv:1902.09843, algorithm 2.

    >>> import gradtx
    >>> tx = adabound(0.01, final_lr=0.1)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=300)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    if base_lr is None:
        if callable(learning_rate):
            raise ValueError("adabound: with a schedule for learning_rate give base_lr, its peak")
        base_lr = learning_rate

    def ratio(final: Any) -> Any:
        if isinstance(final, float | int) and isinstance(base_lr, float | int) and base_lr > 0:
            return final / base_lr
        return divide(jnp.asarray(final), jnp.asarray(base_lr))

    scale = (lambda count: ratio(final_lr(count))) if callable(final_lr) else ratio(final_lr)
    return descent(
        scale_by_adabound(b1, b2, eps, scale, gamma, mu_dtype=mu_dtype, nu_dtype=nu_dtype),
        learning_rate,
        weight_decay,
        mask,
    )
