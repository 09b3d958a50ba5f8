"""The names that signatures and state classes share."""

import functools
import sys
import typing
from collections.abc import Callable, Mapping
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    runtime_checkable,
)

import jax

Array: TypeAlias = jax.Array

# Marks of arguments that are types or schedules or choose leaves, and of the fields of a state:
DTYPE, WHERE, DIMENSIONS, SCHEDULE = "dtype", "where", "dimension numbers", "schedule"
SLOT, COUNTER, TREE_SCALAR, KEY = "slot", "counter", "tree scalar", "key"
NONNEGATIVE, INNER, MASKED = "nonnegative", "inner state", "masked"
FACTOR, WINDOW = "factor", "window"

if TYPE_CHECKING:
    # `Any` within gradtx; to callers, what that module says.
    from gradtx.types.signatures import (
        ArrayTree as ArrayTree,
        Counter as Counter,
        DimensionNumbers as DimensionNumbers,
        DType as DType,
        OptState as OptState,
        Params as Params,
        PyTree as PyTree,
        Scalar as Scalar,
        ScalarOrSchedule as ScalarOrSchedule,
        Schedule as Schedule,
        State as State,
        Updates as Updates,
        Where as Where,
    )
else:
    PyTree = ArrayTree = Params = Updates = State = OptState = Any
    # A floating-point type, real or complex, in any form that `jax.numpy.dtype` takes.
    DType = Annotated[Any, DTYPE]
    # Chooses leaves: a path pattern, several, a predicate ``(path, leaf) -> bool``, a tree of
    # booleans (a prefix will do), or a function from the tree to such a tree.
    Where = Annotated[Any, WHERE]
    # Dimension numbers, such as `MuonDimensionNumbers`, a tree of them or a prefix of it, or a
    # function from the tree to such a tree. None for a leaf means that it is not a matrix.
    DimensionNumbers = Annotated[Any, DIMENSIONS]
    # A field ``i32[]`` that counts the steps taken, whatever it is called.
    Counter = Annotated[Any, COUNTER]
    # A function of the number of steps taken so far, jit-safe, that returns a number.
    Schedule = Annotated[Callable[[Any], Any], SCHEDULE]
    Scalar = float | Array
    ScalarOrSchedule = Scalar | Schedule

# A function returns these as it took them: a type checker then knows what it gets back.
ParamsT = TypeVar("ParamsT")
UpdatesT = TypeVar("UpdatesT")
StateT = TypeVar("StateT")
TreeT = TypeVar("TreeT")

OTHER_STATE = (
    "; one that was restored without its classes becomes one by load_state_dict(tx, params, "
    "state_dict(state)); from that of another transformation the same with strict=False continues, "
    "and match_state_dict says what fits"
)
"""What to do about a state that does not fit, for error messages."""

Slots: TypeAlias = Annotated[Any, SLOT]
"""Marks a field of a state class that mirrors the parameters: one slot for each leaf."""

NonNegativeSlots: TypeAlias = Annotated[Any, SLOT, NONNEGATIVE]
"""Marks a field as `Slots` does, for slots without negative entries, such as sums of squares."""

TreeScalar: TypeAlias = Annotated[Array, TREE_SCALAR]
"""Marks a number that belongs to the whole tree of parameters, such as a norm."""

Key: TypeAlias = Annotated[Array, KEY]
"""Marks a random key."""

UpdateFactor: TypeAlias = Annotated[Any, FACTOR]
"""Marks a number by which a link multiplies the updates, and with them the learning rate."""

WindowCounter: TypeAlias = Annotated[Any, WINDOW]
"""Marks a count of steps that starts again with each window of steps."""

InnerState: TypeAlias = Annotated[State, INNER]
"""Marks the state of the transformation that a wrapper wraps: slots in it keep their names."""

MaskedInnerState: TypeAlias = Annotated[State, INNER, MASKED]
"""Marks such a state in which `None` stands for each leaf that a mask leaves out."""


class StateOf(NamedTuple):
    """Marks the state of one of several transformations in a wrapper: ``Annotated[State, ...]``.

    argument: the name that the transformation has among the wrapper's arguments.
    """

    argument: str


def _marks(cls: Any) -> dict[str, tuple[Any, ...]]:
    """The marks in the annotation of each field of a state class."""
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except (NameError, TypeError):
        hints = {}
    return {n: getattr(hints.get(n), "__metadata__", (None,)) for n in cls._fields}


@functools.cache
def _counts_windows(cls: Any) -> bool:
    """Whether the count of a state class starts again with each window."""
    if cls.__module__.partition(".")[0] == "optax":  # whose classes have the names of gradtx's
        cls = getattr(sys.modules["gradtx"], cls.__name__, cls)
    return hasattr(cls, "_fields") and any(WINDOW in marks for marks in _marks(cls).values())


@functools.cache
def state_fields(cls: Any) -> Mapping[str, str | None]:
    """The kind of each field of a state class, from its annotation; None where there is none."""
    kinds = {n: marks[0] for n, marks in _marks(cls).items()}
    return {
        n: k if k in (SLOT, COUNTER, TREE_SCALAR, KEY, INNER) else None for n, k in kinds.items()
    }


def counters(cls: Any, names: tuple[str, ...] = ("count",)) -> tuple[str, ...]:
    """The fields of a state class that count the steps taken.

    Those whose annotation says so; in a class without such annotations, as Optax's are, those of
    the given names.
    """
    if _counts_windows(cls):
        return ()
    return tuple(fields_of(cls, COUNTER) or (n for n in getattr(cls, "_fields", ()) if n in names))


@functools.cache
def nonnegative_fields(cls: Any) -> frozenset[str]:
    """The fields of a state class that hold slots which are never negative."""
    return frozenset(n for n, marks in _marks(cls).items() if NONNEGATIVE in marks)


@functools.cache
def masked_fields(cls: Any) -> frozenset[str]:
    """The fields of a state class that hold states of some of the leaves."""
    return frozenset(n for n, marks in _marks(cls).items() if MASKED in marks)


@functools.cache
def factor_fields(cls: Any) -> tuple[str, ...]:
    """The fields of a state class by which the updates are multiplied."""
    return tuple(n for n, marks in _marks(cls).items() if FACTOR in marks)


@functools.cache
def states_of_arguments(cls: Any) -> Mapping[str, str]:
    """The fields of a state class that are marked `StateOf`, by the argument that they name."""
    if not hasattr(cls, "_fields"):
        return {}
    named_marks = ((name, mark) for name, marks in _marks(cls).items() for mark in marks)
    return {mark.argument: name for name, mark in named_marks if isinstance(mark, StateOf)}


def fields_of(cls: Any, kind: str) -> tuple[str, ...]:
    """The fields of a state class that are of one kind, in their order."""
    if not hasattr(cls, "_fields"):
        return ()
    return tuple(name for name, field_kind in state_fields(cls).items() if field_kind == kind)


def slot_fields(cls: Any) -> tuple[str, ...]:
    """The fields of a state class that hold slots."""
    return fields_of(cls, SLOT)


@runtime_checkable
class Stored(Protocol):
    """A slot kept in another form than an array, such as 8-bit blocks.

    It is a pytree. The engine loads it before the rule and stores the rule's result afterwards;
    `take` and `put` do the same for some rows and are needed only for `Rows`.
    """

    shape: tuple[int, ...]

    def load(self) -> Array: ...
    def store(self, value: Array) -> "Stored": ...
    def take(self, indices: Array) -> Array: ...
    def put(self, indices: Array, values: Array) -> "Stored": ...


def is_stored(x: Any) -> bool:
    """Whether a slot, or a part of one, is a `Stored`."""
    # Checked on the class, not by isinstance: a protocol looks up every attribute of a tracer.
    return hasattr(type(x), "store") and hasattr(type(x), "load")


class EmptyState(NamedTuple):
    """The state of a transformation without state."""


AdaptiveGradClipState: TypeAlias = EmptyState
AddDecayedWeightsState: TypeAlias = EmptyState
ClipByGlobalNormState: TypeAlias = EmptyState
ClipState: TypeAlias = EmptyState
NonNegativeParamsState: TypeAlias = EmptyState
NormalizeState: TypeAlias = EmptyState
ScaleByTrustRatioState: TypeAlias = EmptyState
ScaleState: TypeAlias = EmptyState


def is_state(x: Any) -> bool:
    """Whether an object is the state of one of gradtx's transformations, or of several.

    The containers at the top decide, so that a tree of parameters costs nothing.
    """
    if isinstance(x, dict):
        return any(isinstance(part, tuple) and is_state(part) for part in x.values())
    if not isinstance(x, tuple):
        return False
    if not hasattr(x, "_fields"):
        return any(is_state(part) for part in x)
    # Not by what it holds: parameters that are a named tuple may have a state among them.
    return isinstance(x, EmptyState) or any(k is not None for k in state_fields(type(x)).values())


def init_empty_state(params: Params) -> EmptyState:
    """The ``init`` of a pair without state.

    Args:
        params: the parameters, which are ignored.

    >>> init_empty_state({"w": 1.0})
    EmptyState()
    """
    del params
    return EmptyState()


class _NoneIsOne(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return instance is None


class MaskedNode(metaclass=_NoneIsOne):
    """What replaces a leaf that a mask leaves out: `None`.

    For code that uses Optax's class: ``MaskedNode()`` is `None`, and `None` is an instance.

    >>> isinstance(None, MaskedNode), MaskedNode() is None
    (True, True)
    """

    def __new__(cls) -> None:  # type: ignore[misc]
        """Return `None` instead of an instance."""


class TransformInitFn(Protocol):
    """The type of the ``init`` of a pair."""

    def __call__(self, params: Params) -> OptState: ...


class TransformUpdateFn(Protocol):
    """The type of the ``update`` of a pair that takes no extra arguments."""

    def __call__(
        self, updates: Updates, state: OptState, params: Params | None = None
    ) -> tuple[Updates, OptState]: ...


class TransformUpdateExtraArgsFn(Protocol):
    """The type of the ``update`` of a pair that takes extra arguments."""

    def __call__(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, OptState]: ...


class ConditionFn(Protocol):
    """The type of a condition: whether to act in the step that follows `step` others."""

    def __call__(self, step: Any, **extra_args: Any) -> Any: ...


class ShouldSkipUpdateFunction(Protocol):
    """The type of a test of micro-steps: whether to skip one, and what to keep about it."""

    def __call__(
        self, updates: Updates, gradient_step: Any, params: Params | None
    ) -> tuple[Any, PyTree]: ...


@runtime_checkable
class StatefulSchedule(Protocol):
    """A schedule with a state of its own, which :func:`inject_hyperparams` keeps.

    >>> import gradtx
    >>> isinstance(gradtx.WrappedSchedule(lambda count: 0.1), StatefulSchedule)
    True
    """

    def init(self) -> State: ...

    def update(self, state: State, **extra_args: Any) -> State: ...

    def __call__(self, state: State, **extra_args: Any) -> Any: ...
