"""NovoGrad."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import Decay, LearningRate, NonNegative
from gradtx.composition.chain import chain
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import leafwise
from gradtx.numerics import Step, accumulator_dtype, ema, root, sum_sq, zero_mean
from gradtx.transforms.decay import decayed
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, Counter, DType, NonNegativeSlots, Slots


class ScaleByNovogradState(NamedTuple):
    """count: i32[]; mu: like the parameters, in mu_dtype if given; nu: a number for each leaf."""

    count: Counter
    mu: Slots
    nu: NonNegativeSlots


def _inverse(x: Array) -> Array:
    """``1 / x``, and 0 where `x` is 0."""
    return 1 / jnp.where(x == 0, jnp.inf, x)


@transformation
def scale_by_novograd(
    b1: Decay = 0.9,
    b2: Decay = 0.25,
    eps: NonNegative = 1e-8,
    eps_root: NonNegative = 0.0,
    weight_decay: NonNegative = 0.0,
    mu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""Momentum of gradients, each leaf's divided by a moving average of its norm.

    .. math::
        \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2) \lVert g_t\rVert^2, \qquad
            \nu_1 = \lVert g_1\rVert^2, \\
        u_t &= \mu_t = \beta_1 \mu_{t-1}
            + \left(\frac{g_t}{\sqrt{\nu_t + \bar\epsilon} + \epsilon} + \lambda\theta\right)

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`; every number may be an array or a schedule.
        b2: :math:`\beta_2` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`, outside the root.
        eps_root: :math:`\bar\epsilon \ge 0`, inside the root.
        weight_decay: :math:`\lambda \ge 0`.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.

    State: `ScaleByNovogradState`; :math:`\nu` is in float32 or wider. A zero gradient adds nothing,
    even with :math:`\epsilon = 0` (in Optax it becomes NaN in float16).

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: B. Ginsburg et al., Stochastic Gradient Methods with Layer-wise Adaptive Moments for
    Training of Deep Networks, 2019, arXiv:1905.11286, algorithm 1.

    >>> tx = scale_by_novograd(eps=0.0)
    >>> p = jnp.zeros(2)
    >>> tx.update(jnp.array([3.0, 4.0]), tx.init(p), p)[0].round(6).tolist()
    [0.6000000238418579, 0.800000011920929]
    """

    def slots(p: Array) -> dict[str, Array]:
        return {"mu": zero_mean(p, mu_dtype), "nu": jnp.zeros([], accumulator_dtype(p))}

    def rule(g: Array, s: Any, t: Step, p: Array) -> Any:
        square = sum_sq(g)
        nu = jnp.where(t.number == 1, square, ema(square, s.nu, b2))
        scaled = g * _inverse(root(nu + eps_root) + eps)
        mu = b1 * s.mu + decayed(scaled, weight_decay, p)
        return mu, {"mu": mu, "nu": nu}

    return leafwise(ScaleByNovogradState, slots, rule)


@optimizer
def novograd(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.25,
    eps: NonNegative = 1e-6,
    eps_root: NonNegative = 0.0,
    weight_decay: NonNegative = 0.0,
) -> GradientTransformation:
    r"""NovoGrad: momentum of gradients, each leaf's divided by a moving average of its norm.

    .. math::
        \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2) \lVert g_t\rVert^2, \qquad
            \nu_1 = \lVert g_1\rVert^2, \\
        \mu_t &= \beta_1 \mu_{t-1} + \left(\frac{g_t}{\sqrt{\nu_t + \bar\epsilon} + \epsilon}
            + \lambda\theta_{t-1}\right), \\
        \theta_t &= \theta_{t-1} - \eta\, \mu_t

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: decay of the momentum; this and the rest as in :func:`scale_by_novograd`.
        b2: decay of the squared norm.
        eps: added to the root.
        eps_root: added under the root.
        weight_decay: :math:`\lambda \ge 0`; :math:`\lambda\theta` is added to the normalized
            gradient.

    Source: B. Ginsburg et al., Stochastic Gradient Methods with Layer-wise Adaptive Moments for
    Training of Deep Networks, 2019, arXiv:1905.11286, algorithm 1.

    >>> import gradtx
    >>> tx = novograd(0.01)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-1))
    True
    """
    return chain(
        scale_by_novograd(b1, b2, eps, eps_root, weight_decay),
        scale_by_learning_rate(learning_rate),
    )
