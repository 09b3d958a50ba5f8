"""The names that signatures and state classes share."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeAlias

import jax

Array: TypeAlias = jax.Array
PyTree: TypeAlias = Any
Params: TypeAlias = Any
Updates: TypeAlias = Any
State: TypeAlias = Any
OptState: TypeAlias = State
DType: TypeAlias = Any
Schedule: TypeAlias = Callable[[Any], Any]
"""A function of the number of steps taken so far, jit-safe, that returns a number."""

ScalarOrSchedule: TypeAlias = float | Array | Schedule

Counter: TypeAlias = Any
"""A field ``count: i32[]`` of a state; `Any`, since no field may retype ``tuple.count``."""

SLOT = "slot"
Slots: TypeAlias = Annotated[Any, SLOT]
"""Marks a field of a state class that mirrors the parameters: one slot for each leaf."""


class EmptyState(NamedTuple):
    """The state of a transformation that keeps none."""
