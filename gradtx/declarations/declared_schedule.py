"""The decorator that makes a schedule's builder declare it, and values known only at run time."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax

from gradtx.checks import check_no_schedule, marks
from gradtx.declarations.declaration import Builder, Declaration, Declared, DeclaredData, publish
from gradtx.declarations.host_values import HostValue
from gradtx.numerics import signed
from gradtx.types import SCHEDULE, Scalar

_P = ParamSpec("_P")
_D = TypeVar("_D", bound=Declared)


@jax.tree_util.register_pytree_node_class
class DeclaredSchedule(DeclaredData):
    """A schedule ``count -> value`` that knows what built it: it prints, compares and pickles.

    >>> import gradtx
    >>> gradtx.linear_schedule(0.0, 1.0, 10)
    linear_schedule(init_value=0.0, end_value=1.0, transition_steps=10, transition_begin=0)
    """

    _function: Callable[[Any], Any] | None = None

    def __call__(self, count: Any) -> Scalar:
        """The value at the step after `count` steps."""
        if self._function is None:
            self._function = self.declaration.builder.call(self.declaration.arguments)
        return self._function(signed(count))

    def __reduce__(self) -> Any:
        return _rebuild, (self.declaration.builder, self.declaration.arguments)


def _rebuild(builder: Builder, arguments: dict[str, Any]) -> DeclaredSchedule:
    return DeclaredSchedule(Declaration(builder, builder.recorded(arguments)))


def schedule(function: Callable[_P, Callable[[Any], Any]]) -> Callable[_P, DeclaredSchedule]:
    """Make a builder of schedules return data: a `DeclaredSchedule`.

    Args:
        function: the builder; it returns a jit-safe function ``count -> value``.

    >>> import gradtx
    >>> @gradtx.schedule
    ... def inverse_time(init_value: gradtx.checks.Number, rate: gradtx.checks.NonNegative):
    ...     return lambda count: init_value / (1 + rate * count)
    >>> inverse_time(1.0, rate=0.5)(2)
    0.5
    """
    builder = Builder(function, native=True)

    def build(*args: Any, **kwargs: Any) -> DeclaredSchedule:
        arguments = builder.bind(*args, **kwargs)
        for name in filter(builder.is_number, arguments):
            if SCHEDULE not in marks(builder.hints[name]):
                check_no_schedule(builder.name, name, arguments[name])
        declared = DeclaredSchedule(Declaration(builder, arguments))
        declared._function = builder.call(declared.declaration.arguments)
        return declared

    return publish(build, builder, schedules=False)


def evaluated(tx: _D) -> _D:
    """A transformation with its functions without arguments replaced by their current values.

    For a step of your own; :func:`make_step` is preferred, and does it by itself.

    A hyperparameter may be a function without arguments, ``sgd(lambda: rate)``. :func:`make_step`
    calls it before each step and passes its value to the compiled step as an array; so does
    ``step(evaluated(tx), ...)`` with a step of your own that takes `tx` as an argument. Otherwise a
    compiled step calls the function through a host callback each time, which an exported program
    cannot do; the function must then not use JAX itself. The same applies to a function given to
    :func:`inject_hyperparams`.

    Args:
        tx: a transformation, or a schedule.

    Returns:
        `tx` with the functions' values as arrays, for the same state; `tx` itself if it has none.

    >>> import gradtx
    >>> rate = 0.5
    >>> tx = gradtx.sgd(lambda: rate)
    >>> step = jax.jit(lambda tx, p, s: gradtx.apply_gradients(tx, 1.0, p, s)[0])
    >>> float(step(evaluated(tx), 1.0, tx.init(1.0)))
    0.5
    >>> rate = 0.25
    >>> float(step(evaluated(tx), 1.0, tx.init(1.0)))
    0.75
    """
    declaration = getattr(tx, "declaration", None)  # another library's pair has none
    if declaration is None or not reads_host(tx):
        return tx
    leaves, treedef = _parts(declaration)

    def now(x: Any) -> Any:
        if isinstance(x, Declared):
            return evaluated(x)
        return x.evaluated() if isinstance(x, HostValue) else x

    new = list(map(now, leaves))
    remade: Any = type(tx)
    arguments: Any = jax.tree.unflatten(treedef, new)
    return remade.declared(Declaration(declaration.builder, arguments))


def reads_host(tx: Declared) -> bool:
    """Whether a hyperparameter somewhere in `tx` is a function without arguments."""
    leaves = [] if tx.declaration is None else _parts(tx.declaration)[0]
    return any(
        isinstance(x, HostValue) or (isinstance(x, Declared) and reads_host(x)) for x in leaves
    )


def _parts(declaration: Declaration) -> tuple[list[Any], Any]:
    """The arguments, with declared objects and functions without arguments as leaves."""
    return jax.tree.flatten(
        declaration.arguments, is_leaf=lambda x: isinstance(x, Declared | HostValue)
    )
