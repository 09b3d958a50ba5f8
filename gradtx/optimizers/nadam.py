"""NAdam: Adam with Nesterov momentum, with or without a schedule for the momentum."""

from typing import Any, NamedTuple

from gradtx import numerics
from gradtx.checks import Decay, LearningRate, NonNegative
from gradtx.composition.chain import chain
from gradtx.core.pair import (
    GradientTransformation,
    optimizer,
    transformation,
)
from gradtx.engine.lift import elementwise
from gradtx.leaves.paths import Where
from gradtx.numerics import Step, abs_sq, debias, ema, moments
from gradtx.optimizers.adam import scale_by_adam
from gradtx.transforms.decay import descent
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, Counter, DType, NonNegativeSlots, Slots, TreeScalar


class ScaleByNadamState(NamedTuple):
    """count: i32[]; mu, nu: like the parameters; momentum_product: f32[]."""

    count: Counter
    mu: Slots
    nu: NonNegativeSlots
    momentum_product: TreeScalar


@transformation(update_size="adam")
def scale_by_nadam(
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    eps_root: NonNegative = 0.0,
    mu_dtype: DType | None = None,
    *,
    momentum_decay: NonNegative = 4e-3,
) -> GradientTransformation:
    r"""Adam with Nesterov momentum that warms up.

    .. math::
        m_t &= \beta_1 \left(1 - \tfrac12\, 0.96^{t \psi}\right), \qquad
        M_t = \prod_{i \le t} m_i, \\
        \bar\mu_t &= \frac{m_{t+1}\, \mu_t}{1 - M_t m_{t+1}} + \frac{(1 - m_t)\, g_t}{1 - M_t},
        \qquad u_t = \frac{\bar\mu_t}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon}

    with the moments :math:`\mu_t` and :math:`\hat\nu_t` of :func:`scale_by_adam`.

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`.
        b2: :math:`\beta_2` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`, outside the root.
        eps_root: :math:`\bar\epsilon \ge 0`, inside the root.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.
        momentum_decay: :math:`\psi \ge 0`; PyTorch uses 4e-3, Keras 1.

    State: `ScaleByNadamState`. Optax has no such schedule.

    Source: T. Dozat, Incorporating Nesterov Momentum into Adam, 2016.

    >>> import jax.numpy as jnp
    >>> tx = scale_by_nadam()
    >>> tx.update(jnp.array([4.0]), tx.init(jnp.zeros(1)))[0].round(3).tolist()
    [1.055999994277954]
    """

    def momentum(number: Array) -> Array:
        return b1 * (1 - 0.5 * 0.96 ** (number * momentum_decay))

    def slots(p: Array) -> dict[str, Array]:
        return moments(p, mu_dtype)

    def rule(g: Array, s: Any, t: Step) -> Any:
        mu, nu = ema(g, s.mu, b1), ema(abs_sq(g), s.nu, b2)
        now, ahead = momentum(t.number), momentum(t.number + 1)
        product = t.once("product", 0, lambda: s.momentum_product * now)
        m = mu * (ahead / (1 - product * ahead)) + g * ((1 - now) / (1 - product))
        return m / (numerics.root(debias(nu, b2, t) + eps_root) + eps), {"mu": mu, "nu": nu}

    def advance(s: Any, t: Step) -> Any:
        return {"momentum_product": s.momentum_product * momentum(t.number)}

    start = {"momentum_product": 1.0}
    return elementwise(ScaleByNadamState, slots, rule, start=start, advance=advance)


def _scale(
    b1: Any, b2: Any, eps: Any, eps_root: Any, mu_dtype: Any, nesterov: bool, momentum_decay: Any
) -> GradientTransformation:
    if momentum_decay is None:
        return scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)
    if not nesterov:
        raise ValueError("nadam: momentum_decay is for Nesterov momentum; leave nesterov=True")
    return scale_by_nadam(b1, b2, eps, eps_root, mu_dtype, momentum_decay=momentum_decay)


@optimizer(update_size="adam")
def nadam(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    eps_root: NonNegative = 0.0,
    mu_dtype: DType | None = None,
    *,
    nesterov: bool = True,
    momentum_decay: NonNegative | None = None,
) -> GradientTransformation:
    r"""NAdam: Adam with Nesterov momentum.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
            \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \\
        \bar\mu_t &= \frac{\beta_1 \mu_t}{1 - \beta_1^{t+1}}
            + \frac{(1 - \beta_1) g_t}{1 - \beta_1^t}, \qquad
            \hat\nu_t = \frac{\nu_t}{1 - \beta_2^t}, \\
        \theta_t &= \theta_{t-1}
            - \eta \frac{\bar\mu_t}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon}

    With `momentum_decay`, :math:`\bar\mu_t` is that of :func:`scale_by_nadam`, whose momentum warms
    up.

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: decay of the first moment, in :math:`[0, 1)`.
        b2: decay of the second moment, in :math:`[0, 1)`.
        eps: added to the root, at least 0.
        eps_root: added under the root, at least 0.
        mu_dtype: the type of the first moment.
        nesterov: use Nesterov momentum; without it this is :func:`adam`.
        momentum_decay: the momentum warms up as in :func:`scale_by_nadam`: 4e-3 is PyTorch's NAdam,
            1 is Keras's; None, as in Optax, for a constant momentum.

    Source: T. Dozat, Incorporating Nesterov Momentum into Adam, 2016.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = nadam(0.05, momentum_decay=4e-3)  # PyTorch's
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return chain(
        _scale(b1, b2, eps, eps_root, mu_dtype, nesterov, momentum_decay),
        scale_by_learning_rate(learning_rate),
    )


@optimizer(update_size="adam")
def nadamw(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    eps_root: NonNegative = 0.0,
    mu_dtype: DType | None = None,
    weight_decay: NonNegative = 1e-4,
    mask: Where | None = None,
    *,
    nesterov: bool = True,
    momentum_decay: NonNegative | None = None,
) -> GradientTransformation:
    r"""NAdam with decoupled weight decay.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
            \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \\
        \bar\mu_t &= \frac{\beta_1 \mu_t}{1 - \beta_1^{t+1}}
            + \frac{(1 - \beta_1) g_t}{1 - \beta_1^t}, \qquad
            \hat\nu_t = \frac{\nu_t}{1 - \beta_2^t}, \\
        \theta_t &= \theta_{t-1} - \eta \left(\frac{\bar\mu_t}
            {\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon} + \lambda\theta_{t-1}\right)

    With `momentum_decay`, :math:`\bar\mu_t` is that of :func:`scale_by_nadam`.

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: decay of the first moment, in :math:`[0, 1)`; this and the rest as in :func:`nadam`.
        b2: decay of the second moment, in :math:`[0, 1)`.
        eps: added to the root, at least 0.
        eps_root: added under the root, at least 0.
        mu_dtype: the type of the first moment.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        nesterov: use Nesterov momentum; without it this is :func:`adamw`.
        momentum_decay: how fast the momentum warms up; None for a constant momentum.

    Source: T. Dozat, Incorporating Nesterov Momentum into Adam, 2016; I. Loshchilov and F. Hutter,
    Decoupled Weight Decay Regularization, 2019, arXiv:1711.05101.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = nadamw(0.05)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return descent(
        _scale(b1, b2, eps, eps_root, mu_dtype, nesterov, momentum_decay),
        learning_rate,
        weight_decay,
        mask,
    )
