"""Loss scaling: multiplying the loss, so that small gradients survive float16."""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import InitialPositive, NonNegative, PositiveCount, Range
from gradtx.composition.gate import Decision, gate, reads_entries
from gradtx.core.pair import (
    GradientTransformation,
    transformation,
    with_extra_args_support,
)
from gradtx.numerics import cast, increment, own_copy
from gradtx.numerics.control import inside
from gradtx.sharding.axes import on_all_devices
from gradtx.training.loss_scale import ScalesLoss, unscaled
from gradtx.tree.sums import all_finite
from gradtx.types import Array, InnerState, Params, State, Updates

_Factor = Annotated[Any, Range(1.0, low_open=True, high_open=True)]
# The scale stays between this and its inverse, so that both are normal numbers.
_LEAST = float(jnp.finfo(jnp.float32).tiny)


class DynamicLossScaleState(NamedTuple):
    """loss_scale: f32[]; counter: i32[], finite steps since it changed; inner_state: the inner."""

    loss_scale: Any
    counter: Any
    inner_state: InnerState


@transformation(update_size="proportional")
def dynamic_loss_scale(
    inner: GradientTransformation,
    loss_scale: InitialPositive = 2.0**15,
    period: PositiveCount = 2000,
    factor: _Factor = 2.0,
    min_loss_scale: NonNegative = 1.0,
) -> GradientTransformation:
    r"""Undo the scale of a scaled loss, and find a scale under which gradients stay finite.

    .. math:: u = u_{inner}(g / s), \qquad
        s \leftarrow \begin{cases} \phi s & \text{after } n \text{ finite gradients in a row} \\
        \max(s / \phi, s_{min}) & \text{after one that is not finite} \end{cases}

    Args:
        inner: the optimizer. A step whose gradient is not finite is skipped: zero updates, an
            unchanged state; where it aggregates gradients, on all devices if on one.
        loss_scale: the initial :math:`s`, above 0.
        period: `n`, at least 1.
        factor: :math:`\phi > 1`.
        min_loss_scale: :math:`s_{min} \ge 0`; with 0, as in Keras, it is :math:`2^{-126}`.

    The scale grows to at most :math:`2^{126}`, even while all gradients are zero.

    :func:`minimize`, :func:`make_step` and :func:`solve` multiply the loss by the scale before they
    take its gradient, and return its value without the scale. By hand, multiply the loss by
    :func:`loss_scale` of the state before differentiating it, or pass that as `grad_loss` to
    :func:`compute_gradients`; the extra arguments `value`, `grad` and `value_fn` are those of the
    loss itself. Put this around everything else that acts on gradients, except wrappers that
    collect or round them, such as :func:`accumulate` and :func:`master_weights`. A transformation
    before this one would get multiplied gradients; these functions refuse that.

    State: `DynamicLossScaleState`.

    Source: P. Micikevicius et al., Mixed Precision Training, 2018, arXiv:1710.03740, section 3.2.
    Keras calls it ``LossScaleOptimizer``, PyTorch ``GradScaler``.

    >>> import gradtx
    >>> tx = dynamic_loss_scale(gradtx.sgd(1.0), loss_scale=8.0)
    >>> state = tx.init(jnp.zeros(1))
    >>> loss = lambda p: jnp.sum(3.0 * p)
    >>> grads = jax.grad(lambda p: loss(p) * gradtx.loss_scale(state))(jnp.zeros(1))
    >>> updates, state = tx.update(grads, state)
    >>> grads.tolist(), updates.tolist()
    ([24.0], [-3.0])
    """
    tx = with_extra_args_support(inner)

    def init(params: Params) -> State:
        scale = own_copy(loss_scale, jnp.float32)
        return DynamicLossScaleState(scale, jnp.zeros([], jnp.int32), tx.init(params))

    def next_state(state: State, finite: Array, inner_state: State) -> State:
        counter = jnp.where(finite, increment(state.counter), 0)
        grows = counter >= period
        smaller = jnp.maximum(state.loss_scale / factor, jnp.maximum(min_loss_scale, _LEAST))
        larger = state.loss_scale * factor
        larger = jnp.where(grows & (larger <= 1 / _LEAST), larger, state.loss_scale)
        scale = cast(jnp.where(finite, larger, smaller), jnp.float32)
        return DynamicLossScaleState(scale, jnp.where(grows, 0, counter), inner_state)

    def decide(
        updates: Updates, state: State, params: Params | None, extra_args: dict[str, Any]
    ) -> Decision:
        del params
        finite = on_all_devices("dynamic_loss_scale", tx, all_finite(updates))
        return Decision(
            finite,
            tx,
            state.inner_state,
            lambda inner_state, taken: next_state(state, finite, inner_state),
            extra_args,
            gradients=lambda turn: unscaled(inside(updates, turn), state.loss_scale),
        )

    return gate(init, decide, anyway=reads_entries(tx), facets=(ScalesLoss(),))


def loss_scale(state: State) -> Array:
    """The number to multiply the loss by at the next step.

    Args:
        state: a state that contains that of one :func:`dynamic_loss_scale`.

    Raises:
        ValueError: it contains none, or more than one.

    >>> import gradtx
    >>> float(loss_scale(dynamic_loss_scale(gradtx.sgd(1.0), 8.0).init(0.0)))
    8.0
    """

    def holds(x: Any) -> bool:
        return isinstance(x, DynamicLossScaleState)

    states = [x for x in jax.tree.leaves(state, is_leaf=holds) if holds(x)]
    if len(states) != 1:
        raise ValueError(
            f"loss_scale: the state holds {len(states)} states of dynamic_loss_scale, not one"
        )
    scale: Array = states[0].loss_scale
    return scale
