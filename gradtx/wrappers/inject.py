"""Hyperparameters in the state: read, logged and changed from one step to the next."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.checks import check, check_function, size_of
from gradtx.core.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    transformation,
    with_extra_args_support,
)
from gradtx.declarations.declaration import Builder
from gradtx.declarations.host_values import as_schedule
from gradtx.numerics import cast, compute_dtype, increment, own_copy, real_dtype
from gradtx.types import Array, Counter, DType, InnerState, Params, PyTree, Schedule, State, Updates


class WrappedScheduleState(NamedTuple):
    """count: i32[], steps taken."""

    count: Counter


class InjectStatefulHyperparamsState(NamedTuple):
    """The hyperparameters used at the last step (initially those of step 0), and the rest.

    count: i32[], steps taken; hyperparams: ``{name: number}``; hyperparams_states: ``{name:
    state}`` of those that follow a schedule; inner_state: the transformation's.
    """

    count: Counter
    hyperparams: dict[str, Any]
    hyperparams_states: dict[str, Any]
    inner_state: InnerState


class InjectHyperparamsState(NamedTuple):
    """Optax's state before version 0.1.9, for reading old checkpoints; gradtx makes none."""

    count: Counter
    hyperparams: dict[str, Any]
    inner_state: InnerState


class WrappedSchedule:
    """A schedule ``count -> value`` as a `StatefulSchedule`.

    :func:`inject_hyperparams` takes either.

    Args:
        schedule_fn: the schedule.

    >>> schedule = WrappedSchedule(lambda count: 0.5**count)
    >>> float(schedule(schedule.update(schedule.init())))
    0.5
    """

    def __init__(self, schedule_fn: Schedule) -> None:
        # Any callable will do, since Optax calls any callable argument of an optimizer at each
        # step.
        if callable(schedule_fn):
            check_function("WrappedSchedule", "schedule_fn", schedule_fn, 1)
        else:
            check("WrappedSchedule", "schedule_fn", schedule_fn, Schedule)
        self.schedule_fn = schedule_fn

    def init(self) -> WrappedScheduleState:
        return WrappedScheduleState(jnp.zeros([], jnp.int32))

    def update(self, state: WrappedScheduleState, **extra_args: Any) -> WrappedScheduleState:
        del extra_args
        return WrappedScheduleState(increment(state.count))

    def __call__(self, state: WrappedScheduleState, **extra_args: Any) -> Any:
        del extra_args
        return self.schedule_fn(state.count)


def _is_stateful(value: Any) -> bool:
    return callable(value) and hasattr(value, "init") and hasattr(value, "update")


def _highest(tree: PyTree) -> DType:
    """The widest real type among the leaves, at least float32."""
    dtypes = [
        real_dtype(compute_dtype(leaf.dtype))
        for leaf in jax.tree.leaves(tree)
        if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]
    return functools.reduce(jnp.promote_types, dtypes, jnp.dtype(jnp.float32))


def _number(value: Any, dtype: DType, exact: bool) -> Array:
    """A hyperparameter as an array without weak type; a float in `dtype`.

    A float of a wider type of its own keeps that type, unless `exact`.
    """
    if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        return cast(jnp.asarray(value), jnp.asarray(value).dtype)
    if not exact and _is_strong(value):
        dtype = jnp.promote_types(dtype, value.dtype)
    return cast(jnp.asarray(value), dtype)


def _is_strong(value: Any) -> bool:
    """Whether a hyperparameter has a type of its own, unlike a Python number."""
    return hasattr(value, "dtype") and not getattr(value, "weak_type", False)


def _in_declared_type(value: Any, like: Any, exact: bool) -> Array:
    """A computed hyperparameter as the state keeps it.

    It gets the type of `like`, the array it was declared with, if that is narrower than float32.
    """
    if exact or not _is_strong(like) or not jnp.issubdtype(like.dtype, jnp.floating):
        return value
    narrow = jnp.dtype(like.dtype).itemsize < jnp.dtype(jnp.float32).itemsize
    return cast(value, like.dtype) if narrow else value


def _call(factory: Callable[..., Any], arguments: dict[str, Any]) -> GradientTransformation:
    bound = inspect.BoundArguments(inspect.signature(factory), dict(arguments))
    return with_extra_args_support(factory(*bound.args, **bound.kwargs))


def _says_otherwise(factory: Callable[..., Any], name: str, value: Any) -> bool:
    """Whether the annotations of a builder of gradtx make an argument no hyperparameter.

    Sizes, plain integers and floats determine shapes or loops, and a function is no schedule there.
    """
    builder = getattr(factory, "builder", None)
    if not isinstance(builder, Builder) or builder.is_number(name):
        return False
    hint = builder.hints.get(name)
    return callable(value) or size_of(hint) is not None or hint in (int, float, int | None)


def _by_kind(
    factory: Callable[..., Any], arguments: dict[str, Any], static_args: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The arguments that are schedules, those that are numbers, and the others."""
    schedules: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in arguments.items():
        static = name in static_args or _says_otherwise(factory, name, value)
        if static or isinstance(value, bool | np.bool_):
            others[name] = value
        elif callable(value) and not isinstance(value, GradientTransformation):
            schedules[name] = value if _is_stateful(value) else WrappedSchedule(as_schedule(value))
        elif isinstance(value, int | float | jax.Array | np.ndarray | np.number):
            numbers[name] = value
        else:
            others[name] = value
    return schedules, numbers, others


@transformation
def injected(
    inner_factory: Callable[..., GradientTransformation],
    arguments: dict[str, Any],
    static_args: tuple[str, ...] = (),
    hyperparam_dtype: DType | None = None,
) -> GradientTransformation:
    """The declared form of the transformation that :func:`inject_hyperparams` builds.

    To change a hyperparameter, prefer a schedule as its argument, or :func:`replace`.

    Args:
        inner_factory: the function that builds the transformation.
        arguments: its arguments by name, including schedules.
        static_args: the names of those that are not hyperparameters.
        hyperparam_dtype: the type of the hyperparameters.

    State: `InjectStatefulHyperparamsState`.

    >>> import gradtx
    >>> injected(gradtx.sgd, {"learning_rate": 0.1}).init(0.0).hyperparams
    {'learning_rate': Array(0.1, dtype=float32)}
    """
    schedules, numbers, others = _by_kind(inner_factory, arguments, static_args)
    if not schedules:
        _call(inner_factory, arguments)  # so that its errors are raised here
    exact = hyperparam_dtype is not None

    def built(values: dict[str, Any]) -> GradientTransformation:
        known = {**others, **values}
        return _call(inner_factory, {name: known[name] for name in arguments})

    def init(params: Params) -> State:
        dtype = hyperparam_dtype if exact else _highest(params)
        states = {name: schedule.init() for name, schedule in schedules.items()}
        values = {name: _number(value, dtype, exact) for name, value in numbers.items()} | {
            name: _number(s(states[name]), dtype, exact) for name, s in schedules.items()
        }
        hyperparams = {
            n: own_copy(_in_declared_type(v, numbers[n], exact)) if n in numbers else v
            for n, v in values.items()
        }
        return InjectStatefulHyperparamsState(
            jnp.zeros([], jnp.int32), hyperparams, states, built(values).init(params)
        )

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        dtype = hyperparam_dtype if exact else _highest(updates if params is None else params)
        values = {name: _number(state.hyperparams[name], dtype, exact) for name in numbers}
        values |= {
            name: _number(s(state.hyperparams_states[name], **extra_args), dtype, exact)
            for name, s in schedules.items()
        }
        states = {
            name: s.update(state.hyperparams_states[name], **extra_args)
            for name, s in schedules.items()
        }
        updates, inner = built(values).update(updates, state.inner_state, params, **extra_args)
        old_hyperparams = state.hyperparams
        hyperparams = {
            n: _in_declared_type(v, old_hyperparams[n], exact) if n in numbers else v
            for n, v in values.items()
        }
        return updates, InjectStatefulHyperparamsState(
            increment(state.count), hyperparams, states, inner
        )

    def inner() -> tuple[GradientTransformation, ...]:
        with jax.ensure_compile_time_eval():
            return (built(numbers | {n: s(s.init()) for n, s in schedules.items()}),)

    return GradientTransformationExtraArgs(init, update, inner=inner, takes_vectors=True)


def inject_hyperparams(
    inner_factory: Callable[..., GradientTransformation],
    static_args: str | Iterable[str] = (),
    hyperparam_dtype: DType | None = None,
) -> Callable[..., GradientTransformation]:
    """Put the numeric hyperparameters of a builder into the state of its transformation.

    Kept for code written for Optax; every hyperparameter for which it makes sense takes a schedule
    or a `jax.Array` by itself, and :func:`replace` gives it another value.

    Args:
        inner_factory: a builder such as :func:`adam`, or a function that returns a transformation.
        static_args: names of arguments that are not hyperparameters: functions other than
            schedules, numbers that must stay Python numbers. The builders of gradtx say so
            themselves, as :func:`adafactor` does of ``min_dim_size_to_factor``.
        hyperparam_dtype: the type of floating-point hyperparameters; by default that of the widest
            parameter, and at least float32. For parameters in bfloat16, Optax uses bfloat16, in
            which 0.999 is 1. An array in bfloat16 or float16 stays in its type in the state, as in
            Optax, and is computed with in float32.

    Returns:
        A builder with the arguments of `inner_factory`, each of which may be a schedule:
        ``count -> value``, or an object with ``init()``, ``update(state, **extra_args)`` and
        ``__call__(state, **extra_args)``. The state of the transformation is an
        `InjectStatefulHyperparamsState`, in which ``state.hyperparams["learning_rate"]`` may be
        read and, if it is not scheduled, replaced, without recompiling.

    A hyperparameter in a state is traced: 1 - 0.999 taken in float32 is wrong by 1e-5, and
    1 - 0.9 by 2e-7. In a run that is chaotic that grows as any rounding does; with
    ``static_args=("decay",)`` or the like the steps are those of the builder itself. To change a
    hyperparameter a few times see :func:`replace`, which keeps the others static.

    Raises:
        ValueError: the builder has no such static argument.

    >>> import gradtx
    >>> tx = inject_hyperparams(gradtx.sgd)(learning_rate=1.0)
    >>> state = tx.init(jnp.zeros(1))
    >>> state.hyperparams["learning_rate"] = 0.5
    >>> tx.update(jnp.ones(1), state)[0].tolist()
    [-0.5]
    """
    static = (static_args,) if isinstance(static_args, str) else tuple(sorted(static_args))
    signature = inspect.signature(inner_factory)
    unknown = [name for name in static if name not in signature.parameters]
    if unknown:
        raise ValueError(
            f"inject_hyperparams: {unknown} are not arguments of {inner_factory.__name__}; it has "
            f"{list(signature.parameters)}"
        )

    # Not the builder's own attributes: this returns a different builder.
    @functools.wraps(inner_factory, updated=())
    def build(*args: Any, **kwargs: Any) -> GradientTransformation:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return injected(inner_factory, dict(bound.arguments), static, hyperparam_dtype)

    return build


def inject_stateful_hyperparams(
    inner_factory: Callable[..., GradientTransformation],
    static_args: str | Iterable[str] = (),
    hyperparam_dtype: DType | None = None,
) -> Callable[..., GradientTransformation]:
    """The older name of :func:`inject_hyperparams`.

    Kept for code written for Optax; :func:`inject_hyperparams` is preferred.

    Args:
        inner_factory: the builder of the transformation; all arguments are as in that function.
        static_args: the names of the arguments that stay as they are.
        hyperparam_dtype: the type in which the others are kept.

    >>> import gradtx
    >>> tx = inject_stateful_hyperparams(gradtx.sgd)(learning_rate=0.5)
    >>> float(tx.init(0.0).hyperparams["learning_rate"])
    0.5
    """
    return inject_hyperparams(inner_factory, static_args, hyperparam_dtype)
