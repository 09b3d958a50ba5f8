"""SM3."""

from functools import reduce
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import Decay, Fraction, LearningRate, NonNegative
from gradtx.composition.chain import chain
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import leafwise
from gradtx.numerics import abs_sq, accumulator_dtype, ema, zeros_like
from gradtx.numerics.compiler_hints import planned, recompute
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, Slots


class ScaleBySM3State(NamedTuple):
    """mu: for each leaf, one vector per dimension, in float32 or wider; nu: like the leaf.

    The names are Optax's: `mu` holds the accumulators and `nu` the momentum.
    """

    mu: Slots
    nu: Slots


@transformation
def scale_by_sm3(
    b1: Decay = 0.9, b2: Fraction = 1.0, eps: NonNegative = 1e-8
) -> GradientTransformation:
    r"""Adagrad whose accumulator is bounded by one vector for each dimension.

    .. math::
        \nu_{ij} &= \beta_2 \min(r_i, c_j) + (1 - \beta_2)\, |g_{ij}|^2
            \quad (\text{without the factors for } \beta_2 = 1), \\
        r_i &= \max_j \nu_{ij}, \qquad c_j = \max_i \nu_{ij}, \qquad
        u = m \leftarrow \beta_1 m + (1 - \beta_1) \frac{g}{\sqrt{\nu + \epsilon}}

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`, of the momentum.
        b2: :math:`\beta_2` in :math:`[0, 1]`; 1 sums the squares, as in the paper.
        eps: :math:`\epsilon \ge 0`; where :math:`\nu = 0` the entry is 0.

    State: `ScaleBySM3State`. Complex leaves and scalars, which Optax refuses, are trained too.

    Source: R. Anil et al., Memory-Efficient Adaptive Optimization, 2019, arXiv:1901.11150,
    algorithm SM3-II.

    >>> tx = scale_by_sm3(b1=0.0, eps=0.0)
    >>> state = tx.init(jnp.zeros((2, 3)))
    >>> [v.shape for v in state.mu]
    [(2,), (3,)]
    >>> tx.update(jnp.full((2, 3), 4.0), state)[0].tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    fresh = 1.0 if isinstance(b2, float | int) and b2 == 1 else jnp.where(b2 == 1, 1.0, 1.0 - b2)

    def slots(p: Array) -> dict[str, Any]:
        dtype = accumulator_dtype(p)
        return {"mu": [jnp.zeros(n, dtype) for n in p.shape or ((),)], "nu": zeros_like(p)}

    def bounds(rank: int, mu: list[Array]) -> list[Array]:
        return [v.reshape([-1 if i == a else 1 for a in range(rank)]) for i, v in enumerate(mu)]

    def total(g: Array, *bounds: Array) -> Array:
        return b2 * reduce(jnp.minimum, bounds) + fresh * abs_sq(g)

    def largest(square: Array, i: int) -> Array:
        return jnp.max(square, axis=[a for a in range(square.ndim) if a != i])

    def momentum(g: Array, s: Any, square: Array) -> Array:
        inside = square + eps
        return ema(g / jnp.sqrt(jnp.where(inside > 0, inside, jnp.inf)), s.nu, b1)

    def rule(g: Array, s: Any, t: Any) -> Any:
        square = total(g, *bounds(g.ndim, s.mu))
        mu = [largest(square, i) for i in range(len(s.mu))]
        nu = momentum(g, s, square)
        return nu, {"mu": mu, "nu": nu}

    def plan(g: Array, s: Any, t: Any) -> Any:
        """The accumulator is computed for each dimension, and again for the step, not stored."""
        beside = bounds(g.ndim, s.mu)
        mu, square = [], total(g, *beside)
        for i in range(len(s.mu)):
            mu.append(largest(square, i))
            square = recompute(total, g, *beside, after=jnp.sum(mu[-1]))
        nu = momentum(g, s, square)
        return nu, {"mu": mu, "nu": nu}

    return leafwise(ScaleBySM3State, slots, planned(rule, plan))


@optimizer
def sm3(learning_rate: LearningRate, momentum: Decay = 0.9) -> GradientTransformation:
    r"""SM3: Adagrad with one vector for each dimension, plus momentum; here for a matrix.

    .. math::
        \nu_{ij} &= \min(r_i, c_j) + |g_{ij}|^2, \qquad
            r_i \leftarrow \max_j \nu_{ij}, \qquad c_j \leftarrow \max_i \nu_{ij}, \\
        m &\leftarrow \beta_1 m + (1 - \beta_1) \frac{g}{\sqrt{\nu + \epsilon}}, \qquad
            \theta \leftarrow \theta - \eta m

    with :math:`\epsilon = 10^{-8}`.

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        momentum: :math:`\beta_1` in :math:`[0, 1)`.

    Source: R. Anil et al., Memory-Efficient Adaptive Optimization, 2019, arXiv:1901.11150,
    algorithm SM3-II.

    >>> import gradtx
    >>> tx = sm3(0.5)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((3, 2)), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return chain(scale_by_sm3(momentum), scale_by_learning_rate(learning_rate))
