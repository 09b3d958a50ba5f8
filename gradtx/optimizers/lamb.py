"""LAMB."""

from typing import Any

import jax.numpy as jnp

from gradtx.checks import Decay, NonNegative
from gradtx.composition.chain import chain, identity
from gradtx.composition.masking import split_by_mask
from gradtx.engine.lift import leafwise
from gradtx.numerics import Step, abs_sq, accumulator_dtype, debias, ema, zeros_like
from gradtx.numerics.steering import recompute
from gradtx.optimizers.adam import ScaleByAdamState
from gradtx.pair import GradientTransformation, optimizer, transformation
from gradtx.paths import Where
from gradtx.transforms.decay import decayed, decayed_elsewhere
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.transforms.trust import norm, trust_ratio
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
    r"""AdamW's direction with, in each leaf, the norm of the parameter.

    .. math:: d = \frac{\hat\mu}{\sqrt{\hat\nu + \bar\epsilon} + \epsilon} + \lambda\theta, \qquad
        u = \frac{\lVert\theta\rVert}{\lVert d\rVert}\, d

    It is ``chain(scale_by_adam(...), add_decayed_weights(...), scale_by_trust_ratio())`` in one
    rule, which computes `d` twice and stores it never.

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

    >>> tx = scale_by_lamb()
    >>> p = jnp.array([3.0, 4.0])
    >>> tx.update(jnp.array([1.0, 0.0]), tx.init(p), p)[0].round(4).tolist()
    [5.0, 0.0]
    """

    def slots(p: Array) -> dict[str, Array]:
        return {"mu": zeros_like(p), "nu": zeros_like(p, accumulator_dtype(p))}

    def with_decay(weight_decay: Any) -> GradientTransformation:
        def rule(g: Array, s: Any, t: Step, p: Array) -> Any:
            mu, nu = ema(g, s.mu, b1), ema(abs_sq(g), s.nu, b2)

            def direction(mu: Array, nu: Array, p: Array) -> Array:
                u = debias(mu, b1, t) / (jnp.sqrt(debias(nu, b2, t) + eps_root) + eps)
                return decayed(u, weight_decay, p)

            size, length = norm(p), norm(recompute(direction, mu, nu, p, after=t))
            again = recompute(direction, mu, nu, p, after=length)
            return again * trust_ratio(size, length), {"mu": mu, "nu": nu}

        return leafwise(ScaleByAdamState, slots, rule)

    return split_by_mask(mask, with_decay(weight_decay), with_decay(0.0))


@optimizer
def lamb(
    learning_rate: NonNegative,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-6,
    eps_root: NonNegative = 0.0,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
) -> GradientTransformation:
    r"""LAMB: AdamW whose step, in each leaf, is as long as the learning rate times the parameter.

    .. math:: d = u + \lambda\theta, \qquad
        \theta \leftarrow \theta - \eta \frac{\lVert\theta\rVert}{\lVert d\rVert}\, d

    with `u` of :func:`scale_by_adam`; the ratio is 1 where one of the norms is 0.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        b1: decay of the first moment, in :math:`[0, 1)`.
        b2: decay of the second moment, in :math:`[0, 1)`.
        eps: added to the root of the second moment.
        eps_root: added under the root.
        weight_decay: :math:`\lambda \ge 0`.
        mask: which parameters decay, as in :func:`add_decayed_weights`.

    State: that of Adam. The norm of a leaf takes two passes; nothing of its size is stored between.

    Source: Y. You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 Minutes,
    2020, arXiv:1904.00962, algorithm 2 (with the identity for :math:`\phi`).

    >>> lamb(1e-3)
    lamb(learning_rate=0.001, b1=0.9, b2=0.999, eps=1e-06, eps_root=0.0, weight_decay=0.0)
    """
    # As many links as in Optax, whose states go on here.
    return chain(
        scale_by_lamb(b1, b2, eps, eps_root, weight_decay, mask),
        decayed_elsewhere(weight_decay, mask),
        identity(),
        scale_by_learning_rate(learning_rate),
    )
