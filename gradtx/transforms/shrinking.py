"""Shrinkage: the proximal step of L1 and L2 penalties, after any update."""

from typing import Any

from gradtx.checks import NonNegative
from gradtx.composition.nearest import Penalty
from gradtx.core.pair import GradientTransformation, transformation
from gradtx.engine.lift import elementwise
from gradtx.numerics import shrink
from gradtx.types import Array, EmptyState


@transformation
def shrink_params(l1: NonNegative = 0.0, l2: NonNegative = 0.0) -> GradientTransformation:
    r"""Shrink the updated parameters towards zero: the proximal step of L1 and L2 penalties.

    .. math:: \theta \leftarrow \frac{x}{|x|} \frac{\max(|x| - \tau_1, 0)}{1 + \tau_2},
        \qquad x = \theta + u

    Args:
        l1: :math:`\tau_1 \ge 0`, learning rate included; entries below it become exactly 0.
        l2: :math:`\tau_2 \ge 0`, learning rate included.

    Put it after the optimizer: ``chain(adam(lr), shrink_params(lr * strength))``. Under a schedule
    of the learning rate use :func:`multiply_schedules`. Updates in a shorter type than the
    parameter's, such as bfloat16, are rounded to it, so that entries may stay a little off 0.

    State: none.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: J. Duchi and Y. Singer, Efficient Online and Batch Learning Using Forward Backward
    Splitting, 2009, JMLR 10, section 5.

    >>> import jax.numpy as jnp
    >>> tx, p = shrink_params(l1=1.0), jnp.array([3.0, 0.5])
    >>> tx.update(jnp.zeros(2), tx.init(p), p)[0].tolist()
    [-1.0, -0.5]
    """

    def rule(g: Array, s: Any, t: Any, p: Array) -> Any:
        return shrink(p + g, l1, l2) - p, {}

    return elementwise(EmptyState, None, rule).with_facets(Penalty({"l1": l1, "l2": l2}))
