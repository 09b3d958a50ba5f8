"""Scaling of each leaf by the size of its parameter: layer-wise adaptation."""

from typing import Any

import jax.numpy as jnp

from gradtx.checks import NonNegative
from gradtx.core.pair import GradientTransformation, transformation
from gradtx.engine.lift import leafwise
from gradtx.numerics import Norm, norm as norm_of_leaf, ratio_factors, rms
from gradtx.programs.tracing import as_call
from gradtx.types import Array, EmptyState


def norm(x: Array) -> Array:
    """The Euclidean norm of a leaf, summed in at least float32."""
    return norm_of_leaf(x).number


def at_ratio(u: Array, size: Norm, length: Norm, coefficient: Any = 1.0, eps: Any = 0.0) -> Array:
    """An update of norm `length`, scaled by its ratio to a parameter of norm `size`.

    It stays as it is where one of the two is 0.
    """
    power, ratio = _factors(size, length, coefficient, eps)
    return u * power * ratio


@as_call
def _factors(size: Norm, length: Norm, coefficient: Any, eps: Any) -> tuple[Array, Array]:
    power, ratio = ratio_factors(size, length, coefficient, eps)
    still = (size.value == 0) | (length.value == 0)
    return jnp.where(still, 1, power), jnp.where(still, 1, ratio)


@transformation
def scale_by_trust_ratio(
    min_norm: NonNegative = 0.0, trust_coefficient: NonNegative = 1.0, eps: NonNegative = 0.0
) -> GradientTransformation:
    r"""Give the update of each leaf a norm proportional to its parameter's.

    .. math:: u = g\, \frac{c \max(\lVert\theta\rVert, m)}{\max(\lVert g\rVert, m) + \epsilon},
        \qquad u = g \text{ where one of the two norms is } 0

    Args:
        min_norm: :math:`m \ge 0`, a lower bound of both norms.
        trust_coefficient: :math:`c \ge 0`.
        eps: :math:`\epsilon \ge 0`, added to the norm of the update.

    Norms are of whole leaves and summed in at least float32, where Optax sums in the leaf's type.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: Y. You, I. Gitman and B. Ginsburg, Large Batch Training of Convolutional Networks, 2017,
    arXiv:1708.03888.

    >>> tx = scale_by_trust_ratio()
    >>> tx.update(jnp.array([0.0, 4.0]), tx.init(jnp.zeros(2)), jnp.array([2.0, 0.0]))[0].tolist()
    [0.0, 2.0]
    """

    def rule(g: Array, s: Any, t: Any, p: Array) -> Any:
        size, length = norm_of_leaf(p).at_least(min_norm), norm_of_leaf(g).at_least(min_norm)
        return at_ratio(g, size, length, trust_coefficient, eps), {}

    return leafwise(EmptyState, None, rule)


@transformation
def scale_by_param_block_norm(min_scale: NonNegative = 1e-3) -> GradientTransformation:
    r"""Multiply each leaf by the norm of its parameter: :math:`u = g \max(\lVert\theta\rVert, m)`.

    Args:
        min_scale: :math:`m \ge 0`, the least factor.

    Raises:
        ValueError: ``update`` is called without parameters.

    >>> tx = scale_by_param_block_norm()
    >>> tx.update(jnp.ones(2), tx.init(jnp.zeros(2)), jnp.array([3.0, 4.0]))[0].tolist()
    [5.0, 5.0]
    """

    def rule(g: Array, s: Any, t: Any, p: Array) -> Any:
        return g * norm_of_leaf(p).at_least(min_scale).number, {}

    return leafwise(EmptyState, None, rule)


@transformation
def scale_by_param_block_rms(min_scale: NonNegative = 1e-3) -> GradientTransformation:
    r"""Multiply each leaf by its parameter's size: :math:`u = g \max(\mathrm{rms}(\theta), m)`.

    Args:
        min_scale: :math:`m \ge 0`, the least factor.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: N. Shazeer and M. Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost,
    2018, arXiv:1804.04235, section 8 (relative step size).

    >>> tx = scale_by_param_block_rms()
    >>> tx.update(jnp.ones(2), tx.init(jnp.zeros(2)), jnp.array([2.0, -2.0]))[0].tolist()
    [2.0, 2.0]
    """

    def rule(g: Array, s: Any, t: Any, p: Array) -> Any:
        return g * jnp.maximum(rms(p), min_scale), {}

    return leafwise(EmptyState, None, rule)
