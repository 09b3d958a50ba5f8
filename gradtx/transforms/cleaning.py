"""Cleaning gradients: NaNs and means."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.composition.nearest import EndsElsewhere
from gradtx.core.pair import (
    GradientTransformation,
    transformation,
)
from gradtx.engine.lift import leafwise, rowwise
from gradtx.numerics import any_nan
from gradtx.types import Array, EmptyState, Slots


class ZeroNansState(NamedTuple):
    """found_nan: bool[] for each leaf, whether the last gradient had a NaN there."""

    found_nan: Slots


@transformation(update_size="proportional")
def zero_nans() -> GradientTransformation:
    """Replace NaNs by zeros, and remember in which leaves they were.

    State: `ZeroNansState`.

    >>> tx = zero_nans()
    >>> updates, state = tx.update(jnp.array([jnp.nan, 1.0]), tx.init(jnp.zeros(2)))
    >>> updates.tolist(), bool(state.found_nan)
    ([0.0, 1.0], True)
    """

    def slots(p: Array) -> dict[str, Array]:
        return {"found_nan": jnp.zeros([], bool)}

    def rule(g: Array, s: Any, t: Any) -> Any:
        return jnp.where(jnp.isnan(g), 0, g), {"found_nan": any_nan(g)}

    return leafwise(ZeroNansState, slots, rule, rows=True)


@transformation(update_size="proportional")
def centralize() -> GradientTransformation:
    r"""Subtract its mean from the gradient of each output: :math:`u_i = g_i - \mathrm{mean}(g_i)`.

    The mean is taken over all dimensions but the first; gradients of fewer than two dimensions stay
    as they are.

    Source: H. Yong, J. Huang, X. Hua and L. Zhang, Gradient Centralization: A New Optimization
    Technique for Deep Neural Networks, 2020, arXiv:2004.01461, equation 1.

    >>> tx = centralize()
    >>> tx.update(jnp.array([[1.0, 3.0]]), tx.init(jnp.zeros((1, 2))))[0].tolist()
    [[-1.0, 1.0]]
    """

    def rule(g: Array, s: Any, t: Any) -> Any:
        if g.ndim < 2:
            return g, {}
        return g - jnp.mean(g, axis=tuple(range(1, g.ndim)), keepdims=True), {}

    ends = EndsElsewhere("moves no mean: write the loss as a function of what moves")
    return rowwise(EmptyState, None, rule).with_facets(ends)
