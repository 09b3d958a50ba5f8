"""What Flax is told: that pairs are data, and to write states in Optax's form.

Either library then reads what the other wrote. Flax knows named tuples by a mark of its own, and
writes `None` and random keys as they are: Optax reads no `None` where a leaf is masked, and Flax's
bytes hold no key. A field that Optax's class does not have, and that is `None`, is left out.
"""

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from gradtx.core.pair import GradientTransformation
from gradtx.leaves import written
from gradtx.types import KEY, SLOT, masked_fields, state_fields
from gradtx.types.keys import is_key


class _Masked(NamedTuple):
    """Stands for a masked leaf, as Optax's ``MaskedNode`` does: Flax writes it as ``{}``."""


def tell() -> None:
    """Tell Flax's modules that are loaded of gradtx's classes; again, of those that were added."""
    _tell_serialization(sys.modules.get("flax.serialization"))
    # As static values nnx refuses arrays.
    register = getattr(sys.modules.get("flax.nnx"), "register_data_type", None)
    if register is not None:
        for cls in _with_subclasses(GradientTransformation):
            register(cls)


def _with_subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    yield cls
    for each in cls.__subclasses__():
        yield from _with_subclasses(each)


def _tell_serialization(serialization: Any) -> None:
    """Let `flax.serialization` write and read states in Optax's form.

    Only named tuples with masked leaves or random keys are written otherwise than before.
    """
    kind = getattr(serialization, "_NamedTuple", None)
    known = getattr(serialization, "_STATE_DICT_REGISTRY", {}).get(kind)
    if known is None:
        return
    registry = serialization._STATE_DICT_REGISTRY
    if not isinstance(known[0], _Write):
        registry[kind] = _Write(*known), _Read(*known)
    write, read = registry[dict]
    for cls in written.dicts:
        registry.setdefault(cls, (write, lambda like, old, cls=cls: cls(read(like, old))))
    for cls in written.nodes:
        registry.setdefault(cls, (_write_parts, _read_parts))


def _parts(node: Any) -> tuple[dict[str, Any], Any]:
    """The parts of a node by their names, and its structure."""
    flat = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    return {jax.tree_util.keystr(path, simple=True): part for path, part in flat[0]}, flat[1]


def _write_parts(node: Any) -> dict[str, Any]:
    write = sys.modules["flax.serialization"].to_state_dict
    return {name: write(part) for name, part in _parts(node)[0].items()}


def _read_parts(like: Any, written: dict[str, Any]) -> Any:
    read = sys.modules["flax.serialization"].from_state_dict
    parts, structure = _parts(like)
    return structure.unflatten([read(part, written[name]) for name, part in parts.items()])


class _Write:
    def __init__(self, write: Any, read: Any) -> None:
        self.write = write

    def __call__(self, state: Any) -> Any:
        form = _in_their_form(state)
        written = self.write(form)
        for name in _absent(form):
            del written[name]
        return written


class _Read:
    def __init__(self, write: Any, read: Any) -> None:
        self.read = read

    def __call__(self, like: Any, written: Any) -> Any:
        target = _in_their_form(like)
        if isinstance(target, _Masked):
            return target  # what is there: {}, or None as it was written before
        left_out = dict.fromkeys(_absent(target))
        state = self.read(target, {**left_out, **written} if left_out else written)
        return state if target is like else _in_our_form(state, like)


def _absent(state: Any) -> list[str]:
    """The fields of a class of gradtx's that are None and need not be given."""
    if not type(state).__module__.startswith("gradtx."):
        return []
    optional = [n for n, default in state._field_defaults.items() if default is None]
    return [n for n in optional if getattr(state, n) is None]


def _is_named(x: Any) -> bool:
    return isinstance(x, tuple) and hasattr(x, "_fields")


def _in_their_form(state: Any) -> Any:
    """A named tuple with marks for its masked leaves, and its keys as numbers."""
    cls: Any = type(state)
    kinds, masked = state_fields(cls), masked_fields(cls)
    keys = {n: _words(getattr(state, n)) for n, kind in kinds.items() if kind == KEY}
    inner = {n: _marked(getattr(state, n)) for n in masked}
    return state._replace(**keys, **inner) if keys or inner else state


def _in_our_form(state: Any, like: Any) -> Any:
    cls: Any = type(like)
    kinds, masked = state_fields(cls), masked_fields(cls)
    keys = {n: _key(getattr(state, n), getattr(like, n)) for n, k in kinds.items() if k == KEY}
    inner = {n: _unmarked(getattr(state, n)) for n in masked}
    return state._replace(**keys, **inner)


def _words(key: Any) -> Any:
    return jax.random.key_data(key) if is_key(key) else key


def _key(key: Any, like: Any) -> Any:
    if is_key(like) and not is_key(key):
        return jax.random.wrap_key_data(key, impl=jax.random.key_impl(like))
    return key


def _marked(tree: Any) -> Any:
    """A state with marks in place of each `None` that stands for a leaf."""

    def mark(x: Any) -> Any:
        if x is None:
            return _Masked()
        if not _is_named(x):
            return x
        cls: Any = type(x)
        kinds = state_fields(cls)
        fields = ((n, getattr(x, n)) for n in cls._fields)
        # A field that is None and no slot is None in Optax too.
        return cls(**{n: v if v is None and kinds[n] != SLOT else _marked(v) for n, v in fields})

    return jax.tree.map(mark, tree, is_leaf=lambda x: x is None or _is_named(x))


def _unmarked(tree: Any) -> Any:
    return jax.tree.map(
        lambda x: None if isinstance(x, _Masked) else x,
        tree,
        is_leaf=lambda x: isinstance(x, _Masked),
    )
