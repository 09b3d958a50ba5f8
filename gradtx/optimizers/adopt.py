"""ADOPT."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from gradtx.checks import Decay, LearningRate, NonNegative
from gradtx.composition.chain import chain
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import elementwise
from gradtx.numerics import Step, abs_sq, ema, moments, root
from gradtx.optimizers.adam import ScaleByAdamState
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, DType


@transformation(update_size="adam")
def scale_by_adopt(
    b1: Decay = 0.9,
    b2: Decay = 0.9999,
    eps: NonNegative = 1e-6,
    mu_dtype: DType | None = None,
    *,
    nesterov: bool = False,
    use_clipping: bool = True,
    clip_value_fn: Callable[[Array], Array] | None = None,
) -> GradientTransformation:
    r"""A moving average of gradients, each divided by the root of the second moment before it.

    .. math::
        c_t &= \mathrm{clip}\left(\frac{g_t}{\max(\sqrt{\nu_{t-1}}, \epsilon)},
        \pm (t-1)^{1/4}\right), \\
        u_t &= \mu_t = \beta_1 \mu_{t-1} + (1 - \beta_1) c_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2

    from the second step on; the first sets :math:`\nu_1 = |g_1|^2` and moves nothing.

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`.
        b2: :math:`\beta_2` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`, the least root; at 0 an entry without gradients becomes NaN.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.
        nesterov: :math:`u_t = \beta_1 \mu_t + (1 - \beta_1) c_t`.
        use_clipping: clip as above, complex numbers in their real and imaginary parts.
        clip_value_fn: the limit as a function of the number of steps taken; its fourth root unless
            given. (Optax's default is a lambda, which no configuration can hold.)

    State: `ScaleByAdamState`; :math:`\nu` is kept in float32 or wider.

    Source: S. Taniguchi et al., ADOPT: Modified Adam Can Converge with Any :math:`\beta_2` with the
    Optimal Rate, 2024, arXiv:2411.02853.

    >>> tx = scale_by_adopt(b1=0.0)
    >>> state = tx.init(jnp.zeros(1))
    >>> for _ in range(2):
    ...     updates, state = tx.update(jnp.array([4.0]), state)
    >>> updates.tolist()
    [1.0]
    """

    def limit(t: Step) -> Array:
        count = t.number - 1
        return count**0.25 if clip_value_fn is None else clip_value_fn(count)

    def slots(p: Array) -> dict[str, Array]:
        return moments(p, mu_dtype)

    def rule(g: Array, s: Any, t: Step) -> Any:
        first = t.number == 1
        nu = ema(abs_sq(g), s.nu, jnp.where(first, 0, b2))
        # The old moment in terms of the new one saves a copy of it. Where that cancels, g is so
        # much larger than the root that it is clipped, as it is where both are infinite.
        invertible = clip_value_fn is None and use_clipping and isinstance(b2, float) and b2 >= 0.5
        rest = nu - (1 - b2) * abs_sq(g)
        before = jnp.where(rest >= 0, rest, 0) * (1 / b2) if invertible else s.nu
        c = g / jnp.maximum(root(before), eps)
        if use_clipping:
            c = _clip(c, limit(t))
        mu = jnp.where(first, s.mu, ema(c, s.mu, b1))
        u = jnp.where(first, mu, ema(c, mu, b1)) if nesterov else mu
        return u, {"mu": mu, "nu": nu}

    return elementwise(ScaleByAdamState, slots, rule)


def _clip(x: Array, limit: Array) -> Array:
    if jnp.iscomplexobj(x):
        return _clip(x.real, limit) + 1j * _clip(x.imag, limit)
    return jnp.clip(x, -limit, limit)


@optimizer(update_size="adam")
def adopt(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.9999,
    eps: NonNegative = 1e-6,
    mu_dtype: DType | None = None,
    *,
    nesterov: bool = False,
    use_clipping: bool = True,
    clip_value_fn: Callable[[Array], Array] | None = None,
) -> GradientTransformation:
    r"""ADOPT: Adam that first normalizes each gradient by the second moment before it.

    .. math::
        c_t &= \mathrm{clip}\left(\frac{g_t}{\max(\sqrt{\nu_{t-1}}, \epsilon)},
            \pm (t-1)^{1/4}\right), \\
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) c_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \\
        \theta_t &= \theta_{t-1} - \eta\, \mu_t

    from the second step on; the first sets :math:`\nu_1 = |g_1|^2` and moves nothing.

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: :math:`\beta_1`, decay of the momentum, in :math:`[0, 1)`.
        b2: :math:`\beta_2`, decay of the second moment, in :math:`[0, 1)`.
        eps: :math:`\epsilon`, the least root of the second moment, at least 0.
        mu_dtype: the type of the momentum.
        nesterov: step by :math:`\beta_1 \mu_t + (1 - \beta_1) c_t`.
        use_clipping: whether to clip :math:`c_t`.
        clip_value_fn: the limit as a function of the number of steps taken; its fourth root unless
            given.

    Source: S. Taniguchi et al., ADOPT: Modified Adam Can Converge with Any :math:`\beta_2` with the
    Optimal Rate, 2024, arXiv:2411.02853.

    >>> import gradtx
    >>> tx = adopt(0.1)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return chain(
        scale_by_adopt(
            b1,
            b2,
            eps,
            mu_dtype,
            nesterov=nesterov,
            use_clipping=use_clipping,
            clip_value_fn=clip_value_fn,
        ),
        scale_by_learning_rate(learning_rate),
    )
