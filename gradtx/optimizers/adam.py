"""Adam and its variant with decoupled weight decay, AdamW."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx import numerics
from gradtx.checks import Decay, NonNegative
from gradtx.composition.chain import chain
from gradtx.engine.lift import elementwise
from gradtx.engine.zero_gradients import ZeroGradient
from gradtx.numerics import Step, abs_sq, accumulator_dtype, debias, ema, nesterov_mean, zeros_like
from gradtx.pair import GradientTransformation, optimizer, transformation
from gradtx.paths import Where
from gradtx.transforms.decay import add_decayed_weights
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, Counter, DType, Slots


class ScaleByAdamState(NamedTuple):
    """count: i32[]; mu, nu: like the parameters, nu real and in float32 or wider unless given."""

    count: Counter
    mu: Slots
    nu: Slots


@transformation
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
    r"""Divide a moving average of the gradients by the root of one of their squares.

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
        eps_root: :math:`\bar\epsilon \ge 0`, inside the root, for differentiating through it.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.
        nesterov: replace :math:`\hat\mu_t` by
            :math:`\beta_1 \mu_t / (1 - \beta_1^{t+1}) + (1 - \beta_1) g_t / (1 - \beta_1^t)`.
        nu_dtype: the type in which :math:`\nu` is kept; float32 or wider unless given. Optax keeps
            it in the parameter's type, where in bfloat16 it never decays and in float16 underflows.
        epsilon_hat: add :math:`\epsilon` to :math:`\sqrt{\nu_t}` before the bias correction, as
            Keras and TensorFlow do (the paper's :math:`\hat\epsilon`).

    State: `ScaleByAdamState`. For a complex parameter :math:`\nu` is real.

    A zero gradient gives a zero update in every type; with both epsilons 0 an entry that has had no
    gradient is NaN. A NaN gradient stays in the slots: guard with ``apply_if_finite``.

    Source: D. P. Kingma and J. Ba, Adam: A Method for Stochastic Optimization, 2015,
    arXiv:1412.6980, algorithm 1; T. Dozat, Incorporating Nesterov Momentum into Adam, 2016.

    >>> tx = scale_by_adam()
    >>> updates, state = tx.update(jnp.array([4.0]), tx.init(jnp.zeros(1)))
    >>> updates.round(6).tolist(), int(state.count)
    ([1.0], 1)
    """

    def slots(p: Array) -> dict[str, Array]:
        return {
            "mu": zeros_like(p, mu_dtype),
            "nu": zeros_like(p, accumulator_dtype(p, nu_dtype)),
        }

    def rule(g: Array, s: Any, t: Step) -> Any:
        mu = ema(g, s.mu, b1)
        nu = ema(abs_sq(g), s.nu, b2)
        m = nesterov_mean(mu, g, b1, t) if nesterov else debias(mu, b1, t, divided=True)
        added = numerics.epsilon_hat(eps, b2, t) if epsilon_hat else eps
        return m / (jnp.sqrt(debias(nu, b2, t) + eps_root) + added), {"mu": mu, "nu": nu}

    zero_gradient = ZeroGradient({"mu": b1, "nu": b2}, lambda: b1 / b2**0.5)
    return elementwise(ScaleByAdamState, slots, rule, zero_gradient=zero_gradient)


@optimizer
def adam(
    learning_rate: NonNegative,
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
    r"""Adam: :math:`\theta \leftarrow \theta - \eta\, u` with `u` of :func:`scale_by_adam`.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        b1: decay of the first moment; this and the rest as in :func:`scale_by_adam`.
        b2: decay of the second moment.
        eps: added to the root of the second moment.
        eps_root: added under the root.
        mu_dtype: the type of the first moment.
        nesterov: use Nesterov momentum.
        nu_dtype: the type of the second moment.
        epsilon_hat: add `eps` before the bias correction, as Keras does with its 1e-7.

    Source: D. P. Kingma and J. Ba, Adam: A Method for Stochastic Optimization, 2015,
    arXiv:1412.6980, algorithm 1.

    >>> adam(1e-3)
    adam(learning_rate=0.001, b1=0.9, b2=0.999, eps=1e-08, eps_root=0.0)
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


@optimizer
def adamw(
    learning_rate: NonNegative,
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
    r"""Adam with decoupled decay: :math:`\theta \leftarrow \theta - \eta (u + \lambda\theta)`.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        b1: decay of the first moment; this and the rest as in :func:`scale_by_adam`.
        b2: decay of the second moment.
        eps: added to the root of the second moment.
        eps_root: added under the root.
        mu_dtype: the type of the first moment.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate (as in PyTorch; the
            paper multiplies by the schedule alone).
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        nesterov: use Nesterov momentum.
        nu_dtype: the type of the second moment.
        epsilon_hat: add `eps` before the bias correction, as Keras does with its 1e-7.

    Source: I. Loshchilov and F. Hutter, Decoupled Weight Decay Regularization, 2019,
    arXiv:1711.05101, algorithm 2.

    >>> tx = adamw(1e-3, weight_decay=0.1, mask="*/kernel")
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
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )
