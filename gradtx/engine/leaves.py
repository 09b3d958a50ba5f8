"""One leaf as a rule sees it, in whatever form gradient and slots are kept."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from gradtx.leaves.paths import path_string
from gradtx.leaves.rows import put_rows, take_rows
from gradtx.numerics import Step, cast, real_dtype, widen
from gradtx.types import Array, DType, is_stored


def _map(function: Callable[..., Any], slot: Any, *values: Any) -> Any:
    if isinstance(slot, jax.Array):  # most are, and a tree.map would double the time
        return function(slot, *values)
    return jax.tree.map(function, slot, *values, is_leaf=is_stored)


def load(slot: Any) -> Any:
    """A slot, an array or a pytree of arrays, widened to the type in which a rule computes.

    >>> load([jnp.ones(1, jnp.bfloat16), None])[0].dtype
    dtype('float32')
    """

    def loaded(x: Any) -> Any:
        if is_stored(x):
            return widen(x.load())
        return widen(as_array(x)) if hasattr(x, "dtype") else x

    return _map(loaded, slot)


def as_array(x: Any) -> Array:
    """An array of a state as one of JAX: restored states may hold NumPy's, without ``.at``."""
    return x if isinstance(x, jax.Array) else jnp.asarray(x)


def store(slot: Any, value: Any) -> Any:
    """`value` in the form and type in which `slot` is kept."""

    def stored(x: Any, new: Any) -> Any:
        return x.store(new) if is_stored(x) else cast(jnp.asarray(new), x.dtype)

    return _map(stored, slot, value)


def take(slot: Any, indices: Array) -> Any:
    """Some rows of a slot, as a rule sees them."""

    def taken(x: Any) -> Array:
        return widen(x.take(indices) if is_stored(x) else take_rows(x, indices))

    return _map(taken, slot)


def put(slot: Any, indices: Array, values: Any) -> Any:
    """A slot with other values for some of its rows."""

    def written(x: Any, new: Any) -> Any:
        return x.put(indices, new) if is_stored(x) else put_rows(x, indices, new)

    return _map(written, slot, values)


def parameter(p: Any, path: Any = ()) -> Array:
    """A trained parameter as an array: Python numbers count as floats.

    Raises:
        TypeError: it is an integer or boolean array, or not an array.
    """
    if isinstance(p, int | float) and not isinstance(p, bool):
        p = jnp.asarray(p, float)
    if not hasattr(p, "dtype") or not jnp.issubdtype(p.dtype, jnp.inexact):
        kind = getattr(p, "dtype", type(p).__name__)
        raise TypeError(
            f"the parameter at {path_string(path)!r} is {kind}: only floating-point and complex "
            "arrays can be trained; leave it out, with `trainable` of make_step or minimize, with "
            "select(params, ...) for init, describe and plan_step, or of an Equinox module with "
            "eqx.filter(model, eqx.is_inexact_array)"
        )
    return cast(p, p.dtype)  # a weak type would become strong after a step, and compile again


def gradient(g: Any, path: Any) -> Array:
    """A gradient as an array; raises TypeError if it is not floating point or complex."""
    if isinstance(g, int | float) and not isinstance(g, bool):
        g = jnp.asarray(g, float)
    if not hasattr(g, "dtype") or not jnp.issubdtype(g.dtype, jnp.inexact):
        kind = getattr(g, "dtype", type(g).__name__)
        raise TypeError(f"the gradient at {path_string(path)!r} is {kind}, not floating point")
    return g


class SlotsOfLeaf:
    """What a rule sees as `s`: slots, and scalars of the whole tree, as attributes."""

    def __init__(self, label: str, slots: dict[str, Any], scalars: dict[str, Any]) -> None:
        self.__dict__.update(slots, **scalars)
        self._label, self._names = label, list(slots)

    def names(self) -> list[str]:
        """The names of the slots."""
        return self._names

    def __getitem__(self, name: Any) -> Any:
        raise TypeError(f"{self._label}: a slot is an attribute: write s.{name}, not s[{name!r}]")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = ", ".join(n for n in vars(self) if n[0] != "_") or "none"
        raise AttributeError(f"{self._label}: there is no slot {name!r}; the slots are {known}")


class NoStep:
    """The argument `t` of a rule whose state counts no steps; an error if the rule uses it."""

    def __init__(self, label: str, state: Any) -> None:
        self._label, self._state = label, state.__name__

    def _refuse(self) -> Any:
        raise TypeError(
            f"{self._label}: the rule uses the step, and {self._state} counts none: give it a "
            "field annotated Counter"
        )

    def __getattr__(self, name: str) -> Any:
        return None if name.startswith("__") else self._refuse()

    def __jax_array__(self) -> Any:
        return self._refuse()

    def __pow__(self, other: Any) -> Any:
        return self._refuse()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __pow__
    __truediv__ = __rtruediv__ = __rpow__ = __lt__ = __le__ = __gt__ = __ge__ = __pow__
    __mod__ = __pow__

    def __neg__(self) -> Any:
        return self._refuse()

    def __eq__(self, other: object) -> Any:
        return self._refuse()

    def __ne__(self, other: object) -> Any:
        return self._refuse()

    __hash__ = object.__hash__


class Steps:
    """The number of the step as a `Step`, one for each type in which leaves are computed."""

    def __init__(self, label: str, state: Any, count: Array | None) -> None:
        self._count = count
        self._steps: dict[Any, Step] = {}
        self._none: Any = NoStep(label, state) if count is None else None

    def of(self, dtype: DType, leaf: Any = None) -> Any:
        """The step in the type in which a leaf is computed, for the leaf of this number."""
        if self._count is None:
            return self._none
        dtype = real_dtype(dtype)
        if dtype not in self._steps:
            self._steps[dtype] = Step(self._count, dtype)
        step = self._steps[dtype]
        return step if leaf is None else step.of_leaf(leaf)

    @contextlib.contextmanager
    def in_another_trace(self) -> Iterator[None]:
        """A context at whose end the steps forget what they have computed in it."""
        before = self._steps
        self._steps = {dtype: step.branched() for dtype, step in before.items()}
        try:
            yield
        finally:
            self._steps = before

    def anew(self, dtype: DType) -> Any:
        """A new `Step` for a function that is traced by itself, whose scalars none may share."""
        return Step(self._count, real_dtype(dtype)) if self._count is not None else self._none


def fits(slot: Any, shape: tuple[int, ...], *, whole: bool) -> bool:
    """Whether a slot's shape suits a leaf: equal lengths, or 1 where the slot was reduced.

    Args:
        slot: the slot.
        shape: the leaf's.
        whole: whether a slot is an array of the leaf's shape, or several of them in a stack.
    """
    if slot is None:
        return False
    if not hasattr(slot, "shape"):
        return True
    if whole:
        return tuple(slot.shape[max(len(slot.shape) - len(shape), 0) :]) == shape
    if len(slot.shape) != len(shape):
        return True
    return all(a in (1, b) for a, b in zip(slot.shape, shape, strict=True))
