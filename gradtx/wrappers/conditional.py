"""Running a transformation at some steps only."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.composition.around import InnerStep, around
from gradtx.composition.gate import Decision, gate
from gradtx.core.pair import GradientTransformation, transformation, with_extra_args_support
from gradtx.numerics import increment
from gradtx.types import Array, InnerState, Params, State, Updates

Condition = Callable[..., Any]


class ConditionallyTransformState(NamedTuple):
    """inner_state: the inner transformation's; step: i32[], calls so far."""

    inner_state: InnerState
    step: Any


class ConditionallyMaskState(NamedTuple):
    """step: i32[], calls so far; inner_state: the inner transformation's."""

    step: Any
    inner_state: InnerState


def _conditionally(
    state_class: Any,
    inner: GradientTransformation,
    condition: Condition,
    forward_extra_args: bool,
    *,
    still: bool,
) -> GradientTransformation:
    tx = with_extra_args_support(inner)

    def init(params: Params) -> State:
        return state_class(step=jnp.zeros([], jnp.int32), inner_state=tx.init(params))

    def decide(
        updates: Updates, state: State, params: Params | None, extra_args: dict[str, Any]
    ) -> Decision:
        del params
        run = jnp.asarray(condition(state.step, **(extra_args if forward_extra_args else {})))
        if run.shape != () or run.dtype != bool:
            raise ValueError(
                f"should_transform_fn must return one boolean, not {run.dtype}{list(run.shape)}"
            )

        def close(inner_state: State, taken: Array) -> State:
            return state_class(step=increment(state.step), inner_state=inner_state)

        rest = None if still else updates
        return Decision(run, tx, state.inner_state, close, extra_args, otherwise=rest)

    # Where the other updates pass on, parameters do not stay in place.
    return gate(init, decide, still=still)


@transformation
def conditionally_transform(
    inner: GradientTransformation,
    should_transform_fn: Condition,
    forward_extra_args: bool = False,
) -> GradientTransformation:
    """Transform at some steps; at the others pass the updates on unchanged.

    Against what is not finite, and spikes, prefer :func:`guard`.

    Args:
        inner: the transformation.
        should_transform_fn: ``(step, **extra_args) -> bool``, with the number of calls so far. If
            it is false, `inner` is not run, and its state stays unchanged; `Rows` pass on as tables
            if `inner` returns tables for them.
        forward_extra_args: whether to pass the extra arguments to that function.

    State: `ConditionallyTransformState`.

    >>> import gradtx
    >>> tx = conditionally_transform(gradtx.scale(0.5), lambda step: step >= 1)
    >>> state = tx.init(jnp.zeros(1))
    >>> for _ in range(2):
    ...     updates, state = tx.update(jnp.ones(1), state)
    >>> updates.tolist()
    [0.5]
    """
    return _conditionally(
        ConditionallyTransformState, inner, should_transform_fn, forward_extra_args, still=False
    )


@transformation
def conditionally_mask(
    inner: GradientTransformation,
    should_transform_fn: Condition,
    forward_extra_args: bool = False,
) -> GradientTransformation:
    """Transform at some steps; at the others the updates are zero.

    Against what is not finite, and spikes, prefer :func:`guard`.

    Args:
        inner: the transformation.
        should_transform_fn: as in :func:`conditionally_transform`.
        forward_extra_args: whether to pass the extra arguments to that function.

    State: `ConditionallyMaskState`.

    >>> import gradtx
    >>> tx = conditionally_mask(gradtx.scale(0.5), lambda step: step >= 1)
    >>> tx.update(jnp.ones(1), tx.init(jnp.zeros(1)))[0].tolist()
    [0.0]
    """
    return _conditionally(
        ConditionallyMaskState, inner, should_transform_fn, forward_extra_args, still=True
    )


@transformation(update_size="proportional")
def skip_if_none(inner: GradientTransformation) -> GradientTransformation:
    """Take no step, and count none, where no leaf has a gradient.

    Against what is not finite, and spikes, prefer :func:`guard`.

    A step counts for all leaves of `inner`, even those whose gradient is `None`. With this around
    each parameter's own group in :func:`partition`, each counts its own steps, as in PyTorch.

    Args:
        inner: any transformation.

    State: that of `inner`.

    >>> import gradtx
    >>> tx = skip_if_none(gradtx.adam(0.1))
    >>> _, state = tx.update({"w": None}, tx.init({"w": jnp.zeros(2)}))
    >>> int(state[0].count)
    0
    """
    tx = with_extra_args_support(inner)

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        if not jax.tree.leaves(updates):
            return updates, state
        return inner_step(updates, state, params)

    return around(tx, None, run, parts=(tx,))
