"""Label smoothing."""

from typing import Any

import jax.numpy as jnp

from gradtx.losses.arguments import floating
from gradtx.losses.probabilities import Axis
from gradtx.types import Array


def smooth_labels(labels: Any, alpha: Any, *, axis: Axis = -1, where: Any | None = None) -> Array:
    r"""Mix one-hot labels with the uniform distribution: :math:`(1 - \alpha) y + \alpha / n`.

    Args:
        labels: :math:`y`, floating-point.
        alpha: :math:`\alpha` between 0 and 1.
        axis: the axis or axes of the :math:`n` classes.
        where: which classes `n` counts, broadcast to the shape of the labels. The others get the
            same share, as in Optax, and are to be left out of the loss.

    Returns:
        The smoothed labels, of the same type.

    Source: C. Szegedy et al., Rethinking the Inception Architecture, 2015, arXiv:1512.00567.

    >>> smooth_labels(jnp.array([1.0, 0.0]), 0.5).tolist()
    [0.75, 0.25]
    """
    (y,) = floating("smooth_labels", labels=labels)
    n: Any = jnp.size(y, axis)
    if where is not None:
        n = jnp.sum(jnp.broadcast_to(jnp.asarray(where, bool), y.shape), axis, keepdims=True)
    return ((1 - alpha) * y + alpha / jnp.maximum(n, 1)).astype(jnp.asarray(labels).dtype)
