"""Ranges of hyperparameters, stated as annotations and checked before any work is done.

A builder writes ``b1: Decay = 0.9``; :func:`check` reads the annotation. Python's numbers and those
of NumPy, also in arrays, have values to check. An array of JAX may be traced, or still be computed.
"""

import contextlib
import functools
import inspect
import math
import numbers
import re
import types
import typing
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.types import DIMENSIONS, DTYPE, SCHEDULE, WHERE

# Names of types in programs that XLA prints; NumPy knows none, or takes them for others.
SHORT_NAMES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}

# What counters and indices can hold.
_LARGEST = int(np.iinfo(np.int32).max)


class ArgumentError(TypeError, ValueError):
    """An argument that an update needs is missing, or is no name where a name is expected.

    It is of both classes: Optax raises the one in some of these cases and the other in others.
    """


class Range(NamedTuple):
    """The values that a hyperparameter may take: an interval whose ends are included or not.

    Attributes:
        low, high: the ends.
        low_open, high_open: whether an end is left out.
        integer: whether only integers are taken.
        at_start: whether the number says where the state begins; it then cannot be a schedule.
    """

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False
    integer: bool = False
    at_start: bool = False

    def __contains__(self, value: Any) -> bool:
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        return above and below

    def __str__(self) -> str:
        left, right = "(" if self.low_open else "[", ")" if self.high_open else "]"
        kind = "an integer" if self.integer else "a number"
        return f"{kind} in {left}{self.low:g}, {self.high:g}{right}"


class Size(NamedTuple):
    """The range of an argument that determines shapes, loops or memory.

    It is a Python number when a builder is called, neither an array nor a schedule.

    Attributes:
        least: the least integer that it may be.
        integer: whether it is an integer; otherwise it is a number in (0, 1], a part of an array.
    """

    least: int = 1
    integer: bool = True


PositiveInt: TypeAlias = Annotated[int, Size()]
NonNegativeInt: TypeAlias = Annotated[int, Size(0)]
PositiveFraction: TypeAlias = Annotated[float, Size(integer=False)]

if TYPE_CHECKING:
    # `Any` within gradtx, since the body of a builder sees a number or an array; to callers, what
    # that module says.
    from gradtx.types.signatures import (
        Count as Count,
        Decay as Decay,
        Fraction as Fraction,
        InitialNonNegative as InitialNonNegative,
        InitialNumber as InitialNumber,
        InitialPositive as InitialPositive,
        LearningRate as LearningRate,
        Limit as Limit,
        NonNegative as NonNegative,
        Number as Number,
        Positive as Positive,
        PositiveCount as PositiveCount,
    )
else:
    Number = Annotated[Any, Range(low_open=True, high_open=True)]
    LearningRate = Number  # below 0 to ascend
    NonNegative = Annotated[Any, Range(0.0, high_open=True)]
    Positive = Annotated[Any, Range(0.0, low_open=True, high_open=True)]
    Limit = Annotated[Any, Range(0.0)]
    Decay = Annotated[Any, Range(0.0, 1.0, high_open=True)]
    Fraction = Annotated[Any, Range(0.0, 1.0)]
    Count = Annotated[Any, Range(0, high_open=True, integer=True)]
    PositiveCount = Annotated[Any, Range(1, high_open=True, integer=True)]
    InitialNumber = Annotated[Any, Range(low_open=True, high_open=True, at_start=True)]
    InitialNonNegative = Annotated[Any, Range(0.0, high_open=True, at_start=True)]
    InitialPositive = Annotated[Any, Range(0.0, low_open=True, high_open=True, at_start=True)]


def __dir__() -> list[str]:
    """What is defined here, without what is imported."""

    def is_ours(value: Any) -> bool:
        is_annotation = hasattr(value, "__metadata__")
        return is_annotation or getattr(value, "__module__", None) == __name__

    return [name for name, value in globals().items() if name[0] != "_" and is_ours(value)]


def hyperparameter_range(hint: Any) -> Range | None:
    """The range that an annotation declares, or None if it declares none."""
    return next((mark for mark in marks(hint) if isinstance(mark, Range)), None)


def marks(hint: Any) -> list[Any]:
    """The metadata of an annotation, or of a member of a union."""
    if typing.get_origin(hint) is Annotated:
        return list(hint.__metadata__)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [mark for part in typing.get_args(hint) for mark in marks(part)]
    return []


def size_of(hint: Any) -> Size | None:
    """The range of a size that an annotation declares, or None if it declares none."""
    return next((mark for mark in marks(hint) if isinstance(mark, Size)), None)


def words(hint: Any, *, schedules: bool) -> str | None:
    """What may be passed for an annotation with a range or a mark; None for another annotation."""
    allowed, metadata = hyperparameter_range(hint), marks(hint)
    if allowed is not None:
        text = f"{'int' if allowed.integer else 'float'} | Array"
        text += " | Schedule" if schedules and not allowed.at_start else ""
    elif (size := size_of(hint)) is not None:
        text = "int" if size.integer else "float"
    elif DTYPE in metadata:
        text = "DTypeLike"
    elif WHERE in metadata:
        text = "str | PyTree | Callable"
    elif DIMENSIONS in metadata:
        text = "PyTree | Callable"
    elif _is_schedule_hint(hint):
        text = "Schedule"
    elif _is_pair(hint):
        text = f"tuple[{', '.join('float' for _ in typing.get_args(hint))}]"
    else:
        return None
    parts = typing.get_args(hint)
    text += " | bool" if bool in parts else ""
    return f"{text} | None" if type(None) in parts else text


def is_array(value: Any) -> bool:
    """Whether `value` is a numeric array: a hyperparameter that is traced rather than static."""
    return isinstance(value, jax.Array | np.ndarray) and value.dtype != bool


def check(where: str, name: str, value: Any, hint: Any) -> None:
    """Raise if `value` cannot be the argument `name` of `where`, by its annotation `hint`.

    Raises:
        TypeError: the value is of another kind than the annotation asks for.
        ValueError: the value is a number outside the annotated range.
    """
    allowed = hyperparameter_range(hint)
    if allowed is not None:
        _check_number(where, name, value, hint, allowed)
    elif (size := size_of(hint)) is not None:
        _check_size(where, name, value, hint, size)
    elif DTYPE in marks(hint):
        _check_dtype(where, name, value, type(None) in typing.get_args(hint))
    elif WHERE in marks(hint):
        _check_where(where, name, value, type(None) in typing.get_args(hint))
    elif DIMENSIONS in marks(hint):
        _check_dimensions(where, name, value)
    elif _is_schedule_hint(hint):
        _check_is_schedule(where, name, value)
    elif (function := _function_of(hint)) is not None:
        if value is not None or type(None) not in typing.get_args(hint):
            taken = (*typing.get_args(function), ...)[0]
            check_function(where, name, value, None if taken is ... else len(taken))
    elif _is_pair(hint):
        _check_pair(where, name, value, typing.get_args(hint))
    elif hint is bool and not isinstance(value, bool):
        raise TypeError(f"{where}: {name} must be True or False, not {value!r}")
    elif hint is str and not isinstance(value, str):
        raise ArgumentError(f"{where}: {name} must be a string, not {value!r}")


def check_integer(where: str, name: str, value: Any, least: int = 1) -> None:
    """Raise ValueError unless `value` is an integer of at least `least`, known at build time.

    For numbers that determine shapes, loops or memory, which no schedule can change.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{where}: {name} must be an integer of at least {least}, not {value!r}")


def _check_size(where: str, name: str, value: Any, hint: Any, size: Size) -> None:
    if value is None and type(None) in typing.get_args(hint):
        return
    if size.integer:
        check_integer(where, name, value, size.least)
    else:
        check_part(where, name, value)


def check_choice(where: str, name: str, value: Any, known: Collection[str]) -> None:
    """Raise ValueError unless `value` is one of some names."""
    if value not in known:
        raise ValueError(f"{where}: {name} must be one of {known}, not {value!r}")


def check_part(where: str, name: str, value: Any) -> None:
    """Raise ValueError unless `value` is a number in (0, 1] that says how much of an array counts.

    It determines shapes, so it cannot be an array or a schedule.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and 0 < value <= 1):
        raise ValueError(
            f"{where}: {name} must be a number in (0, 1], not {value!r}: it decides shapes, and "
            "cannot be an array or a schedule"
        )


def check_function(where: str, name: str, value: Any, arguments: int | None = None) -> None:
    """Raise TypeError unless `value` is a function that takes a number of arguments.

    Args:
        where: whose argument it is.
        name: the argument's name.
        value: what was given.
        arguments: how many; None for any number.
    """
    kind = "a function" if arguments is None else f"a function of {_arguments(arguments)}"
    if not callable(value):
        raise TypeError(f"{where}: {name} must be {kind}, not {value!r:.80}")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # a builtin may have none
        return
    if arguments is not None:
        try:
            signature.bind(*[None] * arguments)
        except TypeError as error:
            raise TypeError(f"{where}: {name} must be {kind}; {value!r:.80}: {error}") from None


def _arguments(count: int) -> str:
    return "one argument" if count == 1 else f"{count} arguments"


def _is_schedule_hint(hint: Any) -> bool:
    """Whether an annotation asks for a schedule, and not for a number or a schedule."""
    return typing.get_origin(hint) is Annotated and SCHEDULE in hint.__metadata__


def _function_of(hint: Any) -> Any:
    """The function that an annotation asks for, alone or beside None; otherwise None."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    parts = [x for x in typing.get_args(hint) if x is not type(None)] if union else [hint]
    return parts[0] if len(parts) == 1 and typing.get_origin(parts[0]) is Callable else None


def check_one_number(where: str, name: str, value: Any) -> None:
    """Raise ValueError if a number is an array of several."""
    if jnp.ndim(value) != 0:
        raise ValueError(f"{where}: {name} must be one number, not of the shape {jnp.shape(value)}")


def one_number(where: str, name: str, value: Any) -> Any:
    """A number without dimensions, also of an array of one, such as each device has in a mesh.

    Raises:
        ValueError: there are several numbers, or none.
    """
    if jnp.ndim(value) and jnp.size(value) == 1:
        return jnp.reshape(value, ())
    check_one_number(where, name, value)
    return value


def check_no_schedule(where: str, name: str, value: Any) -> None:
    """Raise TypeError if a number that a schedule is made of is itself a schedule."""
    if callable(value):
        raise TypeError(
            f"{where}: {name} must be a number or an array, not a schedule, {value!r:.80}; "
            "multiply_schedules and join_schedules make one schedule of several"
        )


def check_constant(where: str, arguments: Mapping[str, Any]) -> None:
    """Raise TypeError if a bound, or an argument of a projection or a penalty, is a schedule."""
    for name, value in arguments.items():
        if any(map(callable, jax.tree.leaves(value, is_leaf=callable))):
            raise TypeError(
                f"{where}: {name} must be a number or an array, not {value!r:.80}: it does not "
                "change from step to step"
            )


def _is_pair(hint: Any) -> bool:
    """Whether an annotation is a tuple of ranges, such as ``tuple[Decay, Decay]``."""
    parts = typing.get_args(hint) if typing.get_origin(hint) is tuple else ()
    return bool(parts) and all(hyperparameter_range(part) is not None for part in parts)


def _check_pair(where: str, name: str, value: Any, hints: tuple[Any, ...]) -> None:
    if not isinstance(value, tuple | list) or len(value) != len(hints):
        raise TypeError(f"{where}: {name} must be {len(hints)} numbers, not {value!r}")
    for i, (part, hint) in enumerate(zip(value, hints, strict=True)):
        if callable(part):
            raise TypeError(f"{where}: {name}[{i}] must be a number or an array, not a schedule")
        check(where, f"{name}[{i}]", part, hint)


def _check_number(where: str, name: str, value: Any, hint: Any, allowed: Range) -> None:
    optional = type(None) in typing.get_args(hint)
    if value is None and optional:
        return
    if isinstance(value, jax.Array | np.ndarray):
        _check_array(where, name, value, allowed)
        return
    if callable(value):
        if allowed.at_start:
            raise TypeError(
                f"{where}: {name} must be a number or an array, not {value!r:.80}: it says where "
                "the state begins"
            )
        _check_schedule(where, name, value)
        return
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        kinds = "or an array" if allowed.at_start else "an array, or a schedule"
        expected = f"{allowed}{' or None' if optional else ''}, {kinds}"
        raise TypeError(f"{where}: {name} must be {expected}, not {type(value).__name__} {value!r}")
    if allowed.integer and not isinstance(value, numbers.Integral):
        raise TypeError(f"{where}: {name} must be {allowed}, not {value!r}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{where}: {name} must be {allowed}, and fit into a float") from None
    if allowed.integer and number > _LARGEST:
        raise ValueError(f"{where}: {name} must be {allowed} and of 32 bits, not {value!r}")
    _check_range(where, name, value, [number], allowed)


def _check_range(where: str, name: str, value: Any, values: Sequence[Any], allowed: Range) -> None:
    """Raise ValueError unless all numbers of an argument are in its range."""
    outside = [x for x in values if x not in allowed]
    if outside:
        ascent = _ascent(where, name, outside)
        raise ValueError(f"{where}: {name} must be {allowed}, not {value!r:.80}{ascent}")


def _ascent(where: str, name: str, outside: Iterable[Any]) -> str:
    if name != "learning_rate" or not any(x < 0 for x in outside):
        return ""
    return f"; to ascend, chain(scale(-1.0), {where}(...)) turns gradients round"


def check_first_value(where: str, name: str, schedule: Any, first: Any, allowed: Range) -> None:
    """Raise ValueError if a schedule starts out of its range.

    Only the start, since steps cannot check a traced number. It is not checked when it is given to
    a builder, since calling it starts JAX's devices, before which ``jax.distributed.initialize``
    must be called.
    """
    if isinstance(first, jax.core.Tracer) or jnp.ndim(first) or float(first) in allowed:
        return
    raise ValueError(
        f"{where}: {name} must be {allowed}, and {schedule!r:.80} starts at {float(first):g}"
        f"{_ascent(where, name, [float(first)])}"
    )


def _check_dtype(where: str, name: str, value: Any, optional: bool) -> None:
    if value is None and optional:
        return
    known = value is not None and not isinstance(value, jax.Array | np.ndarray)
    try:
        # NumPy has wider types than JAX: to it "f16" is a float of 16 bytes.
        known = known and jnp.issubdtype(jnp.dtype(value), jnp.inexact)
        known = known and jnp.finfo(jnp.dtype(value)).bits <= 64
    except TypeError:
        known = False
    if not known:
        kind = f"a floating-point type{' or None' if optional else ''}"
        meant = SHORT_NAMES.get(value) if isinstance(value, str) else None
        hint = f"; write {meant!r}" if meant else ""
        raise TypeError(f"{where}: {name} must be {kind}, not {value!r:.80}{hint}")


def check_patterns(what: str, patterns: Iterable[Any], instead: str = "") -> None:
    """Raise TypeError unless these are path patterns; `instead` says what else is accepted."""
    for pattern in patterns:
        if isinstance(pattern, re.Pattern):
            raise TypeError(
                f"{what}: {pattern!r:.80} is a regular expression; write a path pattern, such as "
                f"'head' or '*/bias'{instead}"
            )
        if not isinstance(pattern, str):
            raise TypeError(f"{what}: a path pattern is a string, not {pattern!r:.80}{instead}")


def refuse_expressions(what: str, where: Any) -> None:
    """Raise TypeError if a choice of leaves is a regular expression, or a list with one."""
    choices = where if isinstance(where, list | tuple) else (where,)
    expressions = [x for x in choices if isinstance(x, re.Pattern)]
    check_patterns(what, expressions, ", or a predicate (path, leaf) -> bool")


def _check_where(where: str, name: str, value: Any, optional: bool) -> None:
    if isinstance(value, str) or (value is None and optional):
        return
    refuse_expressions(f"{where}: {name}", value)
    kinds = (
        "a path pattern or a list of them, a predicate (path, leaf) -> bool, a tree of booleans, "
        "or a function of the tree that returns one"
    )
    problem = f"{where}: {name} must be {kinds}{', or None' if optional else ''}"
    leaves = jax.tree.leaves(value)
    patterns = isinstance(value, list | tuple) and all(isinstance(x, str) for x in value)
    if _is_function(value, leaves):
        check_chooser(problem, value)
    elif not patterns and (value is None or not all(map(_is_boolean, leaves))):
        raise TypeError(f"{problem}, not {value!r:.80}")


def check_chooser(problem: str, function: Any) -> None:
    """Raise TypeError unless a function takes a tree, or a path and a leaf."""
    if (takes := _required(function)) is not None and takes not in (1, 2):
        raise TypeError(f"{problem}; {function!r:.80} takes {takes} arguments")


def _check_dimensions(where: str, name: str, value: Any) -> None:
    def is_numbers(x: Any) -> bool:
        return x is None or hasattr(x, "reduction_axis")

    if callable(value) and hasattr(value, "_fields"):  # a function that is data, as ByRole
        return
    leaves = jax.tree.leaves(value, is_leaf=is_numbers)
    if _is_function(value, leaves):
        if (takes := _required(value)) not in (None, 1):
            raise TypeError(f"{where}: {name} is called with the tree; {value!r:.80} takes {takes}")
    elif not all(map(is_numbers, leaves)):
        raise TypeError(
            f"{where}: {name} must be dimension numbers, such as MuonDimensionNumbers(0, 1), a "
            f"tree of them, a function of the tree that returns one, or None, not {value!r:.80}"
        )


def _is_function(value: Any, leaves: list[Any]) -> bool:
    """Whether `value` is a function, and not a callable tree such as an Equinox module."""
    return callable(value) and len(leaves) == 1 and leaves[0] is value


def _is_boolean(x: Any) -> bool:
    return isinstance(x, bool) or (getattr(x, "shape", None) == () and x.dtype == np.bool_)


def _required(function: Any) -> int | None:
    """How many arguments a function must be given; None if that cannot be seen."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    return sum(p.default is p.empty and p.kind is not p.VAR_KEYWORD for p in parameters)


def is_numpys_number(dtype: Any) -> bool:
    """Whether a type is one of NumPy's own booleans or numbers, in this machine's order of bytes.

    By its kind: ``isbuiltin`` is 0 for the type of an array that passed a pickle. And by its class:
    types of 8 bits that other packages add may say that they are of the same kind.
    """
    is_numpys = dtype.kind in "biufc" and issubclass(dtype.type, np.number | np.bool_)
    return is_numpys and dtype.isnative


def _check_array(where: str, name: str, value: Any, allowed: Range) -> None:
    # Tracers and typed placeholders come here too: of these the kind of number can be checked.
    kind = np.integer if allowed.integer else jnp.number
    if not jnp.issubdtype(value.dtype, kind):
        expected = "integer" if allowed.integer else "numeric"
        raise TypeError(f"{where}: {name} must be {expected}, not an array of {value.dtype}")
    bounded = allowed.low > -math.inf or allowed.high < math.inf
    if bounded and jnp.issubdtype(value.dtype, np.complexfloating):
        raise TypeError(f"{where}: {name} must be {allowed}, not an array of {value.dtype}")
    if not (is_numpys_number(value.dtype) or value.dtype == jnp.bfloat16):
        raise TypeError(
            f"{where}: {name} is an array of {value.dtype}, in which nothing can be computed: make "
            "it one of float32"
        )
    if not isinstance(value, np.ndarray) or value.dtype.kind == "c":
        return
    if value.dtype.kind in "iu" and np.any(value > _LARGEST):
        raise ValueError(f"{where}: {name} is an array of integers beyond 32 bits: {value!r:.80}")
    _check_range(where, name, value, value.ravel().tolist(), allowed)


# Schedules already checked: an optimizer passes its schedules on to the builders it is made of.
_KNOWN: weakref.WeakSet[Any] = weakref.WeakSet()


def _is_known(function: Any) -> bool:
    try:
        return function in _KNOWN
    except TypeError:  # it is not hashable, or takes no weak references
        return False


def _check_is_schedule(where: str, name: str, value: Any) -> None:
    """Raise TypeError unless `value` is a schedule, which a number is not."""
    if not callable(value):
        number = isinstance(value, numbers.Real | jax.Array | np.ndarray)
        hint = f"; constant_schedule({value!r:.20}) makes one of a number" if number else ""
        raise TypeError(f"{where}: {name} must be a schedule, not {value!r:.80}{hint}")
    check_function(where, name, value, 1)
    _check_schedule(where, name, value, swept=True)


def _check_schedule(where: str, name: str, value: Any, *, swept: bool = False) -> None:
    """Raise TypeError unless a function takes a count and returns a number, if that can be seen.

    Schedules that gradtx built are known to; one that needs its count's value is not called again.
    One that is `swept` may hold an array with a number for each run.
    """
    if hasattr(value, "declaration") or _is_known(value):
        return
    expected = f"{where}: {name} must be a number, an array or a schedule, a function of the count"
    if isinstance(value, type) or hasattr(value, "dtype"):
        raise TypeError(f"{expected}, not a type, {value!r:.80}")
    try:
        taken = inspect.signature(value).parameters
        if not taken:
            return  # a function without arguments
        inspect.signature(value).bind(None)
    except TypeError as error:
        raise TypeError(f"{expected}; {value!r:.80}: {error}") from None
    except ValueError:  # a builtin may have no signature
        pass
    try:
        # Not by itself: JAX keeps weak references to functions, and ufuncs have none.
        function = functools.partial(value)
        scheduled_value = jax.eval_shape(function, jax.ShapeDtypeStruct((), jnp.int32))
    except (jax.errors.JAXTypeError, jax.errors.UnexpectedTracerError):
        return
    except Exception as error:
        raise TypeError(f"{expected}; {value!r:.80} raised {error!r:.200}") from error
    shape = getattr(scheduled_value, "shape", None)
    if (
        shape is None
        or (shape and not swept)
        or not jnp.issubdtype(scheduled_value.dtype, jnp.number)
    ):
        raise TypeError(
            f"{expected} that returns one number; {value!r:.80} returns {scheduled_value!r:.80}"
        )
    with contextlib.suppress(TypeError):
        _KNOWN.add(value)
