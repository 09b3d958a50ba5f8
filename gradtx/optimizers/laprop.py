"""LaProp."""

from typing import Any, NamedTuple

from gradtx.checks import Decay, LearningRate, NonNegative
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import elementwise
from gradtx.leaves.paths import Where
from gradtx.numerics import Step, abs_sq, debias, ema, moments, root_plus
from gradtx.transforms.decay import descent
from gradtx.types import Array, Counter, DType, NonNegativeSlots, Slots


class ScaleByLapropState(NamedTuple):
    """count: i32[]; mu, nu: like the parameters, nu real and in float32 or wider unless given."""

    count: Counter
    mu: Slots
    nu: NonNegativeSlots


@transformation(update_size="adam")
def scale_by_laprop(
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-15,
    *,
    mu_dtype: DType | None = None,
    nu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""A moving average of normalized gradients; Adam averages first and then normalizes.

    .. math::
        \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \qquad
        \mu_t = \beta_1 \mu_{t-1} + (1 - \beta_1) \frac{g_t}{\sqrt{\hat\nu_t} + \epsilon},
        \qquad u_t = \frac{\mu_t}{1 - \beta_1^t}

    with :math:`\hat\nu_t = \nu_t / (1 - \beta_2^t)`.

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`; this and the next two: a number, an array, or a
            schedule.
        b2: :math:`\beta_2` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.
        nu_dtype: the type in which :math:`\nu` is kept; float32 or wider unless given.

    State: `ScaleByLapropState`.

    Source: L. Ziyin, Z. T. Wang and M. Ueda, LaProp: Separating Momentum and Adaptivity in Adam,
    2020, arXiv:2002.04839, algorithm 1.

    >>> import jax.numpy as jnp
    >>> tx = scale_by_laprop()
    >>> tx.update(jnp.array([4.0, 0.0]), tx.init(jnp.zeros(2)))[0].round(4).tolist()
    [1.0, 0.0]
    """

    def slots(p: Array) -> dict[str, Array]:
        return moments(p, mu_dtype, nu_dtype)

    def rule(g: Array, s: Any, t: Step) -> Any:
        nu = ema(abs_sq(g), s.nu, b2)
        mu = ema(g / root_plus(debias(nu, b2, t), eps, g), s.mu, b1)
        return debias(mu, b1, t), {"mu": mu, "nu": nu}

    return elementwise(ScaleByLapropState, slots, rule)


@optimizer(update_size="adam")
def laprop(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-15,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    *,
    mu_dtype: DType | None = None,
    nu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""LaProp: momentum of normalized gradients, with decoupled weight decay.

    .. math::
        \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \\
        \mu_t &= \beta_1 \mu_{t-1}
            + (1 - \beta_1) \frac{g_t}{\sqrt{\nu_t / (1 - \beta_2^t)} + \epsilon}, \\
        \theta_t &= \theta_{t-1}
            - \eta \left(\frac{\mu_t}{1 - \beta_1^t} + \lambda\theta_{t-1}\right)

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: decay of the momentum; this and the rest as in :func:`scale_by_laprop`.
        b2: decay of the second moment.
        eps: added to the root.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        mu_dtype: the type of the momentum.
        nu_dtype: the type of the second moment.

    Source: L. Ziyin, Z. T. Wang and M. Ueda, LaProp: Separating Momentum and Adaptivity in Adam,
    2020, arXiv:2002.04839, algorithm 1.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = laprop(0.02)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return descent(
        scale_by_laprop(b1, b2, eps, mu_dtype=mu_dtype, nu_dtype=nu_dtype),
        learning_rate,
        weight_decay,
        mask,
    )
