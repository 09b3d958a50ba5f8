"""QHAdam."""

from typing import Any, NamedTuple

from gradtx.checks import Decay, Fraction, LearningRate, NonNegative, Number
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import elementwise
from gradtx.leaves.paths import Where
from gradtx.numerics import Step, abs_sq, debias, ema, moments, root_plus
from gradtx.transforms.decay import descent
from gradtx.types import Array, Counter, DType, NonNegativeSlots, Slots


class ScaleByQhadamState(NamedTuple):
    """count: i32[]; mu, nu: like the parameters, nu real and in float32 or wider unless given."""

    count: Counter
    mu: Slots
    nu: NonNegativeSlots


@transformation
def scale_by_qhadam(
    b1: Decay = 0.995,
    b2: Decay = 0.999,
    nu1: Number = 0.7,
    nu2: Fraction = 1.0,
    eps: NonNegative = 1e-8,
    *,
    mu_dtype: DType | None = None,
    nu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""Adam with each moment replaced by a blend of itself and the current gradient.

    .. math:: u_t = \frac{(1 - \kappa_1) g_t + \kappa_1 \hat\mu_t}
        {\sqrt{(1 - \kappa_2) |g_t|^2 + \kappa_2 \hat\nu_t} + \epsilon}

    with the moments of :func:`scale_by_adam`.

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`; every number may be an array or a schedule.
        b2: :math:`\beta_2` in :math:`[0, 1)`.
        nu1: :math:`\kappa_1`, usually 0 to 1; 1 is Adam.
        nu2: :math:`\kappa_2` in :math:`[0, 1]`; 1 is Adam.
        eps: :math:`\epsilon \ge 0`.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.
        nu_dtype: the type in which :math:`\nu` is kept; float32 or wider unless given.

    The defaults are those that the paper recommends.

    State: `ScaleByQhadamState`.

    Source: J. Ma and D. Yarats, Quasi-hyperbolic Momentum and Adam for Deep Learning, 2019,
    arXiv:1810.06801, section 4.

    >>> import jax.numpy as jnp
    >>> tx = scale_by_qhadam()
    >>> tx.update(jnp.array([4.0, 0.0]), tx.init(jnp.zeros(2)))[0].round(4).tolist()
    [1.0, 0.0]
    """

    def slots(p: Array) -> dict[str, Array]:
        return moments(p, mu_dtype, nu_dtype)

    def rule(g: Array, s: Any, t: Step) -> Any:
        mu, nu = ema(g, s.mu, b1), ema(abs_sq(g), s.nu, b2)
        square = ema(abs_sq(g), debias(nu, b2, t), nu2)
        mean = ema(g, debias(mu, b1, t), nu1)
        return mean / root_plus(square, eps, mean), {"mu": mu, "nu": nu}

    return elementwise(ScaleByQhadamState, slots, rule)


@optimizer
def qhadam(
    learning_rate: LearningRate,
    b1: Decay = 0.995,
    b2: Decay = 0.999,
    nu1: Number = 0.7,
    nu2: Fraction = 1.0,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    *,
    mu_dtype: DType | None = None,
    nu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""QHAdam: quasi-hyperbolic Adam, with decoupled weight decay.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
            \hat\mu_t = \frac{\mu_t}{1 - \beta_1^t}, \\
        \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \qquad
            \hat\nu_t = \frac{\nu_t}{1 - \beta_2^t}, \\
        \theta_t &= \theta_{t-1} - \eta \left(\frac{(1 - \kappa_1) g_t + \kappa_1 \hat\mu_t}
            {\sqrt{(1 - \kappa_2) |g_t|^2 + \kappa_2 \hat\nu_t} + \epsilon}
            + \lambda\theta_{t-1}\right)

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: decay of the first moment; this and the rest as in :func:`scale_by_qhadam`.
        b2: decay of the second moment.
        nu1: :math:`\kappa_1`, the share of the first moment in the direction.
        nu2: :math:`\kappa_2`, the share of the second moment under the root.
        eps: added to the root.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        mu_dtype: the type of the first moment.
        nu_dtype: the type of the second moment.

    Source: J. Ma and D. Yarats, Quasi-hyperbolic Momentum and Adam for Deep Learning, 2019,
    arXiv:1810.06801, section 4.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = qhadam(0.05)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return descent(
        scale_by_qhadam(b1, b2, nu1, nu2, eps, mu_dtype=mu_dtype, nu_dtype=nu_dtype),
        learning_rate,
        weight_decay,
        mask,
    )
