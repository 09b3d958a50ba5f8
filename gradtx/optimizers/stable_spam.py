"""StableSPAM."""

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx import numerics
from gradtx.checks import Count, Decay, LearningRate, NonNegative
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import leafwise
from gradtx.leaves.paths import Where
from gradtx.numerics import Step, abs_sq, accumulator_dtype, debias, divide, ema, moments, sum_sq
from gradtx.numerics.compiler_hints import Recomputed, planned, recompute
from gradtx.transforms.decay import descent
from gradtx.types import Array, Counter, DType, NonNegativeSlots, Slots


class ScaleByStableSpamState(NamedTuple):
    """count: i32[]; mu, nu: like the parameters; the others: a real number for each leaf."""

    count: Counter
    mu: Slots
    nu: NonNegativeSlots
    largest: NonNegativeSlots
    norm: NonNegativeSlots
    norm_square: NonNegativeSlots


def _clipped(most: Array, limit: Array, g: Array) -> Array:
    """The gradient over its largest entry, without spikes; squares of it do not underflow."""
    x = g * jnp.where(most > 0, 1 / jnp.where(most > 0, most, 1), 0)
    # A sum on a CPU computes signs in its own pass, where it would store a selection.
    spike = jnp.sign(jnp.maximum(jnp.abs(x) - limit, 0))
    return x * (1 - (1 - limit) * spike)


def _since_reset(t: Step, reset_interval: Any) -> Step:
    """This step by the steps that Adam's moments have seen, this one included."""

    def count() -> Array:
        k = jnp.asarray(reset_interval, t.count.dtype)
        again = (k > 0) & (t.count >= k)
        return jnp.where(again, t.count % jnp.maximum(k, 1) + 1, t.count)

    return Step(t.once("since reset", 0, count), t.number.dtype)


@transformation
def scale_by_stable_spam(
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    *,
    gamma1: Decay = 0.7,
    gamma2: Decay = 0.9,
    gamma3: Decay = 0.999,
    reset_interval: Count = 1000,
    mu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""Adam on gradients whose spikes are clipped and whose norms are smoothed in each leaf.

    .. math::
        M_t &= \gamma_3 M_{t-1} + (1 - \gamma_3) \max_i |g_{t,i}|, \qquad
            \hat M_t = \frac{M_t}{1 - \gamma_3^t}, \\
        c_{t,i} &= \begin{cases} \hat M_t\, g_{t,i} / \max_j |g_{t,j}|
            & \text{if } |g_{t,i}| > \hat M_t \\ g_{t,i} & \text{else} \end{cases} \\
        m_t &= \gamma_1 m_{t-1} + (1 - \gamma_1) \lVert c_t\rVert, \qquad
            v_t = \gamma_2 v_{t-1} + (1 - \gamma_2) \lVert c_t\rVert^2, \\
        \tilde g_t &= \frac{c_t}{\lVert c_t\rVert}\,
            \frac{m_t / (1 - \gamma_1^t)}{\sqrt{v_t / (1 - \gamma_2^t)} + \epsilon}, \qquad
            u_t = \mathrm{Adam}(\tilde g_t)

    The maximum and the norm are those of a leaf. At every `k`-th step Adam's moments and its bias
    correction begin anew, before :math:`\tilde g_t` is added to them.

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`, decay of Adam's first moment.
        b2: :math:`\beta_2` in :math:`[0, 1)`, decay of its second moment.
        eps: :math:`\epsilon \ge 0`, also added to the roots in Adam.
        gamma1: :math:`\gamma_1` in :math:`[0, 1)`, decay of the mean norm.
        gamma2: :math:`\gamma_2` in :math:`[0, 1)`, decay of the mean square of the norm.
        gamma3: :math:`\gamma_3` in :math:`[0, 1)`, decay of the mean of the largest entry, the
            threshold of the clip.
        reset_interval: `k`, steps from one reset to the next; 0 for none.
        mu_dtype: the type of Adam's first moment; the parameter's unless given.

    State: `ScaleByStableSpamState`; numbers for a leaf are in float32 or wider.

    Two differences from the authors' code: there a reset also restarts the bias corrections of
    `M`, `m` and `v`, though not these means, so that at the next step :math:`\hat M` is up to
    :math:`1 / (1 - \gamma_3^2)` times too large; here they go on counting. Its argument `total_T`
    lowers :math:`\beta_1` and :math:`\gamma_1` to half over the run along a cosine; here a schedule
    for each does.

    Source: T. Huang et al., Stable-SPAM: How to Train in 4-Bit More Stably than 16-Bit Adam, 2025,
    arXiv:2502.17055, and the authors' code.

    >>> tx = scale_by_stable_spam(b1=0.0, gamma3=0.5)
    >>> p = jnp.zeros(2)
    >>> state = tx.update(jnp.array([3.0, 4.0]), tx.init(p))[1]
    >>> [float(x.round(4)) for x in (state.largest, state.norm, state.norm_square)]
    [2.0, 1.5, 2.5]
    """

    def slots(p: Array) -> dict[str, Array]:
        numbers = ("largest", "norm", "norm_square")
        of_leaf = {name: jnp.zeros([], accumulator_dtype(p)) for name in numbers}
        return moments(p, mu_dtype) | of_leaf

    def sizes(g: Array, s: Any, t: Step) -> tuple[Array, Array, Array]:
        """The largest entry, the mean of it, and how much of it is above the clip."""
        most = jnp.max(jnp.abs(g), initial=0)
        largest = ema(most, s.largest, gamma3)
        return most, largest, divide(debias(largest, gamma3, t), most)

    def smoothed(most: Array, square: Array, s: Any, t: Step) -> tuple[Array, dict[str, Array]]:
        """The factor for the clipped gradient, from its sum of squares."""
        length = numerics.root(square)
        norm = ema(most * length, s.norm, gamma1)
        norm_square = ema((most * length) ** 2, s.norm_square, gamma2)
        root = numerics.root(debias(norm_square, gamma2, t))
        factor = divide(debias(norm, gamma1, t), (root + eps) * length)
        return factor, {"norm": norm, "norm_square": norm_square}

    def adam(s: Any, t: Step, x: Array, square: Array) -> tuple[Array, dict[str, Array]]:
        adam_step = _since_reset(t, reset_interval)
        not_first = jnp.where(adam_step.count > 1, 1, 0)
        mu, nu = ema(x, not_first * s.mu, b1), ema(square, not_first * s.nu, b2)
        u = debias(mu, b1, adam_step) / (numerics.root(debias(nu, b2, adam_step)) + eps)
        return u, {"mu": mu, "nu": nu}

    def rule(g: Array, s: Any, t: Step) -> Any:
        most, largest, limit = sizes(g, s, t)
        c = _clipped(most, limit, g)
        factor, norms = smoothed(most, sum_sq(c), s, t)
        u, adams = adam(s, t, c * factor, abs_sq(c * factor))
        return u, {"largest": largest, **norms, **adams}

    def plan(g: Array, s: Any, t: Step) -> Any:
        """The clipped gradient is computed for its norm and for each moment, not stored."""
        most, largest, limit = sizes(g, s, t)
        c = recompute(partial(_clipped, most, limit), g, after=t)
        factor, norms = smoothed(most, sum_sq(c), s, t)

        def normalized(g: Array) -> Array:
            return _clipped(most, limit, g) * factor

        x = Recomputed(normalized, g)
        u, adams = adam(s, t, x(after=factor), abs_sq(x(after=t)))
        return u, {"largest": largest, **norms, **adams}

    return leafwise(ScaleByStableSpamState, slots, planned(rule, plan))


@optimizer
def stable_spam(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    *,
    gamma1: Decay = 0.7,
    gamma2: Decay = 0.9,
    gamma3: Decay = 0.999,
    reset_interval: Count = 1000,
    mu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""StableSPAM: AdamW without spikes, with smoothed gradient norms and moments that begin anew.

    .. math::
        M_t &= \gamma_3 M_{t-1} + (1 - \gamma_3) \max_i |g_{t,i}|, \qquad
            \hat M_t = \frac{M_t}{1 - \gamma_3^t}, \\
        c_{t,i} &= \begin{cases} \hat M_t\, g_{t,i} / \max_j |g_{t,j}|
            & \text{if } |g_{t,i}| > \hat M_t \\ g_{t,i} & \text{else} \end{cases} \\
        m_t &= \gamma_1 m_{t-1} + (1 - \gamma_1) \lVert c_t\rVert, \qquad
            v_t = \gamma_2 v_{t-1} + (1 - \gamma_2) \lVert c_t\rVert^2, \\
        \tilde g_t &= \frac{c_t}{\lVert c_t\rVert}\,
            \frac{m_t / (1 - \gamma_1^t)}{\sqrt{v_t / (1 - \gamma_2^t)} + \epsilon}, \\
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) \tilde g_t, \qquad
            \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |\tilde g_t|^2, \\
        \theta_t &= \theta_{t-1} - \eta \left(\frac{\mu_t / (1 - \beta_1^{t'})}
            {\sqrt{\nu_t / (1 - \beta_2^{t'})} + \epsilon} + \lambda\theta_{t-1}\right)

    where at every `k`-th step :math:`\mu_{t-1} = \nu_{t-1} = 0`, and :math:`t'` counts from 1
    there.

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: :math:`\beta_1`, decay of the first moment; this and the rest as in
            :func:`scale_by_stable_spam`.
        b2: :math:`\beta_2`, decay of the second moment.
        eps: :math:`\epsilon \ge 0`.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        gamma1: :math:`\gamma_1`, decay of the mean norm.
        gamma2: :math:`\gamma_2`, decay of the mean square of the norm.
        gamma3: :math:`\gamma_3`, decay of the clip's threshold.
        reset_interval: `k`, steps from one reset to the next; 0 for none.
        mu_dtype: the type of the first moment.

    Source: T. Huang et al., Stable-SPAM: How to Train in 4-Bit More Stably than 16-Bit Adam, 2025,
    arXiv:2502.17055, and the authors' code.

    >>> import gradtx
    >>> tx = stable_spam(gradtx.cosine_decay_schedule(0.1, 200))
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return descent(
        scale_by_stable_spam(
            b1,
            b2,
            eps,
            gamma1=gamma1,
            gamma2=gamma2,
            gamma3=gamma3,
            reset_interval=reset_interval,
            mu_dtype=mu_dtype,
        ),
        learning_rate,
        weight_decay,
        mask,
    )
