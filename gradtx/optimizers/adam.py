"""Adam and its variant with decoupled weight decay, AdamW."""

from typing import Any, NamedTuple

from gradtx import numerics
from gradtx.checks import Decay, LearningRate, NonNegative
from gradtx.composition.chain import chain
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import elementwise
from gradtx.engine.zero_gradients import ZeroGradient
from gradtx.leaves.paths import Where
from gradtx.numerics import Step, abs_sq, debias, ema, moments, nesterov_mean
from gradtx.transforms.decay import descent
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, Counter, DType, NonNegativeSlots, Slots


class ScaleByAdamState(NamedTuple):
    """count: i32[]; mu, nu: like the parameters, nu real and in float32 or wider unless given."""

    count: Counter
    mu: Slots
    nu: NonNegativeSlots


@transformation(update_size="adam")
def scale_by_adam(
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    eps_root: NonNegative = 0.0,
    mu_dtype: DType | None = None,
    *,
    nesterov: bool = False,
    nu_dtype: DType | None = None,
    epsilon_hat: bool = False,
) -> GradientTransformation:
    r"""Divide a moving average of the gradients by the root of a moving average of their squares.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, &
        \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \\
        u_t &= \frac{\hat\mu_t}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon}, &
        \hat\mu_t &= \frac{\mu_t}{1 - \beta_1^t}, \quad \hat\nu_t = \frac{\nu_t}{1 - \beta_2^t}

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`; this and the next three: a number, an array, or a
            schedule.
        b2: :math:`\beta_2` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`, outside the root.
        eps_root: :math:`\bar\epsilon \ge 0`, inside the root; make it positive to differentiate
            through the update.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.
        nesterov: replace :math:`\hat\mu_t` by
            :math:`\beta_1 \mu_t / (1 - \beta_1^{t+1}) + (1 - \beta_1) g_t / (1 - \beta_1^t)`.
        nu_dtype: the type in which :math:`\nu` is kept; float32 or wider unless given. Optax keeps
            it in the parameter's type, where it never decays in bfloat16 and underflows in float16.
        epsilon_hat: add :math:`\epsilon` to :math:`\sqrt{\nu_t}` before the bias correction, as
            Keras and TensorFlow do (the paper's :math:`\hat\epsilon`).

    State: `ScaleByAdamState`. For a complex parameter :math:`\nu` is real.

    A zero gradient gives a zero update in every type; with both epsilons 0, an entry that has had
    no gradient becomes NaN. A NaN gradient stays in the slots: guard with ``apply_if_finite``.

    Source: D. P. Kingma and J. Ba, Adam: A Method for Stochastic Optimization, 2015,
    arXiv:1412.6980, algorithm 1; T. Dozat, Incorporating Nesterov Momentum into Adam, 2016.

    >>> import jax.numpy as jnp
    >>> tx = scale_by_adam()
    >>> updates, state = tx.update(jnp.array([4.0]), tx.init(jnp.zeros(1)))
    >>> updates.round(6).tolist(), int(state.count)
    ([1.0], 1)
    """

    def slots(p: Array) -> dict[str, Array]:
        return moments(p, mu_dtype, nu_dtype)

    def rule(g: Array, s: Any, t: Step) -> Any:
        mu = ema(g, s.mu, b1)
        nu = ema(abs_sq(g), s.nu, b2)
        m = nesterov_mean(mu, g, b1, t) if nesterov else debias(mu, b1, t, divided=True)
        added = numerics.epsilon_hat(eps, b2, t) if epsilon_hat else eps
        return m / (numerics.root(debias(nu, b2, t) + eps_root) + added), {"mu": mu, "nu": nu}

    zero_gradient = ZeroGradient({"mu": b1, "nu": b2}, lambda: b1 / b2**0.5)
    return elementwise(ScaleByAdamState, slots, rule, zero_gradient=zero_gradient)


@optimizer(update_size="adam")
def adam(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    eps_root: NonNegative = 0.0,
    mu_dtype: DType | None = None,
    *,
    nesterov: bool = False,
    nu_dtype: DType | None = None,
    epsilon_hat: bool = False,
) -> GradientTransformation:
    r"""Adam: steps along the mean gradient, divided by the root of the mean squared gradient.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, &
        \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \\
        \hat\mu_t &= \frac{\mu_t}{1 - \beta_1^t}, &
        \hat\nu_t &= \frac{\nu_t}{1 - \beta_2^t}, \\
        \theta_t &= \theta_{t-1} - \eta\,
            \frac{\hat\mu_t}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon}

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: :math:`\beta_1`, decay of the first moment; this and the rest as in
            :func:`scale_by_adam`.
        b2: :math:`\beta_2`, decay of the second moment.
        eps: :math:`\epsilon`, added to the root of the second moment.
        eps_root: :math:`\bar\epsilon`, added under the root.
        mu_dtype: the type of the first moment.
        nesterov: use Nesterov momentum.
        nu_dtype: the type of the second moment.
        epsilon_hat: add `eps` before the bias correction, as Keras does with its 1e-7.

    Source: D. P. Kingma and J. Ba, Adam: A Method for Stochastic Optimization, 2015,
    arXiv:1412.6980, algorithm 1.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = adam(0.1)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return chain(
        scale_by_adam(
            b1,
            b2,
            eps,
            eps_root,
            mu_dtype,
            nesterov=nesterov,
            nu_dtype=nu_dtype,
            epsilon_hat=epsilon_hat,
        ),
        scale_by_learning_rate(learning_rate),
    )


@optimizer(update_size="adam")
def adamw(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    eps_root: NonNegative = 0.0,
    mu_dtype: DType | None = None,
    weight_decay: NonNegative = 1e-4,
    mask: Where | None = None,
    *,
    nesterov: bool = False,
    nu_dtype: DType | None = None,
    epsilon_hat: bool = False,
) -> GradientTransformation:
    r"""AdamW: Adam with decoupled weight decay.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, &
        \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \\
        \hat\mu_t &= \frac{\mu_t}{1 - \beta_1^t}, &
        \hat\nu_t &= \frac{\nu_t}{1 - \beta_2^t}, \\
        \theta_t &= \theta_{t-1} - \eta \left(
            \frac{\hat\mu_t}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon}
            + \lambda \theta_{t-1}\right)

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: :math:`\beta_1`, decay of the first moment; this and the rest as in
            :func:`scale_by_adam`.
        b2: :math:`\beta_2`, decay of the second moment.
        eps: :math:`\epsilon`, added to the root of the second moment.
        eps_root: :math:`\bar\epsilon`, added under the root.
        mu_dtype: the type of the first moment.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate (as in PyTorch; the
            paper multiplies by the schedule alone).
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        nesterov: use Nesterov momentum.
        nu_dtype: the type of the second moment.
        epsilon_hat: add `eps` before the bias correction, as Keras does with its 1e-7.

    Source: I. Loshchilov and F. Hutter, Decoupled Weight Decay Regularization, 2019,
    arXiv:1711.05101, algorithm 2.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = adamw(0.1, weight_decay=1e-3)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return descent(
        scale_by_adam(
            b1,
            b2,
            eps,
            eps_root,
            mu_dtype,
            nesterov=nesterov,
            nu_dtype=nu_dtype,
            epsilon_hat=epsilon_hat,
        ),
        learning_rate,
        weight_decay,
        mask,
    )
