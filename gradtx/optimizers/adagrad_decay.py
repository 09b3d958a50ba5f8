"""AdagradDecay: Adagrad whose sums of squares decay at intervals."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import Fraction, LearningRate, NonNegative, PositiveCount
from gradtx.composition.chain import chain
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import rowwise
from gradtx.numerics import (
    Step,
    abs_sq,
    accumulator_dtype,
    divide,
    full_like,
    one_per_row,
    root,
    zeros_like,
)
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, Counter, NonNegativeSlots, Slots


class ScaleByAdagradDecayState(NamedTuple):
    """count: i32[]; accumulator: like the parameters, float32 or wider; decays: i32 per row."""

    count: Counter
    accumulator: NonNegativeSlots
    decays: Slots


@transformation
def scale_by_adagrad_decay(
    initial_accumulator_value: NonNegative = 0.1,
    accumulator_decay_step: PositiveCount = 100_000,
    accumulator_decay_rate: Fraction = 0.9,
) -> GradientTransformation:
    r"""Divide by the root of a sum of squared gradients that decays every `N` steps.

    .. math::
        s &\leftarrow \max(\rho s, s_0) \;\text{ and }\; k_i \leftarrow k_i + 1
            \quad\text{in a row where } \lfloor t / N \rfloor > k_i, \\
        s &\leftarrow s + |g|^2, \qquad u = g / \sqrt{s}\;(0 \text{ for } 0/0)

    Args:
        initial_accumulator_value: :math:`s_0 \ge 0`, below which the sum never decays.
        accumulator_decay_step: :math:`N`, at least 1.
        accumulator_decay_rate: :math:`\rho` in :math:`[0, 1]`.

    A row that was not touched for several periods of `N` steps catches up by one decay at each
    later touch, as in DeepRec, from which names and defaults are taken.

    State: `ScaleByAdagradDecayState`.

    Source: the operator ``ApplyAdagradDecay`` of DeepRec (Alibaba, 2021), and its documentation.

    >>> tx = scale_by_adagrad_decay(initial_accumulator_value=0.0)
    >>> tx.update(jnp.array([3.0]), tx.init(jnp.zeros(1)))[0].tolist()
    [1.0]
    """

    def slots(p: Array) -> dict[str, Array]:
        return {
            "accumulator": full_like(p, initial_accumulator_value, accumulator_dtype(p)),
            "decays": zeros_like(one_per_row(p), jnp.int32),
        }

    def rule(g: Array, s: Any, t: Step) -> Any:
        periods = (t.count // accumulator_decay_step).astype(s.decays.dtype)
        due = periods > s.decays
        decayed = jnp.maximum(accumulator_decay_rate * s.accumulator, initial_accumulator_value)
        total = jnp.where(due, decayed, s.accumulator) + abs_sq(g)
        decays = jnp.where(due, s.decays + 1, s.decays)
        return divide(g, root(total)), {"accumulator": total, "decays": decays}

    return rowwise(ScaleByAdagradDecayState, slots, rule)


@optimizer
def adagrad_decay(
    learning_rate: LearningRate,
    initial_accumulator_value: NonNegative = 0.1,
    accumulator_decay_step: PositiveCount = 100_000,
    accumulator_decay_rate: Fraction = 0.9,
) -> GradientTransformation:
    r"""AdagradDecay: Adagrad that forgets old squares, so that steps do not vanish in long runs.

    .. math::
        s &\leftarrow \max(\rho s, s_0) \;\text{ and }\; k_i \leftarrow k_i + 1
            \quad\text{in a row where } \lfloor t / N \rfloor > k_i, \\
        s &\leftarrow s + |g|^2, \qquad
        \theta \leftarrow \theta - \eta\, \frac{g}{\sqrt{s}}\;(0 \text{ for } 0/0)

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        initial_accumulator_value: :math:`s_0 \ge 0`, the sum of squares at the start and its least
            value.
        accumulator_decay_step: :math:`N`, steps between two decays, at least 1.
        accumulator_decay_rate: :math:`\rho` in :math:`[0, 1]`, the share that a decay leaves.

    Source: DeepRec (Alibaba, 2021), ``AdagradDecayOptimizer``.

    >>> import gradtx
    >>> tx = adagrad_decay(0.5, accumulator_decay_step=10)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return chain(
        scale_by_adagrad_decay(
            initial_accumulator_value, accumulator_decay_step, accumulator_decay_rate
        ),
        scale_by_learning_rate(learning_rate),
    )
