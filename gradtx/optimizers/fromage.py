"""Fromage."""

from typing import Any

from gradtx.checks import NonNegative
from gradtx.composition.chain import chain, identity
from gradtx.core.expansion import Clock
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import leafwise
from gradtx.numerics import norm
from gradtx.transforms.decay import decayed_elsewhere
from gradtx.transforms.scaling import ScaleByScheduleState
from gradtx.transforms.trust import at_ratio
from gradtx.types import Array, EmptyState


@optimizer
def fromage(learning_rate: NonNegative, min_norm: NonNegative = 1e-6) -> GradientTransformation:
    r"""Fromage: steps in proportion to each leaf's norm, then a shrinkage that undoes its growth.

    .. math:: \theta \leftarrow \frac{1}{\sqrt{1 + \eta^2}} \left(\theta
        - \eta \frac{\max(\lVert\theta\rVert, m)}{\max(\lVert g\rVert, m)}\, g\right)

    where the quotient is 1 if either maximum is 0, as in the authors' code: a bias that starts at
    zero moves.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        min_norm: :math:`m \ge 0`; 0 is the paper's algorithm.

    State: none, or `ScaleByScheduleState` and, as in Optax, `WeightDecaySchedule` for a schedule.

    The shrinking of the parameter, :math:`1 - 1/\sqrt{1 + \eta^2}`, is computed without
    cancellation; Optax loses it in float32 when the learning rate is an array below 1e-4.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: J. Bernstein et al., On the Distance between Two Neural Networks and the Stability of
    Learning, 2020, arXiv:2002.03432, algorithm 1.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = fromage(gradtx.cosine_decay_schedule(0.1, 200))
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.arange(3.0), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    # As many links as in Optax, so that its states fit.
    return chain(
        identity(), _scale_by_fromage(learning_rate, min_norm), decayed_elsewhere(learning_rate)
    )


@transformation
def _scale_by_fromage(learning_rate: NonNegative, min_norm: NonNegative) -> GradientTransformation:
    shrink = (1 + learning_rate * learning_rate) ** -0.5
    loss = (learning_rate * shrink) ** 2 / (1 + shrink)  # 1 - shrink

    def rule(g: Array, s: Any, t: Any, p: Array) -> Any:
        scaled = at_ratio(g, norm(p).at_least(min_norm), norm(g).at_least(min_norm))
        return scaled * (-learning_rate * shrink) - loss * p, {}

    return leafwise(EmptyState, None, rule).with_facets(Clock(ScaleByScheduleState))
