"""State as named data: arrays by path, for any container of arrays, and back."""

import itertools
import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.config import to_config
from gradtx.inspection import _slot_fields
from gradtx.pair import GradientTransformation, with_extra_args_support
from gradtx.paths import path_string
from gradtx.search import NamedTupleKey, _children
from gradtx.types import Array, Params, State

_HEADER = "gradtx"
_VERSION = 1


def state_dict(state: State, tx: GradientTransformation | None = None) -> dict[str, Array]:
    """A state as arrays by path: ``{"0/mu/head/kernel": array, ...}``.

    It can be written by whatever writes arrays: safetensors, NumPy, Orbax, ``flax.serialization``.

    Args:
        state: a state of any transformation, also of other libraries.
        tx: the transformation, whose configuration is then written beside the state.

    Returns:
        The arrays. Random keys are written as the integers behind them. The entry ``"gradtx"`` is
        the header, JSON as bytes: the format's version, the kinds of the states, the configuration.

    Raises:
        ValueError: two leaves have the same path, since a name has a ``/`` in it.
        TypeError: a leaf is no array, or `tx` cannot be written as a configuration.

    >>> import gradtx
    >>> tx = gradtx.sgd(0.1, momentum=0.9)
    >>> list(state_dict(tx.init({"w": jnp.zeros(2)}), tx))
    ['gradtx', '0/trace/w']
    """
    nodes = _nodes(state)
    header = {
        "version": _VERSION,
        "states": [[node.prefix, node.kind] for node in nodes],
        "config": None if tx is None else to_config(tx),
    }
    written = np.frombuffer(json.dumps(header).encode(), np.uint8)
    flat: dict[str, Array] = {_HEADER: jnp.asarray(written)}
    for path, leaf in _leaves(state):
        if path in flat:
            raise ValueError(f"state_dict: two leaves are called {path!r}; is a '/' in a name?")
        flat[path] = _data(path, leaf)
    return flat


def saved_config(flat: Mapping[str, Any]) -> dict[str, Any] | None:
    """The configuration that was written beside a state, or None; for :func:`from_config`.

    Raises:
        ValueError: this was not written by :func:`state_dict`, or by a later version of it.

    >>> import gradtx
    >>> tx = gradtx.adam(1e-3)
    >>> gradtx.from_config(saved_config(state_dict(tx.init(0.0), tx)))
    adam(learning_rate=0.001, b1=0.9, b2=0.999, eps=1e-08, eps_root=0.0)
    """
    config: dict[str, Any] | None = _header(flat)["config"]
    return config


class StateMatch(NamedTuple):
    """How a saved state fits a transformation.

    state: the new state; kept: for each leaf that was kept its old path; missing: the leaves that
    had to be made anew; extra: the saved leaves that have no home; changed: what has another shape
    (made anew), type (converted) or kind of state (kept), with what it was.
    """

    state: State
    kept: dict[str, str]
    missing: list[str]
    extra: list[str]
    changed: dict[str, str]

    def __str__(self) -> str:
        parts = [f"missing: {', '.join(self.missing)}"] if self.missing else []
        parts += [f"extra: {', '.join(self.extra)}"] if self.extra else []
        changes = [f"{path}, {what}" for path, what in self.changed.items()]
        return "; ".join(parts + ([f"changed: {'; '.join(changes)}"] if changes else []))


def load_state_dict(
    tx: GradientTransformation, params: Params, flat: Mapping[str, Any], strict: bool = True
) -> State:
    """The state of a transformation from what :func:`state_dict` returned.

    A slot that is still there is kept, wherever its transformation has moved: when clipping or an
    average is added to a chain, a group is renamed, added or split, Adam becomes AMSGrad. What is
    new is as ``tx.init(params)`` makes it. :func:`match_state_dict` tells what went where.

    Args:
        tx: the transformation, perhaps another than the one that was saved.
        params: the parameters.
        flat: the arrays by path.
        strict: refuse if anything is missing, left over or changed in shape, type or kind; else
            warn.

    Returns:
        The state; the arguments stay as they are.

    Raises:
        ValueError: this was not written by :func:`state_dict`; nothing in it fits, as when it is of
            other parameters; or `strict` and not everything fits (the error lists it by path).
        TypeError: an entry is no array of numbers.

    >>> import gradtx
    >>> params = {"w": jnp.ones(2)}
    >>> saved = state_dict(gradtx.adam(1e-3).init(params))
    >>> tx = gradtx.chain(gradtx.clip(1.0), gradtx.adam(1e-3))
    >>> gradtx.slot_names(load_state_dict(tx, params, saved))
    ['mu', 'nu']
    """
    match = match_state_dict(tx, params, flat)
    if str(match):
        if strict:
            raise ValueError(
                f"load_state_dict: the saved state is not one of this transformation and these "
                f"parameters. {match}. With strict=False the rest is kept"
            )
        warnings.warn(f"load_state_dict: {match}", stacklevel=2)
    return match.state


def match_state_dict(
    tx: GradientTransformation, params: Params, flat: Mapping[str, Any]
) -> StateMatch:
    """What :func:`load_state_dict` makes of a saved state, with an account of it.

    States are matched by their class and their slots' names and parameters; where two fit alike
    their order decides, or their path if there are more of them than before.

    Raises:
        ValueError: this was not written by :func:`state_dict`, or nothing in it fits.
        TypeError: an entry is no array of numbers.

    >>> import gradtx
    >>> saved = state_dict(gradtx.adam(1e-3).init(jnp.ones(2)))
    >>> tx = gradtx.chain(gradtx.ema(0.9), gradtx.adam(1e-3))
    >>> match_state_dict(tx, jnp.ones(2), saved).missing
    ['0/count', '0/ema']
    """
    fresh = with_extra_args_support(tx).init(params)
    old, new = _saved_nodes(flat), _nodes(fresh)
    arrays = {path: _data(path, leaf) for path, leaf in _leaves(fresh)}
    pairs = _ranked(old, new, flat, arrays)
    kept: dict[str, str] = {}
    changed: dict[str, str] = {}
    used: set[str] = set()
    for before, after in pairs:
        _claim(before, after, flat, arrays, kept, used, changed)
    for before, after in pairs:
        for name in after.leaves.keys() & before.leaves.keys():
            path, was = after.leaves[name], before.leaves[name]
            if path not in kept and path not in changed and was not in used:
                changed[path] = f"{_shown(flat[was])} before, {_shown(arrays[path])} now"
                used.add(was)
    if arrays and not kept:
        raise ValueError(
            "load_state_dict: nothing in the saved state fits this transformation and these "
            f"parameters; it holds {_listed(sorted(flat.keys() - {_HEADER}))}, and what is needed "
            f"is {_listed(arrays)}"
        )
    leaves = [
        _restored(leaf, arrays[path], flat[kept[path]]) if path in kept else leaf
        for path, leaf in _leaves(fresh)
    ]
    return StateMatch(
        state=jax.tree.structure(fresh).unflatten(leaves),  # type: ignore[attr-defined]
        kept=kept,
        missing=[path for path in arrays if path not in kept and path not in changed],
        extra=sorted(flat.keys() - used - {_HEADER}),
        changed=changed,
    )


@dataclass
class _Node:
    """One transformation's state within a state: where it is, its class, its leaves by name."""

    prefix: str
    kind: str
    leaves: dict[str, str] = field(default_factory=dict)
    slots: set[str] = field(default_factory=set)


def _join(*parts: str) -> str:
    return "/".join(part for part in parts if part)


def _walk(
    node: Any, path: str, owner: _Node, in_slot: bool
) -> Iterator[tuple[str, Any, _Node, bool]]:
    children = _children(node)
    if not children:
        if jax.tree_util.all_leaves([node]):
            yield path, node, owner, in_slot
        return
    slots: frozenset[str] = frozenset()
    if hasattr(node, "_fields") and not in_slot:
        cls: Any = type(node)
        owner, slots = _Node(path, cls.__name__), _slot_fields(cls)
    for key, child in children:
        name = key.name if isinstance(key, NamedTupleKey) else path_string((key,))
        yield from _walk(child, _join(path, name), owner, in_slot or name in slots)


def _leaves(state: State) -> Iterator[tuple[str, Any]]:
    """The leaves with their paths, in the order in which JAX flattens them."""
    for path, leaf, _, _ in _walk(state, "", _Node("", ""), False):
        yield path, leaf


def _nodes(state: State) -> list[_Node]:
    nodes: dict[int, _Node] = {}
    for path, leaf, owner, in_slot in _walk(state, "", _Node("", ""), False):
        nodes[id(owner)] = owner
        name = path[len(owner.prefix) :].lstrip("/")
        owner.leaves[name] = path
        # Other libraries' states do not say which leaves are slots; counters are integers.
        if in_slot or (hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact)):
            owner.slots.add(name)
    return list(nodes.values())


def _saved_nodes(flat: Mapping[str, Any]) -> list[_Node]:
    nodes = [_Node(prefix, kind) for prefix, kind in _header(flat)["states"]]
    deepest_first = sorted(nodes, key=lambda node: -len(node.prefix))
    loose = _Node("", "")
    for path in sorted(flat.keys() - {_HEADER}):
        _check_array(path, flat[path])
        inside = (n for n in deepest_first if not n.prefix or path.startswith(n.prefix + "/"))
        owner = next(inside, loose)
        owner.leaves[path[len(owner.prefix) :].lstrip("/")] = path
    return [*nodes, loose]


def _ranked(
    old: list[_Node], new: list[_Node], flat: Mapping[str, Any], arrays: Mapping[str, Array]
) -> list[tuple[_Node, _Node]]:
    """The pairs of nodes that may have to do with each other, the likeliest first."""
    ranks = [_ranks(old), _ranks(new)]
    counts = [[node.kind for node in nodes] for nodes in (old, new)]
    found = []
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
        found.append(((not alike, -len(fitting), distance, i, j), before, after))
    found.sort(key=lambda entry: entry[0])
    return [(before, after) for _, before, after in found]


def _ranks(nodes: list[_Node]) -> list[int]:
    """The position of each node among those of its kind."""
    seen: dict[str, int] = {}
    ranks = []
    for node in nodes:
        ranks.append(seen.get(node.kind, 0))
        seen[node.kind] = ranks[-1] + 1
    return ranks


def _claim(
    before: _Node,
    after: _Node,
    flat: Mapping[str, Any],
    arrays: Mapping[str, Array],
    kept: dict[str, str],
    used: set[str],
    changed: dict[str, str],
) -> None:
    """Give the leaves of one saved node to one new node, each once."""

    def fits(name: str) -> bool:
        path, was = after.leaves[name], before.leaves.get(name)
        return (
            path not in kept
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
        kept[path] = was
        used.add(was)
        if flat[was].dtype != arrays[path].dtype:
            changed[path] = f"{_shown(flat[was])} before, {_shown(arrays[path])} now"
    if before.kind != after.kind and slots:
        changed[after.prefix or "the state"] = f"{before.kind} before, {after.kind} now"


def _convertible(old: Any, new: Any) -> bool:
    kinds = (jnp.floating, jnp.complexfloating, jnp.integer, jnp.bool_)
    return any(jnp.issubdtype(old, kind) and jnp.issubdtype(new, kind) for kind in kinds)


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _data(path: str, leaf: Any) -> Any:
    """A leaf as an array of numbers."""
    if _is_key(leaf):
        return jax.random.key_data(leaf)
    if isinstance(leaf, bool | int | float | complex | np.ndarray | np.generic):
        leaf = jnp.asarray(leaf)
    _check_array(path, leaf)
    return leaf


def _check_array(path: str, value: Any) -> None:
    dtype = getattr(value, "dtype", None)
    if dtype is None or not (jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)):
        kind = type(value).__name__ if dtype is None else dtype
        raise TypeError(f"the entry {path!r} of a state dict is {kind}, not an array of numbers")


def _restored(leaf: Any, array: Array, value: Any) -> Array:
    loaded = jnp.asarray(value, array.dtype)
    if _is_key(leaf):
        return jax.random.wrap_key_data(loaded, impl=jax.random.key_impl(leaf))
    return loaded


def _header(flat: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(flat, Mapping) or _HEADER not in flat:
        raise ValueError(f"this was not written by state_dict: it has no entry {_HEADER!r}")
    try:
        header = json.loads(np.asarray(flat[_HEADER], np.uint8).tobytes().decode())
        version, states, config = header["version"], header["states"], header["config"]
        good = all(isinstance(prefix, str) and isinstance(kind, str) for prefix, kind in states)
        if not (good and isinstance(version, int) and isinstance(config, dict | None)):
            raise ValueError("its fields have other types")
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ValueError(
            f"the header of the state dict is damaged: {type(error).__name__} {error}"
        ) from None
    if version > _VERSION:
        raise ValueError(
            f"the state dict has the format {version}; this version of gradtx reads {_VERSION}"
        )
    return dict(header)


def _shown(array: Any) -> str:
    return f"{array.dtype}{list(np.shape(array))}"


def _listed(paths: Any, most: int = 6) -> str:
    paths = list(paths)
    more = f" and {len(paths) - most} more" if len(paths) > most else ""
    return (", ".join(paths[:most]) or "nothing") + more
