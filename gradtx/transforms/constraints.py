"""Constraints: updates that keep parameters in an allowed set."""

from typing import Any

import jax
import jax.numpy as jnp

from gradtx.composition.nearest import Nearest
from gradtx.core.pair import GradientTransformation, transformation
from gradtx.engine.lift import elementwise
from gradtx.leaves.paths import map_present
from gradtx.types import Array, EmptyState, Params


@transformation
def keep_params_nonnegative() -> GradientTransformation:
    r"""Shorten updates that would make a parameter negative: :math:`u = \max(u, -\theta)`.

    Put it last in a chain. A negative parameter moves to 0 or beyond. Updates in a shorter type
    than the parameter's, such as bfloat16, are rounded to it, and may lead below 0 by that much.
    For other sets see ``project``.

    Raises:
        ValueError: ``update`` is called without the parameters.

    >>> tx, p = keep_params_nonnegative(), jnp.array([1.0, 1.0])
    >>> tx.update(jnp.array([-3.0, 2.0]), tx.init(p), p)[0].tolist()
    [-1.0, 2.0]
    """

    def rule(g: Array, s: Any, t: Any, p: Array) -> Any:
        return jnp.where(p + g < 0, -p, g), {}

    def nearest(params: Params, rate: Any) -> Params:
        del rate
        return map_present(jax.nn.relu, params)

    return elementwise(EmptyState, None, rule).with_facets(Nearest(nearest, by_entry=True))
