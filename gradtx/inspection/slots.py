"""Slots: finding them in a state by name, reading and replacing them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.inspection.dotted_paths import paths_ending_in
from gradtx.leaves.packed import packed_like, unpack
from gradtx.leaves.paths import (
    first_difference,
    is_leaf,
    leaves_with_path,
    map_with_paths,
    path_string,
)
from gradtx.numerics import own_copy
from gradtx.numerics.control import branch
from gradtx.types import INNER, PyTree, State, StateT, fields_of, is_stored, slot_fields

Path: TypeAlias = str | tuple[Any, ...]
_KEYS = (
    jax.tree_util.DictKey,
    jax.tree_util.FlattenedIndexKey,
    jax.tree_util.GetAttrKey,
    jax.tree_util.SequenceKey,
)


def walk_slots(state: Any, prefix: str = "") -> Iterator[tuple[str, str, Any]]:
    """The slots in a state: the path of the state that holds it, its name, its tree."""
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        for name in state._fields:
            value = getattr(state, name)
            if name in slot_fields(state.__class__):
                yield prefix, name, value
            else:
                yield from walk_slots(value, _prefix_within(state, name, prefix))
    elif isinstance(state, dict):
        for key, value in state.items():
            yield from walk_slots(value, f"{prefix}{key}.")
    elif isinstance(state, list | tuple):
        for i, value in enumerate(state):
            yield from walk_slots(value, f"{prefix}{i}.")


def _prefix_within(state: Any, field: str, prefix: str) -> str:
    """The prefix of slot names in a field.

    The state of a wrapped transformation has its holder's prefix, unless both have a slot of the
    same name.
    """
    if field not in fields_of(state.__class__, INNER):
        return f"{prefix}{field}."
    own = slot_fields(state.__class__)
    inner = walk_slots(getattr(state, field)) if own else ()
    clash = any(name in own for before, name, _ in inner if not before)
    return f"{prefix}{field}." if clash else prefix


def slots_by_name(state: State) -> dict[str, Any]:
    """The slots by name: the bare name where it occurs once, otherwise with the path before it."""
    slots = list(walk_slots(state))
    names = [name for _, name, _ in slots]
    return {name if names.count(name) == 1 else prefix + name: tree for prefix, name, tree in slots}


def slot_names(state: State) -> list[str]:
    """The names of the slots in a state, in the order in which they were made.

    Args:
        state: a state of any transformation of gradtx.

    >>> import gradtx
    >>> slot_names(gradtx.adam(1e-3).init(1.0))
    ['mu', 'nu']
    """
    return list(slots_by_name(state))


def _find(state: State, name: str, path: Path | None = None) -> str:
    """The full name of the slot `name`: with the path before it where names repeat.

    Where several slots have this name, it is the one that has the parameter `path`.
    """
    slots = {prefix + n: tree for prefix, n, tree in walk_slots(state)}
    matching = [name] if name in slots else paths_ending_in(name, slots)
    if len(matching) > 1 and path is not None:
        matching = [full for full in matching if _holds(slots[full], path)] or matching
    if len(matching) != 1:
        raise ValueError(
            f"there {'are several slots' if matching else 'is no slot'} {name!r}; "
            f"the slots are {', '.join(matching or slot_names(state)) or 'none'}"
        )
    return matching[0]


def _holds(tree: PyTree, path: Path) -> bool:
    """Whether a slot has an array for the parameter `path`."""
    leaves = dict(leaves_with_path(unpack(loaded(tree)))[0])
    return leaves.get(_key_of(leaves, path)) is not None


def _check_holds(state: State, name: str, path: Path, slot: Any) -> None:
    """Raise ValueError if a slot has nothing for a parameter, which another group may train."""
    if slot is not None:
        return
    bare = name.rpartition(".")[2]
    others = [prefix + n for prefix, n, x in walk_slots(state) if n == bare and _holds(x, path)]
    instead = f"; {', '.join(others)} has" if others else ", and no other of that name has"
    raise ValueError(f"the slot {name!r} has no entry for {path!r}{instead}")


def get_slot(state: State, name: str, path: Path | None = None) -> Any:
    """A slot by its name.

    Args:
        state: a state of any transformation of gradtx.
        name: the slot's name, with the path of its transformation if the name alone occurs more
            than once: ``"mu"``, ``"0.trace"``, or with the name of its group, ``"head.mu"``. The
            name alone will do where only one slot of that name has the parameter `path`.
        path: the path of a parameter: ``"head/kernel"``, or as the tree prints it,
            ``"['head']['kernel']"`` or ``".head.kernel"``, or a tuple of keys; None for the whole
            tree.

    Returns:
        The slot of that parameter, or the tree of slots. A slot in another form, as by
        :func:`store`, is decoded.

    Raises:
        ValueError: there is no such slot or parameter (the error lists the existing ones), or the
            parameter is one of another group, or frozen, and this slot has no entry for it.

    >>> import gradtx
    >>> get_slot(gradtx.adam(1e-3).init({"w": 1.0}), "mu", "w")
    Array(0., dtype=float32)
    """
    full = _find(state, name, path)
    tree = unpack(loaded(next(tree for prefix, n, tree in walk_slots(state) if prefix + n == full)))
    if path is None:
        return tree
    slot = dict(leaves_with_path(tree)[0])[_key_path(name, tree, path)]
    _check_holds(state, full, path, slot)
    return slot


def _key_of(keyed: Iterable[Any], path: Path) -> Any:
    """The one of JAX's paths that `path` names, or None."""
    if isinstance(path, tuple):
        path = "/".join(path_string((k,)) if type(k) in _KEYS else str(k) for k in path)
    for key in keyed:
        printed = jax.tree_util.keystr(key)
        if path in (path_string(key), printed, printed.removeprefix(".")):
            return key
    return None


def _key_path(name: str, tree: PyTree, path: Path) -> Any:
    """The path of the leaf of a slot that `path` names, as JAX has it."""
    keyed = [key for key, _ in leaves_with_path(tree)[0]]
    key = _key_of(keyed, path)
    if key is None:
        raise ValueError(
            f"slot {name!r} has no {path!r}; its paths are {', '.join(map(path_string, keyed))}"
        )
    return key


def set_slot(state: StateT, name: str, value: PyTree, path: Path | None = None) -> StateT:
    """A state with a new value for a slot.

    Args:
        state: a state of any transformation of gradtx.
        name: as in :func:`get_slot`.
        value: a tree like the slot, or with `path` an array like that leaf of it.
        path: the path of a parameter, as in :func:`get_slot`; None for the whole tree.

    Returns:
        The new state.

    Raises:
        ValueError: there is no such slot, or the value has another structure, shape or type.

    >>> import gradtx, jax.numpy as jnp
    >>> state = gradtx.sgd(0.1, momentum=0.9).init({"w": jnp.zeros(2)})
    >>> get_slot(set_slot(state, "trace", jnp.ones(2), "w"), "trace")
    {'w': Array([1., 1.], dtype=float32)}
    """
    full = _find(state, name, path)
    old = get_slot(state, full)
    if path is not None:
        at = _key_path(name, old, path)
        _check_holds(state, full, path, dict(leaves_with_path(old)[0])[at])
        value = map_with_paths(lambda p, leaf: value if p == at else leaf, old, is_leaf=is_leaf)
    leaves, treedef = jax.tree.flatten(old)
    new, other = jax.tree.flatten(value)
    if treedef != other:  # type: ignore[operator]
        raise ValueError(f"slot {name!r} is a tree of another form: {first_difference(old, value)}")
    for before, after in zip(leaves, new, strict=True):
        if before.shape != np.shape(after) or before.dtype != getattr(after, "dtype", None):
            raise ValueError(
                f"slot {name!r} has {before.dtype}{list(before.shape)}, not "
                f"{getattr(after, 'dtype', type(after).__name__)}{list(np.shape(after))}"
            )

    def new_slot(holder: Any, this: str, tree: PyTree) -> PyTree:
        return _stored_like(tree, value, old) if this == full else tree

    return map_slots(state, new_slot)


def _stored_like(slot: PyTree, value: PyTree, before: PyTree) -> PyTree:
    """`value` encoded or stored as the leaves of a slot are.

    A leaf that is unchanged since it was read keeps its codes: encoding it again could change them.
    Others are copied, since a step may take the memory of its state.
    """

    def one(x: Any, new: Any, old: Any) -> Any:
        if new is old:
            return x
        if is_stored(x):
            return branch(jnp.array_equal(new, old), lambda: x, lambda: x.store(new))
        return own_copy(new, new.dtype) if isinstance(new, jax.Array | np.ndarray) else new

    return jax.tree.map(
        one, slot, packed_like(value, slot), packed_like(before, slot), is_leaf=is_stored
    )


def map_slots(state: Any, f: Callable[[Any, str, PyTree], PyTree], prefix: str = "") -> Any:
    """A state with ``f(holder, name, tree)`` in place of each slot.

    Args:
        state: the state.
        f: gets the state class that has the field, the slot's full name, and its tree.
        prefix: the text before the names.
    """
    if hasattr(state, "_fields"):
        new = {}
        for name in state._fields:
            old = getattr(state, name)
            if name in slot_fields(state.__class__):
                new[name] = f(state.__class__, prefix + name, old)
            else:
                new[name] = map_slots(old, f, _prefix_within(state, name, prefix))
        return state._replace(**new)
    if isinstance(state, dict):
        return type(state)((k, map_slots(v, f, f"{prefix}{k}.")) for k, v in state.items())
    if isinstance(state, list | tuple):
        return type(state)([map_slots(v, f, f"{prefix}{i}.") for i, v in enumerate(state)])
    return state


def loaded(tree: PyTree) -> PyTree:
    """A slot with stored leaves loaded as arrays, unless leaves are abstract."""
    there = any(map(is_stored, jax.tree.leaves(tree, is_leaf=is_stored)))
    if not there or not all(isinstance(x, jax.Array | np.ndarray) for x in jax.tree.leaves(tree)):
        return tree
    return jax.tree.map(lambda x: x.load() if is_stored(x) else x, tree, is_leaf=is_stored)
