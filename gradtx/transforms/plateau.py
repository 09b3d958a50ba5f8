"""Reducing the step when a metric stops improving."""

from typing import Annotated, Any, Literal, NamedTuple

import jax.numpy as jnp

from gradtx import tree
from gradtx.checks import ArgumentError, Count, Fraction, NonNegative, PositiveCount, Range
from gradtx.core.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    transformation,
)
from gradtx.numerics import increment, infinity, is_zero, widen
from gradtx.types import Array, Params, State, UpdateFactor, Updates, WindowCounter

_Factor = Annotated[Any, Range(0.0, 1.0, low_open=True, high_open=True)]


class ReduceLROnPlateauState(NamedTuple):
    """The current scale, and the numbers on which it depends.

    scale, best_value, avg_value: f32[]; plateau_count, cooldown_count, count: i32[].
    """

    scale: UpdateFactor
    best_value: Any
    plateau_count: Any
    cooldown_count: Any
    count: WindowCounter
    avg_value: Any


class _PlateauOptions(NamedTuple):
    """Hyperparameters under the names of `reduce_on_plateau`."""

    factor: Any
    patience: Any
    rtol: Any
    atol: Any
    cooldown: Any
    accumulation_size: Any
    min_scale: Any


def _check_metric(value: Any) -> None:
    """Raise ValueError unless there is a metric, and it is one number."""
    if value is None:
        raise ArgumentError("reduce_on_plateau needs the metric: call update(..., value=loss)")
    if jnp.ndim(value) != 0:
        raise ValueError(
            f"reduce_on_plateau: value must be one number, not of shape {jnp.shape(value)}"
        )


def _judged(
    state: ReduceLROnPlateauState, value: Array, sign: float, options: _PlateauOptions
) -> ReduceLROnPlateauState:
    """The state after a complete (averaged) value; `sign` is -1 where large values are good."""
    largest = jnp.finfo(jnp.float32).max
    none = state.best_value > largest if sign > 0 else state.best_value < -largest
    best = sign * jnp.where(none, 0, state.best_value)
    margin = jnp.where(jnp.isfinite(best), options.rtol * jnp.abs(best) + options.atol, 0)
    first = sign * value <= largest
    better = jnp.where(none, first, sign * value < best - margin)
    waited = jnp.where(better, 0, increment(state.plateau_count))
    cooling = state.cooldown_count > 0
    reduce = ~cooling & (waited >= options.patience)
    scale = jnp.where(reduce, state.scale * options.factor, state.scale)
    return ReduceLROnPlateauState(
        scale=jnp.maximum(scale, options.min_scale).astype(jnp.float32),
        best_value=jnp.where(better, value, state.best_value),
        plateau_count=jnp.where(cooling | reduce, 0, waited),
        cooldown_count=jnp.where(
            reduce, options.cooldown, jnp.maximum(state.cooldown_count - 1, 0)
        ).astype(jnp.int32),
        count=jnp.zeros([], jnp.int32),
        avg_value=jnp.zeros([], jnp.float32),
    )


@transformation(native_schedules=True)
def reduce_on_plateau(
    factor: _Factor = 0.1,
    patience: PositiveCount = 10,
    rtol: Fraction = 1e-4,
    atol: NonNegative = 0.0,
    cooldown: Count = 0,
    accumulation_size: PositiveCount = 1,
    min_scale: NonNegative = 0.0,
    *,
    mode: Literal["min", "max"] = "min",
) -> GradientTransformation:
    r"""Reduce the scale of the updates when a metric has not improved for a while.

    A value :math:`v` improves on the best, :math:`b`, if
    :math:`v < b - r |b| - a` (minimum) or :math:`v > b + r |b| + a` (maximum).

    Args:
        factor: the factor by which the scale is reduced, in :math:`(0, 1)`.
        patience: the number of values without improvement after which to reduce; at least 1.
        rtol: :math:`r` in :math:`[0, 1]`.
        atol: :math:`a \ge 0`; one of the two must be positive.
        cooldown: the number of values to ignore after a reduction; at least 0.
        accumulation_size: the number of values that are averaged into one; at least 1. Each
            ``update`` is given a value, so that `patience` and `cooldown` count steps unless this
            is the number of steps of an epoch: see below.
        min_scale: the scale does not fall below it.
        mode: whether a small value is good or a large one.

    Keras and PyTorch judge once an epoch. Their ``ReduceLROnPlateau`` is
    ``reduce_on_plateau(factor, patience, accumulation_size=steps_per_epoch)``, with a `patience`
    of one more than PyTorch's, which reduces once it is exceeded. An epoch's value is then the mean
    over its steps; a validation loss is passed at each step until the next is known.

    ``update`` needs the extra argument ``value``, the metric. Put it last in a chain. In a
    ``shard_map`` or a ``pmap``, where each device has its own loss, put it inside
    :func:`share_value`; under plain ``jit`` all devices and hosts see the loss of the whole batch.

    State: `ReduceLROnPlateauState`. :func:`hyperparams` shows the learning rate that results. As in
    Optax, the best value is infinite before the first step, so under ``jax_debug_infs`` call
    ``init`` outside of ``jit``.

    The tolerance is relative to :math:`|b|`. Optax's is relative to :math:`b`, so that a negative
    value that stays unchanged counts as an improvement forever.

    Raises:
        ValueError: an unknown `mode`, `rtol` and `atol` are both zero, or ``update`` is
            called without the metric, or with one that is not one number.
        TypeError: an argument is a schedule.

    >>> import gradtx
    >>> tx = gradtx.chain(gradtx.sgd(1.0), reduce_on_plateau(0.5, patience=1))
    >>> state = tx.init(0.0)
    >>> for _ in range(2):
    ...     updates, state = tx.update(jnp.float32(1.0), state, value=-3.0)
    >>> float(updates)
    -0.5
    """
    options = _PlateauOptions(factor, patience, rtol, atol, cooldown, accumulation_size, min_scale)
    if any(map(callable, options)):
        raise TypeError("reduce_on_plateau: its arguments are numbers or arrays, not schedules")
    if mode not in ("min", "max"):
        raise ValueError(f"reduce_on_plateau: mode must be 'min' or 'max', not {mode!r}")
    if is_zero(rtol) and atol == 0:
        raise ValueError("reduce_on_plateau: one of rtol and atol must be positive")
    sign = 1.0 if mode == "min" else -1.0

    def init(params: Params) -> State:
        del params
        return ReduceLROnPlateauState(
            scale=jnp.ones([], jnp.float32),
            best_value=infinity(jnp.float32, sign),
            plateau_count=jnp.zeros([], jnp.int32),
            cooldown_count=jnp.zeros([], jnp.int32),
            count=jnp.zeros([], jnp.int32),
            avg_value=jnp.zeros([], jnp.float32),
        )

    def update(
        updates: Updates,
        state: State,
        params: Params | None = None,
        *,
        value: Any = None,
        **extra_args: Any,
    ) -> tuple[Updates, State]:
        del params, extra_args
        _check_metric(value)
        count = increment(state.count)
        value = jnp.asarray(value, jnp.float32)
        average = state.avg_value + (value - state.avg_value) / count.astype(jnp.float32)
        judged = _judged(state, average, sign, options)
        waiting = state._replace(count=count, avg_value=average)
        complete = count >= accumulation_size
        pairs = zip(judged, waiting, strict=True)
        new = ReduceLROnPlateauState(*(jnp.where(complete, j, w) for j, w in pairs))
        scaled = tree.map_updates(lambda g: (widen(g) * new.scale).astype(g.dtype), updates)
        return scaled, new

    return GradientTransformationExtraArgs(init, update)
