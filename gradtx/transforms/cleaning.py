"""Cleaning gradients: NaNs and means."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.engine.lift import leafwise
from gradtx.numerics import any_nan
from gradtx.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    transformation,
)
from gradtx.paths import is_leaf
from gradtx.rows import Rows
from gradtx.tree import map_updates
from gradtx.types import Array, EmptyState, Params, Slots, State, Updates


class ZeroNansState(NamedTuple):
    """found_nan: bool[] for each leaf, whether the last gradient had a NaN there."""

    found_nan: Slots


@transformation
def zero_nans() -> GradientTransformation:
    """Replace NaNs by zeros, and remember in which leaves they were.

    State: `ZeroNansState`.

    >>> tx = zero_nans()
    >>> updates, state = tx.update(jnp.array([jnp.nan, 1.0]), tx.init(jnp.zeros(2)))
    >>> updates.tolist(), bool(state.found_nan)
    ([0.0, 1.0], True)
    """

    def init(params: Params) -> State:
        return ZeroNansState(map_updates(lambda p: jnp.zeros([], bool), params))

    def found(g: Any) -> Any:
        return None if g is None else any_nan(g.values if isinstance(g, Rows) else g)

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        found_nan = jax.tree.map(found, updates, is_leaf=is_leaf)
        return (
            map_updates(lambda g: jnp.where(jnp.isnan(g), jnp.zeros_like(g), g), updates),
            ZeroNansState(found_nan),
        )

    return GradientTransformationExtraArgs(init, update)


@transformation
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

    return leafwise(EmptyState, None, rule)
