"""AdaBelief."""

from typing import Any, NamedTuple

from gradtx import numerics
from gradtx.checks import Decay, LearningRate, NonNegative
from gradtx.composition.chain import chain
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import elementwise
from gradtx.leaves.paths import Where
from gradtx.numerics import Step, abs_sq, debias, ema, moments, nesterov_mean
from gradtx.transforms.decay import add_decayed_weights
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, Counter, NonNegativeSlots, Slots


class ScaleByBeliefState(NamedTuple):
    """count: i32[]; mu, nu: like the parameters, nu real and in float32 or wider."""

    count: Counter
    mu: Slots
    nu: NonNegativeSlots


@transformation(update_size="adam")
def scale_by_belief(
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-16,
    eps_root: NonNegative = 1e-16,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    r"""Divide a moving average of the gradients by their deviation from it.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, &
        \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t - \mu_t|^2 + \bar\epsilon, \\
        u_t &= \frac{\hat\mu_t}{\sqrt{\hat\nu_t} + \epsilon}, &
        \hat\mu_t &= \frac{\mu_t}{1 - \beta_1^t}, \quad \hat\nu_t = \frac{\nu_t}{1 - \beta_2^t}

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`.
        b2: :math:`\beta_2` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`, outside the root.
        eps_root: :math:`\bar\epsilon \ge 0`, added to :math:`\nu` at every step, and kept in it.
        nesterov: take the look-ahead first moment of NAdam, as in :func:`scale_by_adam`.

    State: `ScaleByBeliefState`. :math:`\nu` is kept in float32 or wider; Optax keeps it in the
    parameter's type, where :math:`\bar\epsilon` underflows in float16 and a zero gradient gives
    NaN. PyTorch has no AdaBelief.

    Source: J. Zhuang et al., AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed
    Gradients, 2020, arXiv:2010.07468, algorithm 2.

    >>> import jax.numpy as jnp
    >>> tx = scale_by_belief(b1=0.5)
    >>> updates, state = tx.update(jnp.array([4.0]), tx.init(jnp.zeros(1)))
    >>> updates.round(4).tolist(), int(state.count)
    ([2.0], 1)
    """

    def rule(g: Array, s: Any, t: Step) -> Any:
        mu = ema(g, s.mu, b1)
        # The constant goes in first: XLA recomputes a sum with a constant, which reads the old slot
        # again, but not a sum of two arrays.
        nu = b2 * s.nu + ((1 - b2) * abs_sq(g - mu) + eps_root)
        m = nesterov_mean(mu, g, b1, t) if nesterov else debias(mu, b1, t, divided=True)
        return m / (numerics.root(debias(nu, b2, t)) + eps), {"mu": mu, "nu": nu}

    return elementwise(ScaleByBeliefState, moments, rule)


@optimizer(update_size="adam")
def adabelief(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-16,
    eps_root: NonNegative = 1e-16,
    weight_decay: NonNegative | None = None,
    weight_decay_mask: Where | None = None,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    r"""AdaBelief: steps along the mean gradient, divided by the deviation from it.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, &
        \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t - \mu_t|^2 + \bar\epsilon, \\
        \hat\mu_t &= \frac{\mu_t}{1 - \beta_1^t}, &
        \hat\nu_t &= \frac{\nu_t}{1 - \beta_2^t}, \\
        \theta_t &= \theta_{t-1} - \eta \left(\frac{\hat\mu_t}{\sqrt{\hat\nu_t} + \epsilon}
            + \lambda \theta_{t-1}\right)

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: :math:`\beta_1`, decay of the mean, in :math:`[0, 1)`; this and the rest as in
            :func:`scale_by_belief`.
        b2: :math:`\beta_2`, decay of the deviation, in :math:`[0, 1)`.
        eps: :math:`\epsilon`, added to the root, at least 0.
        eps_root: :math:`\bar\epsilon`, added to the deviation at every step, at least 0.
        weight_decay: :math:`\lambda \ge 0`, decoupled, multiplied by the learning rate; None for 0,
            without a link for it in the state.
        weight_decay_mask: which parameters decay, as in :func:`add_decayed_weights`.
        nesterov: use Nesterov momentum.

    Source: J. Zhuang et al., AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed
    Gradients, 2020, arXiv:2010.07468, algorithm 2.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = adabelief(0.1)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    decay = [] if weight_decay is None else [add_decayed_weights(weight_decay, weight_decay_mask)]
    return chain(
        scale_by_belief(b1, b2, eps, eps_root, nesterov=nesterov),
        *decay,
        scale_by_learning_rate(learning_rate),
    )
