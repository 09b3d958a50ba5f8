"""Weight decay."""

from typing import Any, NamedTuple

from gradtx.checks import NonNegative
from gradtx.engine import elementwise
from gradtx.masking import restrict
from gradtx.pair import GradientTransformation, transformation
from gradtx.paths import Where
from gradtx.types import Array, Counter, EmptyState


class WeightDecaySchedule(NamedTuple):
    """count: i32[], steps taken."""

    count: Counter


@transformation(scheduled_state=WeightDecaySchedule)
def add_decayed_weights(
    weight_decay: NonNegative = 0.0, mask: Where | None = None
) -> GradientTransformation:
    r"""Add decayed parameters to the updates: :math:`u = g + \lambda \theta`.

    Before the scaling by the learning rate this is decoupled weight decay; before the moments are
    taken it is L2 regularisation.

    Args:
        weight_decay: :math:`\lambda \ge 0`; a number, an array, or a schedule.
        mask: which leaves decay, as in :func:`masked`: patterns, a predicate, a tree of booleans.

    State: none, or `WeightDecaySchedule` for a schedule.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: I. Loshchilov and F. Hutter, Decoupled Weight Decay Regularization, 2019,
    arXiv:1711.05101.

    >>> import jax.numpy as jnp
    >>> tx = add_decayed_weights(0.5)
    >>> tx.update(jnp.zeros(1), tx.init(jnp.ones(1)), jnp.ones(1))[0].tolist()
    [0.5]
    """

    def rule(g: Array, s: Any, t: Any, p: Array) -> Any:
        return g + weight_decay * p, {}

    return restrict(elementwise(EmptyState, None, rule), mask)
