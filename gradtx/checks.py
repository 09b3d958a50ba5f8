"""Ranges of hyperparameters, stated as annotations and checked before any work is done.

A builder writes ``b1: Decay = 0.9``; :func:`check` reads the annotation. Only Python numbers (and
NumPy scalars) are checked: an array may be traced, and its value unknown.
"""

import math
import numbers
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Range:
    """The values that a hyperparameter may take: an interval whose ends are included or not."""

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False
    integer: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        return above and below

    def __str__(self) -> str:
        left, right = "(" if self.low_open else "[", ")" if self.high_open else "]"
        kind = "an integer" if self.integer else "a number"
        return f"{kind} in {left}{self.low:g}, {self.high:g}{right}"


# `Any` because the caller may pass a number, an array or a schedule, and the body sees a number or
# an array: Python's types cannot say both.
Number: TypeAlias = Annotated[Any, Range(low_open=True, high_open=True)]
NonNegative: TypeAlias = Annotated[Any, Range(0.0, high_open=True)]
Positive: TypeAlias = Annotated[Any, Range(0.0, low_open=True, high_open=True)]
Limit: TypeAlias = Annotated[Any, Range(0.0)]
Decay: TypeAlias = Annotated[Any, Range(0.0, 1.0, high_open=True)]
Fraction: TypeAlias = Annotated[Any, Range(0.0, 1.0)]
Count: TypeAlias = Annotated[Any, Range(0, high_open=True, integer=True)]
PositiveCount: TypeAlias = Annotated[Any, Range(1, high_open=True, integer=True)]


def hyperparameter_range(hint: Any) -> Range | None:
    """The range that an annotation declares, or None if it declares none."""
    if typing.get_origin(hint) is Annotated:
        return next((m for m in hint.__metadata__ if isinstance(m, Range)), None)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(filter(None, map(hyperparameter_range, typing.get_args(hint))), None)
    return None


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
    elif _is_pair(hint):
        _check_pair(where, name, value, typing.get_args(hint))
    elif hint is bool and not isinstance(value, bool):
        raise TypeError(f"{where}: {name} must be True or False, not {value!r}")
    elif hint is str and not isinstance(value, str):
        raise TypeError(f"{where}: {name} must be a string, not {value!r}")


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
        # Tracers and typed placeholders come here too: only the kind of number can be checked.
        if not jnp.issubdtype(value.dtype, jnp.number):
            raise TypeError(f"{where}: {name} must be numeric, not an array of {value.dtype}")
        return
    if callable(value):
        return
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real | np.number):
        expected = f"{allowed}{' or None' if optional else ''}, an array, or a schedule"
        raise TypeError(f"{where}: {name} must be {expected}, not {type(value).__name__} {value!r}")
    if allowed.integer and not isinstance(value, numbers.Integral):
        raise TypeError(f"{where}: {name} must be {allowed}, not {value!r}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{where}: {name} must be {allowed}, and fit into a float") from None
    if number not in allowed:
        ascent = name == "learning_rate" and number < 0
        instead = f"; to ascend, chain(scale(-1.0), {where}(...)) turns gradients round"
        raise ValueError(
            f"{where}: {name} must be {allowed}, not {value!r}{instead if ascent else ''}"
        )
