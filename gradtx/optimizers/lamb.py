"""LAMB."""

from functools import partial
from typing import Any

from gradtx.checks import Decay, LearningRate, NonNegative
from gradtx.composition.chain import chain, identity
from gradtx.composition.masking import split_by_mask
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import leafwise
from gradtx.leaves.paths import Where
from gradtx.numerics import Step, abs_sq, debias, ema, moments, norm, root
from gradtx.numerics.compiler_hints import Recomputed, planned
from gradtx.optimizers.adam import ScaleByAdamState
from gradtx.transforms.decay import decayed, decayed_elsewhere
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.transforms.trust import at_ratio
from gradtx.types import Array


@transformation
def scale_by_lamb(
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-6,
    eps_root: NonNegative = 0.0,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
) -> GradientTransformation:
    r"""AdamW's direction, rescaled in each leaf to the norm of the parameter.

    .. math:: d = \frac{\hat\mu}{\sqrt{\hat\nu + \bar\epsilon} + \epsilon} + \lambda\theta, \qquad
        u = \frac{\lVert\theta\rVert}{\lVert d\rVert}\, d

    with the moments of :func:`scale_by_adam`. This is ``chain(scale_by_adam(...),
    add_decayed_weights(...), scale_by_trust_ratio())`` in one rule, which computes `d` twice rather
    than storing it.

    Args:
        b1: decay of the first moment, in :math:`[0, 1)`.
        b2: decay of the second moment, in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`, added to the root of the second moment.
        eps_root: :math:`\bar\epsilon \ge 0`, added under the root.
        weight_decay: :math:`\lambda \ge 0`.
        mask: which parameters decay, as in :func:`add_decayed_weights`.

    State: `ScaleByAdamState`.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: Y. You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 Minutes,
    2020, arXiv:1904.00962, algorithm 2.

    >>> import jax.numpy as jnp
    >>> tx = scale_by_lamb()
    >>> p = jnp.array([3.0, 4.0])
    >>> tx.update(jnp.array([1.0, 0.0]), tx.init(p), p)[0].round(4).tolist()
    [5.0, 0.0]
    """

    def with_decay(weight_decay: Any) -> GradientTransformation:
        def direction(t: Step, mu: Array, nu: Array, p: Array) -> Array:
            u = debias(mu, b1, t) / (root(debias(nu, b2, t) + eps_root) + eps)
            return decayed(u, weight_decay, p)

        def rule(g: Array, s: Any, t: Step, p: Array) -> Any:
            mu, nu = ema(g, s.mu, b1), ema(abs_sq(g), s.nu, b2)
            d = direction(t, mu, nu, p)
            return at_ratio(d, norm(p), norm(d)), {"mu": mu, "nu": nu}

        def plan(g: Array, s: Any, t: Step, p: Array) -> Any:
            """The direction is computed for its norm, and again for the step, not stored."""
            mu, nu = ema(g, s.mu, b1), ema(abs_sq(g), s.nu, b2)
            d = Recomputed(partial(direction, t), mu, nu, p)
            size = norm(p)
            length = norm(d(after=t), again=(partial(direction, t), (mu, nu, p)), costly=True)
            return at_ratio(d(after=length.value), size, length), {"mu": mu, "nu": nu}

        return leafwise(ScaleByAdamState, moments, planned(rule, plan))

    return split_by_mask(mask, with_decay(weight_decay), with_decay(0.0))


@optimizer
def lamb(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-6,
    eps_root: NonNegative = 0.0,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
) -> GradientTransformation:
    r"""LAMB: AdamW with each leaf's step scaled to the norm of its parameter.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
            \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \\
        d_t &= \frac{\mu_t / (1 - \beta_1^t)}
            {\sqrt{\nu_t / (1 - \beta_2^t) + \bar\epsilon} + \epsilon} + \lambda\theta_{t-1}, \\
        \theta_t &= \theta_{t-1} - \eta
            \frac{\lVert\theta_{t-1}\rVert}{\lVert d_t\rVert}\, d_t

    The norms are those of a leaf; the ratio is 1 where one of them is 0.

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: decay of the first moment, in :math:`[0, 1)`.
        b2: decay of the second moment, in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`, added to the root of the second moment.
        eps_root: :math:`\bar\epsilon \ge 0`, added under the root.
        weight_decay: :math:`\lambda \ge 0`.
        mask: which parameters decay, as in :func:`add_decayed_weights`.

    State: Adam's. The norm takes two passes over a leaf, and no array of its size is stored in
    between.

    Source: Y. You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 Minutes,
    2020, arXiv:1904.00962, algorithm 2 (with the identity for :math:`\phi`).

    >>> import gradtx, jax.numpy as jnp
    >>> tx = lamb(0.01)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 3) ** 2), jnp.ones(2), tx, max_steps=300)
    >>> bool(jnp.allclose(result.params, 3, atol=1e-1))
    True
    """
    # The same links as in Optax, so that a run with its states can continue here.
    return chain(
        scale_by_lamb(b1, b2, eps, eps_root, weight_decay, mask),
        decayed_elsewhere(weight_decay, mask),
        identity(),
        scale_by_learning_rate(learning_rate),
    )
