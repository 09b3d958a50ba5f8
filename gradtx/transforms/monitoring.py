"""Measurements of the updates that pass through a chain, kept in the state."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import Decay, check_function
from gradtx.composition.chain import stateless
from gradtx.composition.scalings import Scaling
from gradtx.core.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    transformation,
    with_extra_args_support,
)
from gradtx.declarations.scheduled import ScheduledState
from gradtx.numerics import increment
from gradtx.transforms.momentum import ema
from gradtx.types import Counter, DType, InnerState, Params, PyTree, State, Updates

Measure = Callable[[Updates], PyTree]


class CountStepsState(NamedTuple):
    """count: i32[]."""

    count: Counter


class SnapshotState(NamedTuple):
    """measurement: ``{name: what was measured}``."""

    measurement: dict[str, Any]


class MonitorState(NamedTuple):
    """measurements: ``{name: what was measured}``; measure_states: the measures' own states."""

    measurements: dict[str, Any]
    measure_states: InnerState


class MeasureWithEmaState(NamedTuple):
    """measurement: the average; ema_state: an `EmaState` like the measurement."""

    measurement: Any
    ema_state: InnerState


def _zeros(measure: Callable[..., Any], *args: Any) -> PyTree:
    """Zeros in the shape of a measurement: a state must look the same before and after a step."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(measure, *args))


def _watching(
    init: Callable[[Params], State], seen: Callable[..., State]
) -> GradientTransformation:
    """A transformation that passes updates on and keeps what it has seen of them.

    Args:
        init: ``params -> state``.
        seen: ``(updates, state, params, **extra_args) -> state``.
    """

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        new = seen(updates, state, params, **extra_args)
        form: Any = jax.tree.structure(state)
        alike = jax.tree.structure(new) == form
        return updates, jax.tree.map(_in_type_of, new, state) if alike else new

    return GradientTransformationExtraArgs(init, update, facets=(Scaling("step"),))


def _in_type_of(new: Any, old: Any) -> Any:
    """A number in the type of the state's, which was made for parameters, and not for updates."""
    known = hasattr(new, "dtype") and hasattr(old, "dtype")
    loses = known and jnp.iscomplexobj(new) and not jnp.iscomplexobj(old)
    return new.astype(old.dtype) if known and not loses else new


@transformation(update_size="proportional")
def count_steps() -> GradientTransformation:
    """Count the steps; the updates pass unchanged.

    For :func:`iterations`, in a chain in which nothing else counts steps.

    State: `CountStepsState`.

    >>> import gradtx
    >>> tx = gradtx.chain(count_steps(), gradtx.sgd(0.1))
    >>> _, state = tx.update(1.0, tx.init(0.0))
    >>> int(gradtx.iterations(state))
    1
    """
    return _watching(
        lambda params: CountStepsState(jnp.zeros([], jnp.int32)),
        lambda updates, state, params, **_: CountStepsState(increment(state.count)),
    )


@transformation(update_size="proportional")
def snapshot(measure_name: str, measure: Measure) -> GradientTransformation:
    """Measure the updates that pass through, and keep the last measurement.

    Args:
        measure_name: its name: ``gradtx.tree.get(state, measure_name)`` finds it.
        measure: ``updates -> tree``, such as ``gradtx.tree.norm``.

    State: `SnapshotState`. Before the first step it is zero, where Optax measures the parameters.

    >>> import gradtx
    >>> tx = snapshot("norm", gradtx.tree.norm)
    >>> _, state = tx.update(jnp.array([3.0, 4.0]), tx.init(jnp.zeros(2)))
    >>> float(state.measurement["norm"])
    5.0
    """
    return _watching(
        lambda params: SnapshotState({measure_name: _zeros(measure, params)}),
        lambda updates, state, params, **_: SnapshotState({measure_name: measure(updates)}),
    )


@transformation(update_size="proportional")
def monitor(measures: Mapping[str, Any]) -> GradientTransformation:
    """Take several measurements of the updates that pass through; a measure may have a state.

    Args:
        measures: ``{name: measure}``, a function of the updates, or a transformation whose state
            has a field `measurement`, such as :func:`measure_with_ema`, or else whose "updates" are
            the measurement.

    State: `MonitorState`. Before the first step the measurements are zeros; in Optax they appear
    with it, which changes the state's structure.

    Raises:
        TypeError: `measures` is not a dict of functions of the updates.

    >>> import gradtx
    >>> tx = monitor({"norm": gradtx.tree.norm})
    >>> _, state = tx.update(jnp.array([3.0, 4.0]), tx.init(jnp.zeros(2)))
    >>> float(state.measurements["norm"])
    5.0
    """
    if not isinstance(measures, Mapping):
        raise TypeError(f"monitor: measures must be a dict, not {measures!r:.80}")
    for name, m in measures.items():
        if not isinstance(m, tuple):
            check_function("monitor", f"measures[{name!r}]", m, 1)
    links = {
        name: with_extra_args_support(m if isinstance(m, tuple) else _measuring(m))
        for name, m in measures.items()
    }

    def measured(
        tx: GradientTransformation,
        updates: Updates,
        state: State,
        params: Params | None,
        **extra: Any,
    ) -> tuple[PyTree, State]:
        out, state = tx.update(updates, state, params, **extra)
        own = state.inner_state if isinstance(state, ScheduledState) else state
        return getattr(own, "measurement", out), state

    def init(params: Params) -> State:
        states = tuple(tx.init(params) for tx in links.values())
        first = {
            name: _zeros(functools.partial(measured, tx), params, state, params)[0]
            for (name, tx), state in zip(links.items(), states, strict=True)
        }
        return MonitorState(first, states)

    def seen(updates: Updates, state: State, params: Params | None, **extra_args: Any) -> State:
        done = [
            measured(tx, updates, part, params, **extra_args)
            for tx, part in zip(links.values(), state.measure_states, strict=True)
        ]
        now = {name: m for name, (m, _) in zip(links, done, strict=True)}
        return MonitorState(now, tuple(part for _, part in done))

    return _watching(init, seen)


def _measuring(measure: Measure) -> GradientTransformation:
    return stateless(lambda updates, params: measure(updates))


def _float(x: Any) -> Any:
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.float32)


@transformation(update_size="proportional")
def measure_with_ema(
    measure: Measure,
    decay: Decay,
    debias: bool = True,
    accumulator_dtype: DType | None = None,
) -> GradientTransformation:
    """A moving average of a measurement, for :func:`monitor`.

    Args:
        measure: ``updates -> tree``; booleans and integers count as numbers.
        decay: of the average, in :math:`[0, 1)`.
        debias: as in :func:`ema`.
        accumulator_dtype: the type in which it is kept.

    State: `MeasureWithEmaState`. The updates pass unchanged; Optax's returns the measurement
    instead, and is useful only in `monitor`.

    >>> import gradtx
    >>> tx = monitor({"clipped": measure_with_ema(lambda u: gradtx.tree.norm(u) > 1.0, 0.9)})
    >>> _, state = tx.update(jnp.array([3.0]), tx.init(jnp.zeros(1)))
    >>> round(float(state.measurements["clipped"]), 6)
    1.0
    """
    average = ema(decay, debias, accumulator_dtype)

    def measured(updates: Updates) -> PyTree:
        return jax.tree.map(_float, measure(updates))

    def init(params: Params) -> State:
        zeros = _zeros(measured, params)
        return MeasureWithEmaState(zeros, average.init(zeros))

    def seen(updates: Updates, state: State, params: Params | None, **extra_args: Any) -> State:
        del params, extra_args
        return MeasureWithEmaState(*average.update(measured(updates), state.ema_state))

    return _watching(init, seen)
