"""The types that public signatures show to a type checker.

Some arguments are of one type to the caller and of another to the body: a builder takes a number,
an array or a schedule for ``b1: Decay``, and its rule computes with a number or an array. Python's
types cannot say both, so gradtx itself is checked with `Any` for these names (``follow_imports =
"skip"`` in pyproject.toml), and code that calls gradtx is checked with the types here.

A pytree may be of any class that is registered with JAX, and no type says which those are; hence
`object`, and `Any` for a state, whose fields people read (``state.count``). What a function returns
in the form in which it took it has a type variable instead: the parameters that a step returns are
of the type of those that went in.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.typing import DTypeLike

PyTree: TypeAlias = object
"""A tree of arrays, in containers of any kind."""

Params: TypeAlias = object
"""A tree of parameters, in containers of any kind."""

Updates: TypeAlias = object
"""A tree like the parameters: gradients, or what is added to the parameters."""

ArrayTree: TypeAlias = object
"""Optax's name for a tree of arrays."""

State: TypeAlias = Any
"""The state of a transformation, whose class depends on it: a checker allows every field."""

OptState: TypeAlias = Any
"""Optax's name for the state of a transformation."""

Scalar: TypeAlias = float | jax.Array | np.number[Any] | np.ndarray[Any, Any]
"""A number, or an array of one number."""

Schedule: TypeAlias = Callable[[Any], Scalar]
"""A function of the number of steps taken so far, jit-safe, that returns a number."""

ScalarOrSchedule: TypeAlias = Scalar | Schedule | Callable[[], Scalar]
"""A number, an array, a schedule, or a function without arguments that is called at each step."""

Number: TypeAlias = ScalarOrSchedule
"""A finite number, an array, or a schedule."""

LearningRate: TypeAlias = ScalarOrSchedule
"""A finite number, below 0 to ascend, an array, or a schedule."""

NonNegative: TypeAlias = ScalarOrSchedule
"""A number of at least 0, an array, or a schedule."""

Positive: TypeAlias = ScalarOrSchedule
"""A number above 0, an array, or a schedule."""

Limit: TypeAlias = ScalarOrSchedule
"""A number of at least 0, infinity included, an array, or a schedule."""

Decay: TypeAlias = ScalarOrSchedule
"""A number in [0, 1), an array, or a schedule."""

Fraction: TypeAlias = ScalarOrSchedule
"""A number in [0, 1], an array, or a schedule."""

Count: TypeAlias = ScalarOrSchedule
"""An integer of at least 0, an array, or a schedule."""

PositiveCount: TypeAlias = ScalarOrSchedule
"""An integer of at least 1, an array, or a schedule."""

InitialNumber: TypeAlias = Scalar
"""A finite number, or an array, that says where the state begins."""

InitialNonNegative: TypeAlias = Scalar
"""A number of at least 0, or an array, that says where the state begins."""

InitialPositive: TypeAlias = Scalar
"""A number above 0, or an array, that says where the state begins."""

Counter: TypeAlias = jax.Array
"""Marks a field ``i32[]`` that counts the steps taken, whatever it is called."""

DType: TypeAlias = DTypeLike
"""A type of floating-point numbers, real or complex."""

Where: TypeAlias = (
    str | Sequence[str] | Callable[[str, Any], bool] | Callable[[Any], object] | object
)
"""Chooses leaves: a path pattern (``"head"``, ``"*/bias"``) or several, a predicate ``(path, leaf)
-> bool``, a tree of booleans, or a function from the tree to such a tree."""

DimensionNumbers: TypeAlias = Callable[[Any], object] | object
"""Says which axes of a leaf are the rows and columns of a matrix."""
