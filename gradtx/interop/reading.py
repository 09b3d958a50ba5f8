"""Readers of other libraries' data: options by key, arrays one after another."""

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.leaves.paths import leaves_with_path, map_with_paths, path_string
from gradtx.schedules.decay import exponential_decay
from gradtx.schedules.piecewise import piecewise_constant_schedule
from gradtx.schedules.products import multiply_schedules
from gradtx.types import Params, Schedule, State, slot_fields

REQUIRED: Any = object()
_LARGEST = float(np.finfo(np.float32).max)


def powers(start: float, steps: int, factor: float, staircase: bool) -> Schedule:
    """Exponential decay as in PyTorch and Keras, where a factor of 0 ends the rate."""
    if factor == 0:
        return piecewise_constant_schedule(start, {steps if staircase else 1: 0.0})
    return exponential_decay(start, steps, factor, staircase=staircase)


class Options:
    """A foreign configuration; an option that is missing, left over or of a wrong type is an error.

    Args:
        where: what it configures, for error messages.
        values: the options by name.
    """

    def __init__(self, where: str, values: Any) -> None:
        if not isinstance(values, Mapping):
            raise TypeError(f"{where}: the options must be a dict, not {type(values).__name__}")
        self.where = where
        self.values = values
        self._unread = dict.fromkeys(values)

    def take(self, key: str, default: Any = REQUIRED) -> Any:
        """The value of the option `key`, without a check of its type."""
        self._unread.pop(key, None)
        if key in self.values:
            return self.values[key]
        if default is REQUIRED:
            known = ", ".join(map(repr, self.values)) or "nothing"
            raise ValueError(f"{self.where}: the option {key!r} is missing; there is {known:.300}")
        return default

    def number(self, key: str, default: Any = REQUIRED) -> float:
        """The option `key`, which must be a finite number."""
        return finite(f"{self.where}: {key}", self.take(key, default))

    def optional(self, key: str, default: Any = None) -> float | None:
        """The option `key`, a finite number or None; it may be missing if there is a default."""
        value = self.take(key, default)
        return None if value is None else finite(f"{self.where}: {key}", value)

    def integer(self, key: str, default: Any = REQUIRED) -> int:
        """The option `key`, which must be an integer."""
        value = self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise TypeError(f"{self.where}: {key} must be an integer, not {value!r:.80}")
        return int(value)

    def whole(self, key: str) -> int:
        """The option `key`, an integer or a float without a fraction."""
        number = self.number(key)
        if not number.is_integer():
            raise TypeError(f"{self.where}: {key} must be an integer, not {number!r}")
        return int(number)

    def flag(self, key: str, default: Any = REQUIRED) -> bool:
        """The option `key`, which must be true or false."""
        value = self.take(key, default)
        if not isinstance(value, bool):
            raise TypeError(f"{self.where}: {key} must be true or false, not {value!r:.80}")
        return value

    def pair(self, key: str) -> tuple[float, float]:
        """The option `key`, which must be two numbers."""
        value = self.take(key)
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise TypeError(f"{self.where}: {key} must be two numbers, not {value!r:.80}")
        first, second = (finite(f"{self.where}: {key}", v) for v in value)
        return first, second

    def skip(self, *keys: str) -> None:
        """Count options as read that do not change what gradtx computes."""
        for key in keys:
            self._unread.pop(key, None)

    def is_unread(self, key: str) -> bool:
        """Whether the option `key` is given and has not been read yet."""
        return key in self._unread

    def finish(self) -> None:
        """Raise ValueError if an option was not read."""
        if self._unread:
            raise ValueError(
                f"{self.where}: unknown options {', '.join(map(repr, self._unread)):.300}"
            )


def finite(where: str, value: Any) -> float:
    """A number of Python, NumPy or another library (such as an array with one entry) as a float."""
    if not isinstance(value, numbers.Real | np.generic) and hasattr(value, "item"):
        try:
            value = value.item()
        except (RuntimeError, ValueError) as error:  # it has several entries, none, or no data
            shape = tuple(np.shape(value))
            raise TypeError(
                f"{where} must be one number, not {type(value).__name__} of shape {shape}"
            ) from error
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise TypeError(f"{where} must be a number, not {type(value).__name__} {value!r:.80}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not abs(number) <= _LARGEST:
        raise ValueError(f"{where} must be a finite number of float32, not {value!r:.80}")
    return number


def steps_taken(where: str, value: Any) -> int:
    """A number of steps: an integer, of any type, that a counter here can hold."""
    steps = finite(where, value)
    if not (steps.is_integer() and 0 <= steps < 2**31):
        raise ValueError(f"{where} must be an integer of at least 0 and below 2**31, not {steps:g}")
    return int(steps)


def multiplied(rate: Any, factor: float) -> Any:
    """A number, or a schedule, times a number."""
    return multiply_schedules(rate, factor) if callable(rate) else rate * factor


def arrays(params: Params) -> Params:
    """Parameters of any library as JAX arrays."""
    return jax.tree.map(_parameter, params)


def _parameter(p: Any) -> jax.Array:
    if not hasattr(p, "detach"):
        return jnp.asarray(p)
    kind = jax.dtypes.canonicalize_dtype(str(p.dtype).removeprefix("torch."))
    return jnp.asarray(array("a parameter", p), kind)


class Leaf(NamedTuple):
    """A parameter: path, shape, name in the other library, and whether weight decay applies."""

    path: str
    shape: tuple[int, ...]
    name: str
    decays: bool = True


def ordered(
    params: Params,
    order: Sequence[str] | None,
    names: Sequence[str] | None = None,
    shapes: Sequence[tuple[int, ...]] | None = None,
    *,
    matters: bool = True,
    grouped: bool = False,
) -> list[Leaf]:
    """The leaves of `params` in the order of the other library.

    Args:
        params: the parameters here.
        order: their paths in that order; None to find the order by `names`, or to take that of the
            tree if no leaf can be mistaken for another.
        names: the names of the parameters in the other library.
        shapes: their shapes in the other library.
        matters: whether there is anything that could be given to the wrong leaf.
        grouped: whether a mistake would go unnoticed even between leaves of different shapes.

    Raises:
        ValueError: `order` does not name every leaf once, the leaves are not those of the other
            library, or they cannot be told apart.
    """
    keyed = [(path, leaf) for path, leaf in leaves_with_path(params)[0] if leaf is not None]
    leaf_shapes = {path_string(path): tuple(np.shape(leaf)) for path, leaf in keyed}
    if order is not None and (isinstance(order, str) or sorted(order) != sorted(leaf_shapes)):
        shown_order = order if isinstance(order, str) else list(order)
        raise ValueError(
            f"order must be a list that names every leaf once, in the order of the parameters "
            f"there: it is {shown_order!r}, the leaves are {list(leaf_shapes)}"
        )
    if names is not None and len(names) != len(leaf_shapes):
        raise ValueError(
            f"there are {len(names)} trained variables there ({', '.join(names):.200}), and "
            f"{len(leaf_shapes)} leaves here ({', '.join(leaf_shapes):.200})"
        )
    if order is None:
        order = None if names is None else _by_name(list(leaf_shapes), names)
    if order is None:
        in_a_row = all(isinstance(k, jax.tree_util.SequenceKey) for path, _ in keyed for k in path)
        alike = len(set(leaf_shapes.values())) < len(leaf_shapes) or (grouped and shapes is None)
        if matters and alike and not in_a_row and len(leaf_shapes) > 1:
            there = "" if names is None else f" ({', '.join(names):.200})"
            raise ValueError(
                f"nothing says which of the leaves {', '.join(leaf_shapes):.200} is which "
                f"parameter there{there}: give order={list(leaf_shapes)}, if that is theirs, or a "
                "list of arrays in their order; PyTorch's named_parameters() say it by themselves"
            )
        order = list(leaf_shapes)
    leaves = [
        Leaf(path, leaf_shapes[path], name)
        for path, name in zip(order, order if names is None else names, strict=True)
    ]
    for i, (leaf, shape) in enumerate(zip(leaves, shapes or (), strict=bool(shapes))):
        if leaf.shape != shape:
            there = f"parameter {i}" if names is None else leaf.name
            raise ValueError(
                f"{there} there has the shape {shape}, and the leaf {leaf.path!r} here "
                f"{leaf.shape}: give their order, order=[...] with the paths of the leaves in the "
                "order of the parameters there"
                + ("" if names is not None else ", or make the optimizer with named_parameters()")
                + _turned(shape, leaf.shape)
            )
    return leaves


def _turned(there: Sequence[int], here: Sequence[int]) -> str:
    """The advice if a leaf is the transpose of a parameter; empty for other shapes."""
    if tuple(here) != tuple(there)[::-1]:
        return ""
    return (
        ". If it is transposed here, as a kernel of PyTorch often is, hand over what has the "
        "layout there, and transpose afterwards, the slots too: "
        "state = gradtx.tree.map_params(tx, turn, state), params = jax.tree.map(turn, params)"
    )


def _by_name(paths: Sequence[str], names: Sequence[str]) -> list[str] | None:
    """The paths in the order of the names; None unless each name stands for one of them.

    Either may have a longer prefix than the other: ``sequential/dense/kernel``, ``dense.kernel``.
    """
    ours = {path.replace(".", "/"): path for path in paths}
    order = []
    for name in (name.replace(".", "/") for name in names):
        meant = [name] if name in ours else [p for p in ours if _ends_alike(p, name)]
        if len(meant) != 1:
            return None
        order.append(ours[meant[0]])
    return order if len(set(order)) == len(paths) else None


def _ends_alike(a: str, b: str) -> bool:
    return a.endswith(f"/{b}") or b.endswith(f"/{a}")


def literal(path: str) -> str:
    """A pattern that matches only `path`."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in path)


class Arrays:
    """Arrays that are taken one after another, each checked."""

    def __init__(self, where: str, values: Iterable[Any] | Mapping[str, Any]) -> None:
        if isinstance(values, Mapping):
            try:
                values = [values[str(i)] for i in range(len(values))]
            except KeyError as error:
                raise ValueError(
                    f"{where}: the variables must be numbered '0', '1', ...; {error} is missing"
                ) from None
        self.where = where
        self.values = list(values)
        self._next = 0

    def take(self, what: str, shape: tuple[int, ...], integer: bool = False) -> np.ndarray:
        """The next array, which must have this shape and kind of number."""
        if self._next == len(self.values):
            raise ValueError(
                f"{self.where}: there are {len(self.values)} variables, and more are needed: the "
                f"next would be {what}"
            )
        value = array(f"{self.where}: variable {self._next}, {what},", self.values[self._next])
        self._next += 1
        where = f"{self.where}: variable {self._next - 1}, {what}, must"
        if value.shape != shape:
            raise ValueError(f"{where} have the shape {shape}, not {value.shape}")
        kinds = np.integer if integer else jnp.inexact
        if not jnp.issubdtype(value.dtype, kinds):
            raise TypeError(f"{where} be {'integer' if integer else 'float'}, not {value.dtype}")
        return value

    def finish(self) -> None:
        """Raise ValueError if an array has not been taken."""
        if self._next < len(self.values):
            raise ValueError(
                f"{self.where}: there are {len(self.values)} variables, and {self._next} are needed"
            )


def array(where: str, value: Any) -> np.ndarray:
    """An array or tensor of any library as a NumPy array."""
    try:
        if hasattr(value, "detach"):  # PyTorch
            value = value.detach().cpu()
            value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        as_numpy = np.asarray(value)
    except (RuntimeError, ValueError, TypeError) as error:
        raise TypeError(f"{where} is not an array: {error}") from None
    if not (jnp.issubdtype(as_numpy.dtype, jnp.number)):
        raise TypeError(f"{where} is {as_numpy.dtype}, not an array of numbers")
    return as_numpy


def filled(
    state: State, slots: Mapping[str, Mapping[str, Any]], scalars: Mapping[str, Any]
) -> State:
    """A state with new values in its slots, by name and path, and in its counters, by name.

    A scalar may be named after its state's class too: ``"EmaParamsState.count"``.

    Raises:
        ValueError: an array does not have the shape of its slot, is complex where the slot is real,
            or is not finite in the type of the slot.
    """
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        cls: Any = type(state)
        new = {}
        for name in state._fields:
            old = getattr(state, name)
            full = f"{cls.__name__}.{name}"
            if name in slot_fields(cls):
                new[name] = _filled_slot(name, old, slots.get(name, {}))
            elif full in scalars or name in scalars:
                new[name] = jnp.asarray(scalars.get(full, scalars.get(name)), old.dtype)
            else:
                new[name] = filled(old, slots, scalars)
        return cls(**new)
    if isinstance(state, dict):
        return type(state)((k, filled(v, slots, scalars)) for k, v in state.items())
    if isinstance(state, tuple | list):
        return type(state)(filled(v, slots, scalars) for v in state)
    return state


def _cast(where: str, value: Any, dtype: Any) -> jax.Array:
    as_numpy = np.asarray(value)
    if jnp.iscomplexobj(as_numpy) and not jnp.issubdtype(dtype, jnp.complexfloating):
        raise ValueError(f"{where} is real, and the value is {as_numpy.dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = as_numpy.astype(dtype)
    if not (np.isfinite(as_numpy).all() and np.isfinite(cast).all()):
        raise ValueError(f"{where} would not be finite in {np.dtype(dtype).name}")
    # A copy of its own: states are donated, and these arrays belong to someone else.
    return jnp.array(cast, copy=True)


def _filled_slot(name: str, tree: Any, values: Mapping[str, Any]) -> Any:
    def on_leaf(path: Any, old: Any) -> Any:
        at = path_string(path)
        if old is None or at not in values:
            return old
        if np.shape(values[at]) != old.shape:
            raise ValueError(
                f"the slot {name!r} of {at!r} has the shape {old.shape}, not {np.shape(values[at])}"
                + _turned(np.shape(values[at]), old.shape)
            )
        return _cast(f"the slot {name!r} of {at!r}", values[at], old.dtype)

    return map_with_paths(on_leaf, tree, is_leaf=lambda x: x is None)
