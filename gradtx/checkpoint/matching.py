"""Matching the leaves of one state to those of another: by class, by slot, by order."""

import collections
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.checkpoint.encoded import parts_of
from gradtx.leaves.paths import path_string
from gradtx.names.libraries import is_box
from gradtx.storage import is_encoded
from gradtx.tree.search import NamedTupleKey, children_of
from gradtx.types import COUNTER, Array, State, fields_of, slot_fields


@dataclass
class Node:
    """One transformation's state within a state: its path, its class, its leaves by name.

    by_path: whether it was saved without its class, which is that of the new state at its path.
    """

    prefix: str
    kind: str
    leaves: dict[str, str] = field(default_factory=dict)
    slots: set[str] = field(default_factory=set)
    counters: tuple[str, ...] = ()
    by_path: bool = False


# The attribute of Flax's objects in which the array is.
_CONTENT = "value"


def _join(*parts: str) -> str:
    return "/".join(part for part in parts if part)


def _walk(
    node: Any, path: str, owner: Node, in_slot: bool
) -> Iterator[tuple[str, Any, Node, bool]]:
    children = [] if is_encoded(node) else children_of(node)
    if not children:
        if is_encoded(node) or jax.tree_util.all_leaves([node]):
            yield path, node, owner, in_slot
        return
    slots: tuple[str, ...] = ()
    if hasattr(node, "_fields") and not in_slot:
        cls: Any = type(node)
        owner, slots = Node(path, cls.__name__), slot_fields(cls)
        owner.counters = fields_of(cls, COUNTER)
    for key, child in children:
        name = _name(node, key)
        yield from _walk(child, _join(path, name), owner, in_slot or name in slots)


def _name(node: Any, key: Any) -> str:
    """The name of a child of a node in a path; the content of one of Flax's objects has its own."""
    if is_box(node):
        return ""
    return key.name if isinstance(key, NamedTupleKey) else path_string((key,))


def leaves(state: State) -> Iterator[tuple[str, Any]]:
    """The leaves, encoded slots among them, with their paths, in the order of JAX's flattening."""
    for path, leaf, _, _ in _walk(state, "", Node("", ""), False):
        yield path, leaf


def is_empty(leaf: Any) -> bool:
    """Whether an array has no entries: it is not written, and Orbax would refuse it."""
    return getattr(leaf, "size", None) == 0


def saved_names(state: State, saved: Iterable[str]) -> dict[str, str]:
    """The names of the saved arrays for the arrays of a state, where the two names differ.

    In a state that was restored without its classes, a field of a named tuple may be called by its
    place, and the content of one of Flax's objects by its attribute.

    Args:
        state: the state to fill.
        saved: the names of the saved arrays.

    Returns:
        The saved names by the paths in the state, without those that are the same.
    """
    known = set(saved)
    names = known | {name[:i] for name in known for i, c in enumerate(name) if c == "/"}
    renamed = {}
    for path, name in _by_place(state, "", "", names):
        content = _join(name, _CONTENT)
        name = content if name not in known and content in known else name
        if path not in known and name in known:
            renamed[path] = name
    return renamed


def _by_place(node: Any, path: str, name: str, names: set[str]) -> Iterator[tuple[str, str]]:
    """The paths of the arrays in a state, and their names among `names`."""
    children = [] if is_encoded(node) else children_of(node)
    if not children:
        yield path, name
    if is_encoded(node):
        parts = ([part for part, _ in parts_of(at, node)] for at in (path, name))
        yield from zip(*parts, strict=True)
    for i, (key, child) in enumerate(children):
        step = _name(node, key)
        below = _join(name, step)
        if isinstance(key, NamedTupleKey) and below not in names:
            below = _join(name, str(i))
        yield from _by_place(child, _join(path, step), below, names)


def nodes(state: State, empty: bool = False) -> list[Node]:
    """The parts of a state that belong to one transformation each.

    Args:
        state: the state.
        empty: also list arrays without entries, which are not written.
    """
    owners: dict[int, Node] = {}
    for path, leaf, owner, in_slot in _walk(state, "", Node("", ""), False):
        if is_empty(leaf) and not empty:
            continue
        owners[id(owner)] = owner
        name = path[len(owner.prefix) :].lstrip("/")
        owner.leaves[name] = path
        # Other libraries' states do not say which leaves are slots; counters are integers.
        if in_slot or (hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact)):
            owner.slots.add(name)
    return list(owners.values())


class Match(NamedTuple):
    """Which saved leaf each new leaf takes, which leaves changed and how, and what is left over."""

    kept: dict[str, str]
    changed: dict[str, str]
    extra: set[str]


def match(
    old: list[Node], new: list[Node], flat: Mapping[str, Any], arrays: Mapping[str, Array]
) -> Match:
    """Give each leaf of the old nodes, at most once, to the leaf of the new ones that it fits.

    Args:
        old: the parts of the saved state.
        new: the parts of the state to fill.
        flat: the saved arrays by path.
        arrays: the new ones by path.
    """
    saved_paths: dict[str, str] = {}
    changed: dict[str, str] = {}
    used: set[str] = set()
    pairs = _ranked(old, new, flat, arrays)
    for before, after in pairs:
        _claim(before, after, flat, arrays, saved_paths, used, changed)
    for before, after in pairs:
        for name in after.leaves.keys() & before.leaves.keys():
            path, was = after.leaves[name], before.leaves[name]
            if path not in saved_paths and path not in changed and was not in used:
                changed[path] = f"{shown(flat[was])} before, {shown(arrays[path])} now"
                used.add(was)
    _go_on(new, flat, saved_paths)
    saved = {path for node in old for path in node.leaves.values()}
    return Match(saved_paths, changed, saved - used)


def _go_on(new: list[Node], flat: Mapping[str, Any], saved_paths: dict[str, str]) -> None:
    """Let new states that only count continue from the step of all other counters.

    A schedule that replaces a number has such a state; a moving average, which starts over, does
    not. If the other counters disagree, there is no such step.
    """
    counters = [node.leaves[name] for node in new for name in node.counters if name in node.leaves]
    known = [saved_paths[path] for path in counters if path in saved_paths]
    if len({int(flat[path]) for path in known if np.ndim(flat[path]) == 0}) != 1:
        return
    for node in new:
        if node.leaves.keys() <= set(node.counters):
            for path in node.leaves.values():
                saved_paths.setdefault(path, known[0])


def _ranked(
    old: list[Node], new: list[Node], flat: Mapping[str, Any], arrays: Mapping[str, Array]
) -> list[tuple[Node, Node]]:
    """The pairs of nodes that may correspond, the likeliest first."""
    ranks = [_ranks(old), _ranks(new)]
    counts = [[node.kind for node in nodes] for nodes in (old, new)]
    ranked = []
    for (i, before), (j, after) in itertools.product(enumerate(old), enumerate(new)):
        common = before.leaves.keys() & after.slots
        alike = before.kind == after.kind
        # A counter alone says nothing: a new group must not take over another one's.
        if not common and (after.slots or not alike):
            continue
        fitting = [
            n
            for n in common
            if np.shape(flat[before.leaves[n]]) == np.shape(arrays[after.leaves[n]])
        ]
        if counts[0].count(before.kind) == counts[1].count(after.kind):
            distance = abs(ranks[0][i] - ranks[1][j])
        else:
            distance = int(before.prefix != after.prefix)
        elsewhere = not (before.by_path and before.prefix == after.prefix)
        ranked.append(((elsewhere, not alike, -len(fitting), distance, i, j), before, after))
    ranked.sort(key=lambda entry: entry[0])
    return [(before, after) for _, before, after in ranked]


def _ranks(nodes: list[Node]) -> list[int]:
    """The position of each node among the nodes of its kind."""
    counters: dict[str, Iterator[int]] = collections.defaultdict(itertools.count)
    return [next(counters[node.kind]) for node in nodes]


def _claim(
    before: Node,
    after: Node,
    flat: Mapping[str, Any],
    arrays: Mapping[str, Array],
    saved_paths: dict[str, str],
    used: set[str],
    changed: dict[str, str],
) -> None:
    """Give the leaves of a saved node to a new node, each leaf at most once."""

    def fits(name: str) -> bool:
        path, was = after.leaves[name], before.leaves.get(name)
        return (
            path not in saved_paths
            and was is not None
            and np.shape(flat[was]) == np.shape(arrays[path])
            and _convertible(flat[was].dtype, arrays[path].dtype)
        )

    slots = [n for n in after.leaves if n in after.slots and fits(n)]
    slots = [n for n in slots if before.leaves[n] not in used]
    if after.slots and not slots:
        return
    # One saved counter may serve the parts into which its state was split.
    rest = [n for n in after.leaves if n not in after.slots and fits(n)]
    if not after.slots:
        rest = [n for n in rest if before.leaves[n] not in used]
    for name in slots + rest:
        path, was = after.leaves[name], before.leaves[name]
        saved_paths[path] = was
        used.add(was)
        if form_of(flat[was]) != form_of(arrays[path]):
            changed[path] = f"{shown(flat[was])} before, {shown(arrays[path])} now"
    if before.kind != after.kind and slots:
        changed[after.prefix or "the state"] = f"{before.kind} before, {after.kind} now"


def _convertible(old: Any, new: Any) -> bool:
    kinds = (jnp.floating, jnp.complexfloating, jnp.integer, jnp.bool_)
    return any(jnp.issubdtype(old, kind) and jnp.issubdtype(new, kind) for kind in kinds)


def form_of(array: Any) -> Any:
    """The type of an array, or the codec of an encoded slot, whichever way it rounds."""
    return array.codec._replace(rounding=None) if is_encoded(array) else array.dtype


def shown(array: Any) -> str:
    """The type of an array, or its codec, and its shape, for a message."""
    form = array.codec.name if is_encoded(array) else array.dtype
    return f"{form}{list(np.shape(array))}"
