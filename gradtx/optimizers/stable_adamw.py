"""StableAdamW."""

from functools import partial
from typing import Any

import jax.numpy as jnp

from gradtx.checks import Decay, LearningRate, NonNegative
from gradtx.composition.chain import chain
from gradtx.composition.masking import split_by_mask
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import leafwise
from gradtx.leaves.paths import Where
from gradtx.numerics import Step, abs_sq, debias, ema, moments, plain_rms, root_plus
from gradtx.numerics.compiler_hints import planned, recompute
from gradtx.optimizers.adam import ScaleByAdamState
from gradtx.transforms.decay import decayed
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, DType


@transformation
def scale_by_stable_adamw(
    b1: Decay = 0.9,
    b2: Decay = 0.99,
    eps: NonNegative = 1e-6,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    *,
    mu_dtype: DType | None = None,
    nu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""AdamW's direction, shortened in a leaf whose second moment has fallen behind its gradient.

    .. math:: u = \frac{1}{\max(1, r)} \left(\frac{\hat\mu}{\sqrt{\hat\nu} + \epsilon}
        + \lambda\theta\right), \qquad
        r^2 = \mathrm{mean}\left(\frac{|g|^2}{\max(\hat\nu, \epsilon^2)}\right)

    with Adam's bias-corrected moments; the mean is over a leaf.

    Args:
        b1: decay of the first moment, in :math:`[0, 1)`.
        b2: decay of the second moment, in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`.
        weight_decay: :math:`\lambda \ge 0`.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        mu_dtype: the type of the first moment; the parameter's unless given.
        nu_dtype: the type of the second moment; float32 or wider unless given.

    State: `ScaleByAdamState`.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: M. Wortsman et al., Stable and Low-Precision Training for Large-Scale Vision-Language
    Models, 2023, arXiv:2304.13013, algorithm 2.

    >>> tx = scale_by_stable_adamw(b1=0.0, eps=0.0)
    >>> p = jnp.zeros(2)
    >>> tx.update(jnp.array([4.0, -1.0]), tx.init(p), p)[0].round(4).tolist()
    [1.0, -1.0]
    """

    def slots(p: Array) -> dict[str, Array]:
        return moments(p, mu_dtype, nu_dtype)

    def with_decay(weight_decay: Any) -> GradientTransformation:
        def corrected(t: Step, nu: Array) -> Array:
            return debias(nu, b2, t)

        def relative(t: Step, floor: Array, g: Array, nu: Array) -> Array:
            return g / jnp.sqrt(jnp.maximum(corrected(t, nu), floor))

        def floor_of(nu: Array) -> Array:
            return jnp.maximum(eps * eps, jnp.finfo(nu.dtype).tiny)  # above 0 if eps is 0

        def direction(t: Step, mu: Array, square: Array, p: Array) -> Array:
            mean = debias(mu, b1, t)
            return decayed(mean / root_plus(square, eps, mean), weight_decay, p)

        def rule(g: Array, s: Any, t: Step, p: Array) -> Any:
            mu, nu = ema(g, s.mu, b1), ema(abs_sq(g), s.nu, b2)
            excess = plain_rms(relative(t, floor_of(nu), g, nu))
            u = direction(t, mu, corrected(t, nu), p)
            return u / jnp.maximum(1, excess), {"mu": mu, "nu": nu}

        def plan(g: Array, s: Any, t: Step, p: Array) -> Any:
            """The root is computed for the mean, and again for the step, not stored."""
            mu, nu = ema(g, s.mu, b1), ema(abs_sq(g), s.nu, b2)
            excess = plain_rms(recompute(partial(relative, t, floor_of(nu)), g, nu, after=t))
            u = direction(t, mu, recompute(partial(corrected, t), nu, after=excess), p)
            return u * (1 / jnp.maximum(1, excess)), {"mu": mu, "nu": nu}

        return leafwise(ScaleByAdamState, slots, planned(rule, plan))

    return split_by_mask(mask, with_decay(weight_decay), with_decay(0.0))


@optimizer
def stable_adamw(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.99,
    eps: NonNegative = 1e-6,
    weight_decay: NonNegative = 1e-2,
    mask: Where | None = None,
    *,
    mu_dtype: DType | None = None,
    nu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""StableAdamW: AdamW that needs no gradient clipping.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
            \hat\mu_t = \frac{\mu_t}{1 - \beta_1^t}, \\
        \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \qquad
            \hat\nu_t = \frac{\nu_t}{1 - \beta_2^t}, \\
        r_t &= \sqrt{\mathrm{mean}\left(\frac{|g_t|^2}{\max(\hat\nu_t, \epsilon^2)}\right)}, \\
        \theta_t &= \theta_{t-1} - \frac{\eta}{\max(1, r_t)}
            \left(\frac{\hat\mu_t}{\sqrt{\hat\nu_t} + \epsilon} + \lambda\theta_{t-1}\right)

    The mean is over a leaf.

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: decay of the first moment; this and the rest as in :func:`scale_by_stable_adamw`.
        b2: decay of the second moment.
        eps: :math:`\epsilon \ge 0`, added to the root.
        weight_decay: :math:`\lambda \ge 0`; the decay shrinks together with the step.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        mu_dtype: the type of the first moment.
        nu_dtype: the type of the second moment.

    Source: M. Wortsman et al., Stable and Low-Precision Training for Large-Scale Vision-Language
    Models, 2023, arXiv:2304.13013, algorithm 2.

    >>> import gradtx
    >>> tx = stable_adamw(0.05)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return chain(
        scale_by_stable_adamw(
            b1, b2, eps, weight_decay, mask, mu_dtype=mu_dtype, nu_dtype=nu_dtype
        ),
        scale_by_learning_rate(learning_rate),
    )
