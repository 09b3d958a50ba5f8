"""Norms of updates: scaling by the norm of all leaves, clipping by the norm of each unit."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from gradtx.checks import NonNegative, Number, Positive
from gradtx.composition.scalings import Scaling
from gradtx.core.pair import (
    GradientTransformation,
    transformation,
)
from gradtx.engine.lift import elementwise, leafwise
from gradtx.engine.tree import treewise
from gradtx.numerics import Norm, divide, norm, shrunk
from gradtx.tree import map_updates
from gradtx.tree.sums import norm_of_all
from gradtx.types import Array, EmptyState


@transformation
def normalize_by_update_norm(
    scale_factor: Number = 1.0, eps: Positive = 1e-6
) -> GradientTransformation:
    r"""Divide by the norm of all leaves together: :math:`u = s\, g / (\lVert g\rVert + \epsilon)`.

    Args:
        scale_factor: :math:`s`, the norm of the result.
        eps: :math:`\epsilon > 0`.

    The norm is summed in at least float32, and a factor of 0 gives zeros.

    >>> tx = normalize_by_update_norm()
    >>> [round(float(u), 4) for u in tx.update(jnp.array([3.0, 4.0]), tx.init(jnp.zeros(2)))[0]]
    [0.6, 0.8]
    """

    def of_tree(g: list[Any]) -> dict[str, Array]:
        length = norm_of_all(g)
        return {
            "power": 1 / length.unit,
            "factor": scale_factor / (length.value + eps / length.unit),
        }

    def rule(g: Array, s: Any, t: Any) -> Any:
        return s.factor * (s.power * g), {}

    return elementwise(EmptyState, None, rule, of_tree=of_tree).with_facets(Scaling("norm"))


def _unit_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions that one output unit sums over, guessed from the rank."""
    rank = len(shape)
    if sum(n != 1 for n in shape) <= 1:
        return tuple(range(rank))
    if rank > 5:
        raise ValueError(f"a unit of an array of shape {shape} is not known: give the axis")
    return (0,) if rank <= 3 else tuple(range(rank - 1))


def _unit_norms(x: Array, axis: int | Sequence[int] | None) -> Norm:
    if isinstance(axis, int | np.integer):
        axis = (axis,)
    axes = tuple(_unit_axes(x.shape) if axis is None else axis)
    return norm(x, axes, costly=True, looped=True)


def unitwise_norm(x: Array, axis: int | Sequence[int] | None = None) -> Array:
    """The norm of each output unit, in the shape of `x`.

    Args:
        x: the array, a parameter or its gradient.
        axis: the dimensions to sum over; None for all of a vector, the first of a matrix or of a
            three-dimensional array, all but the last of a convolution (rank 4 or 5).

    Returns:
        The norms, in at least float32, repeated over the dimensions they were summed over.

    Raises:
        ValueError: the rank is above 5 and there is no `axis`.

    >>> unitwise_norm(jnp.array([[3.0, 0.0], [4.0, 1.0]])).tolist()
    [[5.0, 1.0], [5.0, 1.0]]
    """
    return jnp.broadcast_to(_unit_norms(x, axis).number, x.shape)


def unitwise_clip(g_norm: Array, max_norm: Array, grad: Array, div_eps: Any = 1e-6) -> Array:
    r"""The gradient, shortened where its norm reaches the limit: :math:`g\, c / \max(n, d)`.

    Args:
        g_norm: :math:`n`, the norms.
        max_norm: :math:`c`, the limits.
        grad: the gradient; the other two have its shape or broadcast to it.
        div_eps: :math:`d > 0`.

    >>> unitwise_clip(jnp.array([2.0, 2.0]), jnp.array([1.0, 3.0]), jnp.array([2.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    factor = jnp.where(g_norm < max_norm, 1, max_norm / jnp.maximum(g_norm, div_eps))
    return (grad * factor).astype(grad.dtype)


@transformation
def adaptive_grad_clip(
    clipping: NonNegative, eps: NonNegative = 1e-3, axis: int | tuple[int, ...] | None = None
) -> GradientTransformation:
    r"""Clip the gradient of each output unit by the norm of its weights.

    .. math:: u_i = g_i \min\left(1, \frac{\lambda \max(\lVert\theta_i\rVert, \epsilon)}
        {\lVert g_i\rVert}\right)

    Args:
        clipping: :math:`\lambda \ge 0`, the largest ratio of gradient to weights.
        eps: :math:`\epsilon \ge 0`, so that weights that are zero can learn.
        axis: the dimensions of a unit, as in :func:`unitwise_norm`.

    Raises:
        ValueError: ``update`` is called without parameters, or on a leaf of more than 5 dimensions
            without `axis`.

    Source: A. Brock et al., High-Performance Large-Scale Image Recognition Without Normalization,
    2021, arXiv:2102.06171, equation 3.

    >>> tx = adaptive_grad_clip(0.5)
    >>> tx.update(jnp.array([0.0, 4.0]), tx.init(jnp.zeros(2)), jnp.array([2.0, 0.0]))[0].tolist()
    [0.0, 1.0]
    """

    def rule(g: Array, s: Any, t: Any, p: Array) -> Any:
        limit = clipping * _unit_norms(p, axis).at_least(eps).number
        return shrunk(g, _unit_norms(g, axis), limit), {}

    return leafwise(EmptyState, None, rule)


@transformation
def normalize() -> GradientTransformation:
    r"""Divide the updates by their global norm: :math:`u = g / \lVert g \rVert`; 0 for a norm of 0.

    The norm is summed in at least float32. A zero gradient stays zero; in Optax it becomes NaN.

    >>> tx = normalize()
    >>> tx.update(jnp.array([3.0, 4.0]), tx.init(jnp.zeros(2)))[0].round(6).tolist()
    [0.6000000238418579, 0.800000011920929]
    """

    def of_tree(g: list[Any]) -> dict[str, Array]:
        length = norm_of_all(g)
        return {"power": 1 / length.unit, "factor": divide(jnp.ones([]), length.value)}

    def rule(g: Array, s: Any, t: Any) -> Any:
        return s.factor * (s.power * g), {}

    return elementwise(EmptyState, None, rule, of_tree=of_tree)


@transformation
def adaptive_normalize(eta: NonNegative = 0.01) -> GradientTransformation:
    r"""Divide by the global norm in the geometry of the parameters' sizes.

    .. math:: u = \frac{T^2 g}{\lVert T g \rVert}, \qquad T = |\theta| + \eta

    Args:
        eta: :math:`\eta \ge 0`. Without it a parameter that is zero stays zero.

    The step of ASAM, see :func:`asam`. A zero gradient stays zero.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: J. Kwon et al., ASAM: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning
    of Deep Neural Networks, 2021, arXiv:2102.11600, equation 10.

    >>> tx, p = adaptive_normalize(eta=0.0), jnp.array([3.0, -4.0])
    >>> tx.update(jnp.ones(2), tx.init(p), p)[0].round(6).tolist()
    [1.7999999523162842, 3.200000047683716]
    """

    def rule(g: Any, s: Any, t: Any, p: Any) -> Any:
        def size(p: Array) -> Array:
            return jnp.abs(p) + eta

        def scaled(g: Any, p: Any) -> Any:
            return map_updates(lambda g, p: g * size(p), g, p)

        length = norm_of_all(scaled(g, p), again=(scaled, (g, p)), costly=True)
        power, factor = 1 / length.unit, divide(jnp.ones([]), length.value)
        return map_updates(lambda g, p: g * size(p) * power * factor * size(p), g, p), {}

    return treewise(EmptyState, None, rule, rows=True)
