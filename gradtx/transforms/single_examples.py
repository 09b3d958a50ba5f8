"""Combining per-example gradients into one."""

from typing import Any

import jax
import jax.numpy as jnp

from gradtx.checks import NonNegative
from gradtx.composition.without_state import without_state
from gradtx.core.pair import (
    GradientTransformation,
    transformation,
)
from gradtx.numerics import cast, widen
from gradtx.transforms.per_example import clipped_mean, examples
from gradtx.types import Params, Updates


@transformation
def per_example(max_norm: NonNegative | None = None) -> GradientTransformation:
    r"""The mean of per-example gradients, each clipped if a norm is given; put it first in a chain.

    .. math:: u = \frac{1}{B} \sum_{i=1}^{B} g_i
        \min\left(1, \frac{C}{\lVert g_i \rVert}\right)

    Args:
        max_norm: :math:`C \ge 0`, the norm of all leaves of an example together; None to clip
            nothing.

    ``update`` takes gradients with the examples in the first dimension, as from ``jax.vmap`` of a
    gradient, and returns updates in the shapes of the parameters. For a version with noise see
    :func:`differentially_private_aggregate`; on several devices put :func:`aggregate` after it.

    Raises:
        ValueError: the leaves have no common first dimension.
        TypeError: a gradient is `Rows`.

    >>> tx = per_example(max_norm=1.0)
    >>> tx.update(jnp.array([[3.0, 4.0], [0.0, 0.0]]), tx.init(jnp.zeros(2)))[0].round(6).tolist()
    [0.30000001192092896, 0.4000000059604645]
    """

    def mean(updates: Updates, params: Params | None, **extra_args: Any) -> Updates:
        del params, extra_args
        if max_norm is not None:
            return clipped_mean(updates, max_norm)[0]
        leaves = examples(updates)
        count = max(jnp.shape(leaves[0])[0], 1) if leaves else 1  # no example at all has the mean 0
        return jax.tree.map(lambda x: cast(jnp.sum(widen(x), axis=0) / count, x.dtype), updates)

    return without_state(mean)
