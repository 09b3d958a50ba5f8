"""Looking into transformations and states: hyperparameters, slots, sizes."""

import functools
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from gradtx import checks
from gradtx.declaration import Declaration
from gradtx.pair import GradientTransformation
from gradtx.paths import is_leaf, leaves_with_path, path_string
from gradtx.types import SLOT, Params, PyTree, State


def _children(tx: Any) -> Iterator[tuple[str, Any]]:
    """The transformations among the arguments of one, with what they are called there."""
    for name, value in tx.declaration.arguments.items() if tx.declaration is not None else ():
        kind = tx.declaration.builder.signature.parameters[name].kind
        variadic = kind is kind.VAR_POSITIONAL
        yield from _transformations(value, "" if variadic else name)


def _transformations(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    def join(key: Any) -> str:
        return f"{name}.{key}" if name else str(key)

    if isinstance(value, GradientTransformation):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _transformations(item, join(key))
    elif isinstance(value, list | tuple):
        if len(value) == 2 and isinstance(value[0], str):
            yield from _transformations(value[1], join(value[0]))
            return
        for i, item in enumerate(value):
            pair = isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)
            yield from _transformations(item, name if pair else join(i))


def _child_state(tx: GradientTransformation, name: str, position: int, state: State) -> State:
    """The part of the state of `tx` that belongs to a child, or all of it if that is not known."""
    children = sum(1 for _ in _children(tx))
    for field in getattr(state, "_fields", ()):
        if _holds_inner(state, field):  # a wrapper's state; under a label for each group
            label = name.rsplit(".", maxsplit=1)[-1]
            return _child_state(tx, label, position, getattr(state, field))
    if isinstance(state, dict) and name in state:
        return state[name]
    if type(state) is tuple and len(state) == children:
        return state[position]
    return state


def _first_count(state: State) -> Any:
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        if path and getattr(path[-1], "name", None) == "count":
            return leaf
    return 0


def hyperparams(tx: GradientTransformation, state: State | None = None) -> dict[str, Any]:
    """The hyperparameters in force at the next step, by path.

    Args:
        tx: the transformation.
        state: its state, which says at which step schedules are evaluated; None for the start.

    Returns:
        ``{path: value}``. The path of an argument of `tx` itself is its name; below it, the
        positions or names of the transformations that lead to it: ``"1.learning_rate"``.

    >>> import gradtx
    >>> tx = gradtx.chain(gradtx.clip(1.0), gradtx.sgd(gradtx.linear_schedule(1.0, 0.0, 10)))
    >>> {k: float(v) for k, v in hyperparams(tx).items() if v is not None}
    {'0.max_delta': 1.0, '1.learning_rate': 1.0}
    """
    if tx.declaration is None:
        return {}
    found: dict[str, Any] = {}
    hints = tx.declaration.builder.hints
    for name, value in tx.declaration.arguments.items():
        if checks.hyperparameter_range(hints.get(name)) is not None:
            found[name] = value(_first_count(state)) if callable(value) else value
    for i, (name, child) in enumerate(_children(tx)):
        part = None if state is None else _child_state(tx, name, i, state)
        found |= {f"{name}.{key}": v for key, v in hyperparams(child, part).items()}
    return found


def _argument_paths(tx: Any, prefix: str = "") -> Iterator[str]:
    if tx.declaration is None:
        return
    for name, parameter in tx.declaration.builder.signature.parameters.items():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            yield prefix + name
    for name, child in _children(tx):
        yield from _argument_paths(child, f"{prefix}{name}.")


def replace(
    tx: GradientTransformation, paths: dict[str, Any] | None = None, /, **arguments: Any
) -> GradientTransformation:
    """A transformation like `tx` with other arguments, on which the old state goes on.

    Args:
        tx: the transformation.
        paths: new values by path, as :func:`hyperparams` writes it: ``{"1.learning_rate": 0.1}``.
        arguments: new values by name, for an argument of `tx` itself or one that occurs once below.

    Returns:
        The new transformation. Nothing is compiled again where an array takes an array's place.

    Raises:
        ValueError: there is no argument of that name, or it occurs more than once (the error lists
            the paths), or the value is out of range.

    >>> import gradtx
    >>> tx = gradtx.chain(gradtx.clip(1.0), gradtx.sgd(0.1))
    >>> replace(tx, learning_rate=0.5)
    chain(clip(max_delta=1.0), sgd(learning_rate=0.5))
    """
    known = list(_argument_paths(tx))
    wanted: dict[str, Any] = {}
    for name, value in {**(paths or {}), **arguments}.items():
        if name in known:
            wanted[name] = value
            continue
        full = [path for path in known if path.endswith(f".{name}")]
        if len(full) != 1:
            problem = f"occurs at {', '.join(full)}: give the path" if full else "does not exist"
            raise ValueError(f"replace: {name!r} {problem}; the arguments are {', '.join(known)}")
        wanted[full[0]] = value
    return _replaced(tx, wanted)


def _replaced(tx: Any, wanted: dict[str, Any]) -> Any:
    if not wanted:
        return tx
    declaration: Declaration = tx.declaration
    builder, arguments = declaration.builder, dict(declaration.arguments)
    below = {path: value for path, value in wanted.items() if "." in path}
    for name, value in arguments.items():
        kind = builder.signature.parameters[name].kind
        arguments[name] = _map_transformations(
            value,
            "" if kind is kind.VAR_POSITIONAL else name,
            lambda child, at: _replaced(
                child,
                {p.removeprefix(f"{at}."): v for p, v in below.items() if p.startswith(f"{at}.")},
            ),
        )
    arguments |= {path: value for path, value in wanted.items() if "." not in path}
    bound = builder.signature.bind_partial()
    bound.arguments.update(arguments)
    checked = builder.bind(*bound.args, **bound.kwargs)
    return type(tx).declared(Declaration(builder, checked))


def _map_transformations(value: Any, name: str, function: Callable[[Any, str], Any]) -> Any:
    """`value` with `function` on the transformations in it, named as `_transformations` does."""
    by_path = dict(_transformations(value, name))
    if not by_path:
        return value
    results = iter([function(child, at) for at, child in by_path.items()])

    def is_tx(x: Any) -> bool:
        return isinstance(x, GradientTransformation)

    return jax.tree.map(lambda x: next(results) if is_tx(x) else x, value, is_leaf=is_tx)


@functools.cache
def _slot_fields(cls: Any) -> frozenset[str]:
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except (NameError, TypeError):
        return frozenset()
    return frozenset(n for n, h in hints.items() if SLOT in getattr(h, "__metadata__", ()))


def _holds_inner(state: Any, name: str) -> bool:
    """Whether a field holds what a wrapper wraps, whose slots are called as without it."""
    wrapped = [f for f in state._fields if f.endswith(("_state", "_states"))]
    return name in wrapped and (name.startswith("inner_") or len(wrapped) == 1)


def _walk_slots(state: Any, prefix: str = "") -> Iterator[tuple[str, str, Any]]:
    """The slots in a state: the path of the state that holds it, its name, its tree."""
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        for name in state._fields:
            value = getattr(state, name)
            if name in _slot_fields(state.__class__):
                yield prefix, name, value
            else:
                inner = _holds_inner(state, name)
                yield from _walk_slots(value, prefix if inner else f"{prefix}{name}.")
    elif isinstance(state, dict):
        for key, value in state.items():
            yield from _walk_slots(value, f"{prefix}{key}.")
    elif isinstance(state, list | tuple):
        for i, value in enumerate(state):
            yield from _walk_slots(value, f"{prefix}{i}.")


def _slots(state: State) -> dict[str, Any]:
    """The slots by name: the bare name where it occurs once, else with the path before it."""
    found = list(_walk_slots(state))
    names = [name for _, name, _ in found]
    return {name if names.count(name) == 1 else prefix + name: tree for prefix, name, tree in found}


def slot_names(state: State) -> list[str]:
    """The names of the slots in a state, in the order in which they were made.

    >>> import gradtx
    >>> slot_names(gradtx.adam(1e-3).init(1.0))
    ['mu', 'nu']
    """
    return list(_slots(state))


def _find(state: State, name: str) -> str:
    """The position of the slot among all, as its full name."""
    full = [prefix + n for prefix, n, _ in _walk_slots(state)]
    matching = [f for f in full if f == name] or [f for f in full if f.split(".")[-1] == name]
    if len(matching) != 1:
        raise ValueError(
            f"there {'are several slots' if matching else 'is no slot'} {name!r}; "
            f"the slots are {', '.join(matching or slot_names(state)) or 'none'}"
        )
    return matching[0]


def get_slot(state: State, name: str, path: str | None = None) -> PyTree:
    """A slot by its name.

    Args:
        state: a state of any transformation of gradtx.
        name: the slot's name, with the path of its transformation if the name alone occurs more
            than once: ``"mu"``, ``"0.trace"``.
        path: the path of a parameter, ``"head/kernel"``; None for the whole tree.

    Returns:
        The slot of that parameter, or the tree of slots.

    Raises:
        ValueError: there is no such slot, or parameter (the error lists those that there are).

    >>> import gradtx
    >>> get_slot(gradtx.adam(1e-3).init({"w": 1.0}), "mu", "w")
    Array(0., dtype=float32)
    """
    full = _find(state, name)
    tree = next(tree for prefix, n, tree in _walk_slots(state) if prefix + n == full)
    if path is None:
        return tree
    leaves = {path_string(p): leaf for p, leaf in leaves_with_path(tree)[0]}
    if path not in leaves:
        raise ValueError(f"slot {name!r} has no {path!r}; its paths are {', '.join(leaves)}")
    return leaves[path]


def set_slot(state: State, name: str, value: PyTree, path: str | None = None) -> State:
    """A state with another value for a slot.

    Args:
        state: a state of any transformation of gradtx.
        name: as in :func:`get_slot`.
        value: a tree like the slot, or with `path` an array like that leaf of it.
        path: the path of a parameter; None for the whole tree.

    Returns:
        The new state.

    Raises:
        ValueError: there is no such slot, or the value has another structure, shape or type.

    >>> import gradtx, jax.numpy as jnp
    >>> state = gradtx.sgd(0.1, momentum=0.9).init({"w": jnp.zeros(2)})
    >>> get_slot(set_slot(state, "trace", jnp.ones(2), "w"), "trace")
    {'w': Array([1., 1.], dtype=float32)}
    """
    old = get_slot(state, name)
    if path is not None:
        get_slot(state, name, path)
        value = jax.tree_util.tree_map_with_path(
            lambda p, leaf: value if path_string(p) == path else leaf, old, is_leaf=is_leaf
        )
    leaves, treedef = jax.tree.flatten(old)
    new, other = jax.tree.flatten(value)
    if treedef != other:  # type: ignore[operator]
        raise ValueError(f"slot {name!r} is a tree {treedef}, not {other}")
    for before, after in zip(leaves, new, strict=True):
        if before.shape != np.shape(after) or before.dtype != getattr(after, "dtype", None):
            raise ValueError(
                f"slot {name!r} has {before.dtype}{list(before.shape)}, not "
                f"{getattr(after, 'dtype', type(after).__name__)}{list(np.shape(after))}"
            )
    full = _find(state, name)
    return _with_slot(state, full, value, "")


def _with_slot(state: Any, full: str, value: Any, prefix: str) -> Any:
    if hasattr(state, "_fields"):
        new = {}
        for name in state._fields:
            old, inner = getattr(state, name), _holds_inner(state, name)
            if name in _slot_fields(state.__class__):
                new[name] = value if prefix + name == full else old
            else:
                new[name] = _with_slot(old, full, value, prefix if inner else f"{prefix}{name}.")
        return state._replace(**new)
    if isinstance(state, dict):
        return type(state)(
            (k, _with_slot(v, full, value, f"{prefix}{k}.")) for k, v in state.items()
        )
    if isinstance(state, list | tuple):
        return type(state)(
            [_with_slot(v, full, value, f"{prefix}{i}.") for i, v in enumerate(state)]
        )
    return state


@dataclass(frozen=True)
class SlotInfo:
    """One line of a `Description`: a slot, its leaves' types and shapes, its bytes."""

    name: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    bytes: int


@dataclass(frozen=True)
class Description:
    """What :func:`describe` found; ``print`` shows it as a table."""

    transformation: str
    links: tuple[str, ...]
    parameters: int
    parameter_bytes: int
    hyperparams: dict[str, Any]
    slots: tuple[SlotInfo, ...]
    other_bytes: int
    message_bytes: int = 0

    @property
    def slot_bytes(self) -> int:
        """The bytes of all slots."""
        return sum(slot.bytes for slot in self.slots)

    @property
    def state_bytes(self) -> int:
        """The bytes of the whole state: slots, counters and the rest."""
        return self.slot_bytes + self.other_bytes

    def __str__(self) -> str:
        rows = [("slot", "type", "shapes", "bytes")]
        rows += [
            (s.name, ", ".join(s.dtypes), _count_shapes(s.shapes), f"{s.bytes:,}")
            for s in self.slots
        ]
        rows += [
            ("counters and other", "", "", f"{self.other_bytes:,}"),
            ("all", "", "", f"{self.state_bytes:,}"),
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = [self.transformation]
        lines += [f"  {i}: {link}" for i, link in enumerate(self.links)]
        values = (f"{k}={v}" for k, v in self.hyperparams.items() if v is not None)
        lines += [f"hyperparameters: {', '.join(values)}"]
        lines += [f"parameters: {self.parameters:,} in {self.parameter_bytes:,} bytes"]
        lines += [
            f"{a:{widths[0]}}  {b:{widths[1]}}  {c:{widths[2]}}  {d:>{widths[3]}}"
            for a, b, c, d in rows
        ]
        if self.message_bytes:
            lines += [f"sent by each device in a step: {self.message_bytes:,} bytes"]
        return "\n".join(line.rstrip() for line in lines)


def _message_bytes(tx: Any, params: Params) -> int:
    """What the links of `tx` that communicate send for these parameters."""
    expansion = tx.expansion if tx.declaration is not None else tx
    own = getattr(expansion, "message_bytes", None)
    if own is not None:
        return int(own(params))
    children = list(_children(tx)) or ([] if expansion is tx else list(_children(expansion)))
    return sum(_message_bytes(child, params) for _, child in children)


def _count_shapes(shapes: tuple[tuple[int, ...], ...], most: int = 4) -> str:
    counts: dict[tuple[int, ...], int] = {}
    for shape in shapes:
        counts[shape] = counts.get(shape, 0) + 1
    parts = [f"{shape}" + (f" x {n}" if n > 1 else "") for shape, n in counts.items()]
    return ", ".join(parts[:most]) + (f" and {len(parts) - most} more" if parts[most:] else "")


def _bytes(tree: PyTree) -> int:
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def describe(tx: GradientTransformation, params: Params) -> Description:
    """What a transformation keeps for some parameters, computed without allocating it.

    Args:
        tx: the transformation.
        params: the parameters, or ``jax.ShapeDtypeStruct`` in their place.

    Returns:
        A `Description`: links, hyperparameters, for each slot its types, shapes and bytes, and the
        bytes that a device sends in a step if there are several.

    >>> import gradtx, jax.numpy as jnp
    >>> print(describe(gradtx.sgd(0.1, momentum=0.9), {"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)}))
    sgd(learning_rate=0.1, momentum=0.9)
      0: trace(decay=0.9)
      1: scale_by_learning_rate(learning_rate=0.1, flip_sign=True)
    hyperparameters: learning_rate=0.1, momentum=0.9
    parameters: 9 in 36 bytes
    slot                type     shapes        bytes
    trace               float32  (3,), (2, 3)     36
    counters and other                             0
    all                                           36
    """
    params = jax.eval_shape(lambda: params) if not _abstract(params) else params
    state = jax.eval_shape(tx.init, params)
    slots = tuple(
        SlotInfo(
            name,
            tuple(dict.fromkeys(str(x.dtype) for x in jax.tree.leaves(tree))),
            tuple(x.shape for x in jax.tree.leaves(tree)),
            _bytes(tree),
        )
        for name, tree in _slots(state).items()
    )
    expansion = tx.expansion if tx.declaration is not None else tx
    return Description(
        transformation=repr(tx),
        links=tuple(repr(child) for _, child in _children(expansion)),
        parameters=sum(int(np.prod(x.shape)) for x in jax.tree.leaves(params)),
        parameter_bytes=_bytes(params),
        hyperparams=hyperparams(tx),
        slots=slots,
        other_bytes=_bytes(state) - sum(slot.bytes for slot in slots),
        message_bytes=_message_bytes(tx, params),
    )


def _abstract(params: Params) -> bool:
    return any(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(params))
