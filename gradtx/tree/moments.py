"""Moving averages of trees, for transformations that are written for whole trees."""

from typing import Any

import jax.numpy as jnp

from gradtx.numerics import Step, abs_sq, debias, real_dtype, widen
from gradtx.tree.leaves import each
from gradtx.types import Array, PyTree, TreeT


def update_moment(updates: PyTree, moments: TreeT, decay: Any, order: int) -> TreeT:
    r"""The moving average of powers: :math:`\beta m + (1 - \beta) g^k`.

    Args:
        updates: the gradients.
        moments: the averages so far, in a tree like that of the updates.
        decay: :math:`\beta`.
        order: :math:`k`.

    >>> float(update_moment(jnp.float32(3.0), jnp.float32(1.0), 0.5, 2))
    5.0
    """
    return each(lambda g, m: (1 - decay) * g**order + decay * m, updates, moments)


def update_infinity_moment(updates: PyTree, moments: TreeT, decay: Any, eps: Any) -> TreeT:
    r"""The decaying maximum of Adamax: :math:`\max(|g| + \epsilon, \beta m)`.

    Args:
        updates: the gradients.
        moments: the averages so far, in a tree like that of the updates.
        decay: :math:`\beta`.
        eps: :math:`\epsilon`.

    >>> float(update_infinity_moment(jnp.float32(-3.0), jnp.float32(4.0), 0.5, 0.0))
    3.0
    """
    return each(lambda g, m: jnp.maximum(jnp.abs(g) + eps, decay * m), updates, moments)


def update_moment_per_elem_norm(updates: PyTree, moments: TreeT, decay: Any, order: int) -> TreeT:
    r"""The moving average of powers of the absolute value, which is real for complex updates too.

    Args:
        updates: the gradients.
        moments: the averages so far, in a tree like that of the updates.
        decay: :math:`\beta`.
        order: the power. In Optax an odd power of a real number keeps its sign.

    >>> float(update_moment_per_elem_norm(jnp.complex64(3 + 4j), jnp.float32(1.0), 0.5, 2))
    13.0
    """

    def power(g: Any) -> Any:
        if jnp.isrealobj(g):
            return jnp.abs(g) ** order
        return abs_sq(g) ** (order // 2 if order % 2 == 0 else order / 2)

    return each(lambda g, m: (1 - decay) * power(g) + decay * m, updates, moments)


def bias_correction(moment: TreeT, decay: Any, count: Any) -> TreeT:
    r"""Adam's bias correction :math:`m / (1 - \beta^t)`, in the types of the moments.

    Args:
        moment: the moving averages.
        decay: :math:`\beta`.
        count: :math:`t`, the steps taken, from 1.

    >>> round(float(bias_correction(jnp.float32(0.1), 0.9, 1)), 6)
    1.0
    """

    def correct(m: Any) -> Array:
        wide = widen(jnp.asarray(m))
        t = Step(jnp.asarray(count), real_dtype(wide.dtype))
        return debias(wide, decay, t).astype(jnp.asarray(m).dtype)

    return each(correct, moment)
