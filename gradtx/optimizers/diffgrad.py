"""diffGrad."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import Decay, LearningRate, NonNegative
from gradtx.composition.chain import chain_reading_old
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import elementwise
from gradtx.leaves.paths import Where
from gradtx.numerics import Step, abs_sq, debias, ema, moments, root_plus, zeros_like
from gradtx.numerics.compiler_hints import replace
from gradtx.transforms.decay import add_decayed_weights
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, Counter, DType, NonNegativeSlots, Slots


class ScaleByDiffgradState(NamedTuple):
    """count: i32[]; mu, nu, previous: like the parameters; nu real and in float32 or wider."""

    count: Counter
    mu: Slots
    nu: NonNegativeSlots
    previous: Slots


@transformation
def scale_by_diffgrad(
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    *,
    mu_dtype: DType | None = None,
    nu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""Adam's direction, reduced by up to half where the gradient has hardly changed.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
            \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \\
        \xi_t &= \frac{1}{1 + e^{-|g_{t-1} - g_t|}}, \quad g_0 = 0, \\
        u_t &= \xi_t \frac{\mu_t / (1 - \beta_1^t)}{\sqrt{\nu_t / (1 - \beta_2^t)} + \epsilon}

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`; this and the next two: a number, an array, or a
            schedule.
        b2: :math:`\beta_2` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.
        nu_dtype: the type in which :math:`\nu` is kept; float32 or wider unless given.

    State: `ScaleByDiffgradState`, with the gradient of the previous step. On `Rows` that is the
    row's gradient when it was last touched.

    Source: S. R. Dubey et al., diffGrad: An Optimization Method for Convolutional Neural Networks,
    2019, arXiv:1909.11015.

    >>> tx = scale_by_diffgrad()
    >>> state = tx.init(jnp.zeros(1))
    >>> for _ in range(2):
    ...     updates, state = tx.update(jnp.ones(1), state)
    >>> updates.round(4).tolist()
    [0.5]
    """

    def slots(p: Array) -> dict[str, Array]:
        return {
            **moments(p, mu_dtype, nu_dtype),
            "previous": zeros_like(p),
        }

    def rule(g: Array, s: Any, t: Step) -> Any:
        mu, nu = ema(g, s.mu, b1), ema(abs_sq(g), s.nu, b2)
        friction = 1 + jnp.exp(-jnp.abs(s.previous - g))
        mean = debias(mu, b1, t)
        direction = mean / (friction * root_plus(debias(nu, b2, t), eps, mean))
        return direction, {"mu": mu, "nu": nu, "previous": replace(s.previous, g)}

    return elementwise(ScaleByDiffgradState, slots, rule)


@optimizer
def diffgrad(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    *,
    mu_dtype: DType | None = None,
    nu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""The diffGrad optimizer: Adam with smaller steps where the gradient hardly changes.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, &
        \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \\
        \hat\mu_t &= \frac{\mu_t}{1 - \beta_1^t}, &
        \hat\nu_t &= \frac{\nu_t}{1 - \beta_2^t}, \\
        \xi_t &= \frac{1}{1 + e^{-|g_{t-1} - g_t|}}, \quad g_0 = 0, \\
        \theta_t &= \theta_{t-1} - \eta \left(
            \xi_t \frac{\hat\mu_t}{\sqrt{\hat\nu_t} + \epsilon} + \lambda \theta_{t-1}\right)

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: :math:`\beta_1`, decay of the first moment; this and the rest as in
            :func:`scale_by_diffgrad`.
        b2: :math:`\beta_2`, decay of the second moment.
        eps: :math:`\epsilon`, added to the root.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        mu_dtype: the type of the first moment.
        nu_dtype: the type of the second moment.

    Source: S. R. Dubey et al., diffGrad: An Optimization Method for Convolutional Neural Networks,
    2019, arXiv:1909.11015.

    >>> import gradtx
    >>> tx = diffgrad(0.1)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return chain_reading_old(
        "previous",
        scale_by_diffgrad(b1, b2, eps, mu_dtype=mu_dtype, nu_dtype=nu_dtype),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )
