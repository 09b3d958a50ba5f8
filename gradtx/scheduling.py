"""The decorator that makes a schedule's builder declare it."""

from collections.abc import Callable
from typing import Any, ParamSpec

import jax

from gradtx.declaration import Builder, Declaration, Declared, publish

_P = ParamSpec("_P")


@jax.tree_util.register_pytree_node_class
class DeclaredSchedule(Declared):
    """A schedule ``count -> value`` that knows what built it: it prints, compares and pickles.

    >>> import gradtx
    >>> gradtx.linear_schedule(0.0, 1.0, 10)
    linear_schedule(init_value=0.0, end_value=1.0, transition_steps=10, transition_begin=0)
    """

    declaration: Declaration

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self._function: Callable[[Any], Any] | None = None

    def __call__(self, count: Any) -> Any:
        """The value at the step after `count` steps."""
        if self._function is None:
            self._function = self.declaration.builder.call(self.declaration.arguments)
        return self._function(count)

    def tree_flatten(self) -> tuple[Any, Any]:
        return self.declaration.flatten()

    @classmethod
    def tree_unflatten(cls, structure: Any, arrays: Any) -> "DeclaredSchedule":
        return cls(Declaration.unflatten(structure, arrays))

    def __repr__(self) -> str:
        return repr(self.declaration)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeclaredSchedule):
            return NotImplemented
        return self.declaration == other.declaration

    def __hash__(self) -> int:
        return hash(self.declaration)

    def __reduce__(self) -> Any:
        return _rebuild, (self.declaration.builder, self.declaration.arguments)


def _rebuild(builder: Builder, arguments: dict[str, Any]) -> DeclaredSchedule:
    return DeclaredSchedule(Declaration(builder, arguments))


def schedule(function: Callable[_P, Callable[[Any], Any]]) -> Callable[_P, DeclaredSchedule]:
    """Make a builder of schedules return data: a `DeclaredSchedule`.

    Args:
        function: the builder; it returns a jit-safe function ``count -> value``.

    >>> import gradtx
    >>> @gradtx.schedule
    ... def inverse_time(init_value: gradtx.Number, rate: gradtx.NonNegative):
    ...     return lambda count: init_value / (1 + rate * count)
    >>> inverse_time(1.0, rate=0.5)(2)
    0.5
    """
    builder = Builder(function, native=True)

    def build(*args: Any, **kwargs: Any) -> DeclaredSchedule:
        made = DeclaredSchedule(Declaration(builder, builder.bind(*args, **kwargs)))
        made._function = builder.call(made.declaration.arguments)
        return made

    return publish(build, builder)
