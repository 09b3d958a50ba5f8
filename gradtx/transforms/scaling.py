"""Scaling by a number, a schedule, a learning rate."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import LearningRate, Number
from gradtx.composition.scalings import Scaling
from gradtx.core.expansion import Clock
from gradtx.core.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    transformation,
)
from gradtx.engine.lift import elementwise
from gradtx.engine.zero_gradients import SCALED
from gradtx.numerics import increment, is_zero, widen
from gradtx.types import (
    Array,
    Counter,
    EmptyState,
    Params,
    PyTree,
    Schedule,
    State,
    Updates,
)


class ScaleByScheduleState(NamedTuple):
    """count: i32[], steps taken."""

    count: Counter


@transformation(update_size="proportional")
def scale(step_size: Number) -> GradientTransformation:
    r"""Multiply the updates by a number: :math:`u = s\, g`.

    Args:
        step_size: the factor.

    >>> tx = scale(0.5)
    >>> tx.update(jnp.array([2.0]), tx.init(jnp.zeros(1)))[0].tolist()
    [1.0]
    """

    def rule(g: Array, s: Any, t: Any) -> Any:
        return g * step_size, {}

    lifted = elementwise(EmptyState, None, rule, zero_gradient=SCALED)
    return lifted.with_facets(Scaling("step"))


@transformation(native_schedules=True, update_size="proportional")
def scale_by_schedule(step_size_fn: Schedule) -> GradientTransformation:
    r"""Multiply the updates by a schedule's value: :math:`u = s(t)\, g`, `t` from 0.

    Args:
        step_size_fn: ``count -> factor``, with the number of steps taken so far.

    State: `ScaleByScheduleState`; the counter stops at :math:`2^{31}-1`.

    >>> tx = scale_by_schedule(lambda count: 1.0 / (1 + count))
    >>> state = tx.init(jnp.zeros(1))
    >>> for _ in range(2):
    ...     updates, state = tx.update(jnp.ones(1), state)
    >>> updates.tolist(), int(state.count)
    ([0.5], 2)
    """

    def init(params: Params) -> State:
        return ScaleByScheduleState(jnp.zeros([], jnp.int32))

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        updates, _ = scale(jnp.asarray(step_size_fn(state.count))).update(updates, EmptyState())
        return updates, ScaleByScheduleState(increment(state.count))

    return GradientTransformationExtraArgs(init, update, facets=(Scaling("step"),))


@transformation(update_size="proportional")
def scale_by_learning_rate(
    learning_rate: LearningRate | None = None, *, flip_sign: bool = True
) -> GradientTransformation:
    r"""Multiply by the learning rate and, for descent, by -1: :math:`u = -\eta\, g`.

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, a schedule, or None
            for 1 (in Optax None leaves the updates unchanged, and a chain that ends in it ascends).
        flip_sign: whether to descend.

    State: none, or `ScaleByScheduleState` for a schedule.

    >>> tx = scale_by_learning_rate(0.1)
    >>> tx.update(jnp.array([2.0]), tx.init(jnp.zeros(1)))[0].tolist()
    [-0.20000000298023224]
    """
    rate = 1.0 if learning_rate is None else learning_rate
    signed = -rate if flip_sign else rate

    def rule(g: Array, s: Any, t: Any) -> Any:
        return g * signed, {}

    return elementwise(EmptyState, None, rule, zero_gradient=SCALED).with_facets(
        Clock(ScaleByScheduleState), Scaling("step")
    )


def scale_gradient(inputs: PyTree, scale: Any) -> PyTree:
    """The same values, but with their gradient multiplied by a number in the backward pass.

    Args:
        inputs: a tree of arrays inside a function that is differentiated.
        scale: the factor; 0 stops the gradient, -1 reverses it.

    >>> float(jax.grad(lambda x: scale_gradient(x, 0.5) ** 2)(3.0))
    3.0
    """
    if is_zero(scale):
        return jax.lax.stop_gradient(inputs)
    return _backward_scaled(inputs, scale)


@jax.custom_vjp
def _backward_scaled(inputs: PyTree, scale: Any) -> PyTree:
    return inputs


def _scaled(scale: Any, cotangents: PyTree) -> tuple[PyTree, Any]:
    def on_leaf(g: Any) -> Any:
        no_derivative = g.dtype == jax.dtypes.float0  # of an integer leaf
        return g if no_derivative else (widen(g) * scale).astype(g.dtype)

    cotangents = jax.tree.map(on_leaf, cotangents)
    return cotangents, jax.tree.map(jnp.zeros_like, scale)


_backward_scaled.defvjp(lambda inputs, scale: (inputs, scale), _scaled)
