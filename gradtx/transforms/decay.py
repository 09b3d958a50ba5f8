"""Weight decay."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import LearningRate, NonNegative
from gradtx.composition.chain import chain, identity
from gradtx.composition.masking import masked
from gradtx.core.expansion import Clock
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import elementwise
from gradtx.leaves.paths import Where
from gradtx.numerics import is_zero
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, Counter, EmptyState


class WeightDecaySchedule(NamedTuple):
    """count: i32[], steps taken."""

    count: Counter


def decayed(u: Array, weight_decay: Any, p: Array) -> Array:
    r""":math:`u + \lambda\theta`; `u` itself if :math:`\lambda` is the number 0.

    Even when multiplied by 0, the parameters would be read, once for each later slot.
    """
    return u if is_zero(weight_decay) else u + weight_decay * p


def _masked(tx: GradientTransformation, mask: Where | None) -> GradientTransformation:
    return tx if mask is None else masked(tx, mask)


@optimizer(update_size="proportional")
def add_decayed_weights(
    weight_decay: NonNegative = 0.0, mask: Where | None = None
) -> GradientTransformation:
    r"""Add decayed parameters to the updates: :math:`u = g + \lambda \theta`.

    Before the scaling by the learning rate this is decoupled weight decay; before the moments are
    taken it is L2 regularisation.

    Args:
        weight_decay: :math:`\lambda \ge 0`; a number, an array, or a schedule.
        mask: which leaves decay, as in :func:`masked`: path patterns, a predicate, a tree of
            booleans.

    State: none, or `WeightDecaySchedule` for a schedule; with a mask in a `MaskedState`.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: I. Loshchilov and F. Hutter, Decoupled Weight Decay Regularization, 2019,
    arXiv:1711.05101.

    >>> import jax.numpy as jnp
    >>> tx = add_decayed_weights(0.5)
    >>> tx.update(jnp.zeros(1), tx.init(jnp.ones(1)), jnp.ones(1))[0].tolist()
    [0.5]
    """
    return _masked(_add_decayed_weights(weight_decay), mask)


def descent(
    direction: GradientTransformation,
    learning_rate: LearningRate,
    weight_decay: NonNegative,
    mask: Where | None,
) -> GradientTransformation:
    r"""Along a direction, with decoupled decay: :math:`u = -\eta\,(d + \lambda\theta)`.

    What most optimizers are once their direction `d` is computed; the state is that of a chain of
    three links.
    """
    return chain(
        direction,
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )


@transformation
def _add_decayed_weights(weight_decay: NonNegative) -> GradientTransformation:
    def rule(g: Array, s: Any, t: Any, p: Array) -> Any:
        return decayed(g, weight_decay, p), {}

    return elementwise(EmptyState, None, rule).with_facets(Clock(WeightDecaySchedule))


@transformation
def _decayed_elsewhere(weight_decay: NonNegative) -> GradientTransformation:
    return identity().expansion.with_facets(Clock(WeightDecaySchedule))


def decayed_elsewhere(weight_decay: Any, mask: Where | None = None) -> GradientTransformation:
    """A stand-in for Optax's :func:`add_decayed_weights` in a chain where another link decays.

    Its state is the same, so that states can be converted.
    """
    return _masked(_decayed_elsewhere(weight_decay), mask)


@optimizer(update_size="proportional")
def add_cautious_decayed_weights(
    weight_decay: NonNegative = 0.0, mask: Where | None = None
) -> GradientTransformation:
    r"""Weight decay only of entries that the update moves towards zero anyway.

    .. math:: u_i = g_i + \lambda\, [g_i \theta_i \ge 0]\, \theta_i

    Put it where :func:`add_decayed_weights` goes, after what scales the gradient and before the
    learning rate. It does not move the stationary points of the loss.

    Args:
        weight_decay: :math:`\lambda \ge 0`; a number, an array, or a schedule.
        mask: which leaves decay, as in :func:`masked`.

    For complex numbers the real part of :math:`\bar g \theta` counts.

    State: none, or `WeightDecaySchedule` for a schedule; with a mask in a `MaskedState`.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: L. Chen et al., Cautious Weight Decay, 2025, arXiv:2510.12402, algorithm 1.

    >>> import jax.numpy as jnp
    >>> tx = add_cautious_decayed_weights(0.5)
    >>> p = jnp.array([1.0, 1.0])
    >>> tx.update(jnp.array([2.0, -2.0]), tx.init(p), p)[0].tolist()
    [2.5, -2.0]
    """
    return _masked(_cautiously_decayed(weight_decay), mask)


@transformation
def _cautiously_decayed(weight_decay: NonNegative) -> GradientTransformation:
    def rule(g: Array, s: Any, t: Any, p: Array) -> Any:
        towards = (jnp.conj(g) * p).real >= 0
        return g + jnp.where(towards, weight_decay, 0) * p, {}

    return elementwise(EmptyState, None, rule).with_facets(Clock(WeightDecaySchedule))
