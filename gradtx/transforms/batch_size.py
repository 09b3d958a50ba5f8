"""The learning rate that follows the size of a batch."""

from typing import Any

import jax.numpy as jnp

from gradtx.checks import NonNegative, Positive
from gradtx.composition.without_state import without_state
from gradtx.core.pair import GradientTransformation, transformation
from gradtx.numerics import widen
from gradtx.transforms.scaling import scale
from gradtx.types import EmptyState, Params, Updates


@transformation(update_size="proportional")
def scale_by_batch_size(size: Positive, power: NonNegative = 0.5) -> GradientTransformation:
    r"""Multiply the updates by a power of the batch size: :math:`u = (w / b)^p\, g`.

    After an optimizer, for batches whose size changes: inside :func:`accumulate`, whose windows
    may grow, `w` is the sum of a window's weights.

    Args:
        size: `b`, the size for which the learning rate was chosen, in the unit of the weights.
        power: `p`; 1/2 for optimizers whose steps have one size whatever the gradient's is, such as
            Adam; 1 for SGD. Both hold for batches that are smaller than the noise scale.

    ``update`` takes an extra argument ``weight``, `w`; without it the updates pass unchanged.

    Source: S. Malladi et al., On the SDEs and Scaling Rules for Adaptive Gradient Algorithms, 2022,
    arXiv:2205.10287 (1/2); P. Goyal et al., Accurate, Large Minibatch SGD, 2017, arXiv:1706.02677
    (1).

    >>> tx = scale_by_batch_size(16)
    >>> tx.update(jnp.ones(1), tx.init(jnp.zeros(1)), weight=64)[0].tolist()
    [2.0]
    """

    def scaled(
        updates: Updates, params: Params | None, *, weight: Any = None, **extra_args: Any
    ) -> Updates:
        del params, extra_args
        if weight is None:
            return updates
        factor = (widen(1.0 * jnp.asarray(weight)) / size) ** power
        return scale(factor).update(updates, EmptyState())[0]

    return without_state(scaled)
