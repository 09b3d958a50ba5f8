"""LARS."""

from typing import Any

from gradtx.checks import Fraction, LearningRate, NonNegative
from gradtx.composition.chain import chain, identity
from gradtx.composition.masking import masked, split_by_mask
from gradtx.core.expansion import Clock
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import leafwise
from gradtx.leaves.paths import Where
from gradtx.numerics import Norm, is_zero, norm
from gradtx.numerics.compiler_hints import Recomputed, planned
from gradtx.transforms.decay import WeightDecaySchedule, decayed
from gradtx.transforms.momentum import trace
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.transforms.trust import at_ratio
from gradtx.types import Array, EmptyState


@transformation
def scale_by_lars(
    weight_decay: NonNegative = 0.0,
    weight_decay_mask: Where = True,
    trust_coefficient: NonNegative = 0.001,
    eps: NonNegative = 0.0,
    trust_ratio_mask: Where = True,
) -> GradientTransformation:
    r"""The decayed gradient, rescaled in each leaf in proportion to the parameter's norm.

    .. math:: d = g + \lambda\theta, \qquad
        u = \frac{c \lVert\theta\rVert}{\lVert d\rVert + \epsilon}\, d

    This is ``chain(add_decayed_weights(...), scale_by_trust_ratio(...))`` in one rule, which
    computes `d` twice rather than storing it.

    Args:
        weight_decay: :math:`\lambda \ge 0`.
        weight_decay_mask: which parameters decay, as in :func:`add_decayed_weights`.
        trust_coefficient: :math:`c \ge 0`.
        eps: :math:`\epsilon \ge 0`.
        trust_ratio_mask: which leaves are scaled by their ratio, as in :func:`masked`.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: Y. You, I. Gitman and B. Ginsburg, Large Batch Training of Convolutional Networks, 2017,
    arXiv:1708.03888, algorithm 1.

    >>> import jax.numpy as jnp
    >>> tx, p = scale_by_lars(trust_coefficient=1.0), jnp.array([3.0, 4.0])
    >>> tx.update(jnp.array([1.0, 0.0]), tx.init(p), p)[0].tolist()
    [5.0, 0.0]
    """

    def with_decay(weight_decay: Any, by_ratio: bool) -> GradientTransformation:
        def direction(g: Array, p: Array) -> Array:
            return decayed(g, weight_decay, p)

        def scaled(d: Array, size: Norm, length: Norm) -> Array:
            return at_ratio(d, size, length, trust_coefficient, eps)

        def rule(g: Array, s: Any, t: Any, p: Array) -> Any:
            d = direction(g, p)
            return scaled(d, norm(p), norm(d)) if by_ratio else d, {}

        def plan(g: Array, s: Any, t: Any, p: Array) -> Any:
            """The direction is computed for its norm, and again for the step, not stored."""
            if not by_ratio or is_zero(weight_decay):  # it is the gradient
                return rule(g, s, t, p)
            d = Recomputed(direction, g, p)
            size = norm(p)
            length = norm(d(after=size.value), again=(direction, (g, p)))
            return scaled(d(after=length.value), size, length), {}

        return leafwise(EmptyState, None, planned(rule, plan))

    def with_ratio(by_ratio: bool) -> GradientTransformation:
        return split_by_mask(
            weight_decay_mask, with_decay(weight_decay, by_ratio), with_decay(0.0, by_ratio)
        )

    tx = split_by_mask(trust_ratio_mask, with_ratio(True), with_ratio(False))
    return tx.with_facets(Clock(WeightDecaySchedule))


@optimizer
def lars(
    learning_rate: LearningRate,
    weight_decay: NonNegative = 0.0,
    weight_decay_mask: Where = True,
    trust_coefficient: NonNegative = 0.001,
    eps: NonNegative = 0.0,
    trust_ratio_mask: Where = True,
    momentum: Fraction = 0.9,
    nesterov: bool = False,
) -> GradientTransformation:
    r"""LARS: momentum with each leaf's step in proportion to the norm of its parameter.

    .. math::
        d &= g + \lambda\theta, \qquad
            v = \eta \frac{c \lVert\theta\rVert}{\lVert d\rVert + \epsilon}\, d, \\
        m &\leftarrow \mu m + v, \qquad
            \theta \leftarrow \theta - m
            \;\text{ or, with Nesterov momentum, }\; \theta - (v + \mu m)

    The norms are those of a leaf; the ratio (with its factor `c`) is 1 where one of them is 0.

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        weight_decay: :math:`\lambda \ge 0`.
        weight_decay_mask: which parameters decay, as in :func:`add_decayed_weights`.
        trust_coefficient: :math:`c \ge 0`.
        eps: :math:`\epsilon \ge 0`.
        trust_ratio_mask: which leaves are scaled by their ratio, as in :func:`masked`; the others
            take plain momentum.
        momentum: :math:`\mu` in :math:`[0, 1]`.
        nesterov: use Nesterov momentum.

    The paper's denominator is :math:`\lVert g\rVert + \lambda\lVert\theta\rVert`; this is the norm
    of the sum, as Optax has it.

    State: that of :func:`trace`, after those of the links before it, as in Optax.

    Source: Y. You, I. Gitman and B. Ginsburg, Large Batch Training of Convolutional Networks, 2017,
    arXiv:1708.03888, algorithm 1.

    >>> import jax.numpy as jnp
    >>> import gradtx
    >>> tx = lars(0.002, trust_coefficient=1.0)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 3) ** 2), jnp.ones(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 3, atol=1e-1))
    True
    """
    # The same links as in Optax, so that a run with its states can continue here.
    return chain(
        masked(
            scale_by_lars(
                weight_decay, weight_decay_mask, trust_coefficient, eps, trust_ratio_mask
            ),
            True,
        ),
        masked(identity(), True),
        scale_by_learning_rate(learning_rate),
        trace(momentum, nesterov),
    )
