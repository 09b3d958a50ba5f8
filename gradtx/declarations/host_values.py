"""Hyperparameters that are functions without arguments, called at each step for their value."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback


@jax.tree_util.register_pytree_node_class
class HostValue:
    """A function without arguments as a schedule, which ignores the step.

    Args:
        function: ``() -> value``, a number or an array of one entry.
        value: its result, for the step to use. If it is None the step itself, compiled or not,
            calls the function through a host callback.

    >>> HostValue(lambda: 0.5)(7)
    Array(0.5, dtype=float32)
    """

    def __init__(self, function: Callable[[], Any], value: Any = None) -> None:
        self.function = function
        self.value = value

    @property
    def __name__(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))

    def __call__(self, count: Any) -> Any:
        """The value now."""
        del count
        if self.value is not None:
            return self.value
        # Not a pure callback, which may be called once for all iterations of a loop.
        kind = jax.ShapeDtypeStruct((), jnp.result_type(float))
        return io_callback(lambda: self._now(kind.dtype), kind)

    def evaluated(self) -> "HostValue":
        """The function with the value that it returns now."""
        return HostValue(self.function, jnp.asarray(self._now(jnp.result_type(float))))

    def _now(self, dtype: Any) -> np.ndarray:
        value = np.asarray(self.function())
        if value.size != 1 or not jnp.issubdtype(value.dtype, jnp.number):
            raise TypeError(f"{self.__name__} must return one number, not {value!r:.80}")
        return value.astype(dtype).reshape(())

    def tree_flatten(self) -> tuple[tuple[Any], Callable[[], Any]]:
        return (self.value,), self.function

    @classmethod
    def tree_unflatten(cls, function: Callable[[], Any], children: Any) -> "HostValue":
        return cls(function, *children)

    def __repr__(self) -> str:
        return self.__name__


def as_schedule(value: Any) -> Any:
    """`value`, as a schedule if it is a function without arguments."""
    return HostValue(value) if callable(value) and _takes_nothing(value) else value


def _takes_nothing(function: Callable[..., Any]) -> bool:
    try:
        return not inspect.signature(function).parameters
    except (ValueError, TypeError):  # a builtin may have no signature
        return False
