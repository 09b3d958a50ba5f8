"""States in functions that `jax.export` writes as bytes."""

import contextlib
import functools
import json
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import export

from gradtx.composition.chain import NamedStates
from gradtx.leaves.packed import is_packed
from gradtx.names.earlier import in_files
from gradtx.storage.encoded import Encoded
from gradtx.storage.format import Codec
from gradtx.tree.search import children_of
from gradtx.types import State


def register_serialization(state: State) -> None:
    """Let ``jax.export`` write, and read again, functions that take or return such a state.

    JAX serializes a function's trees of arguments and results only if their types are registered.
    Call this before ``serialize`` and, in the process that reads the bytes, before ``deserialize``.
    It may be called again, and for states of other libraries too.

    Args:
        state: a state, or one of ``jax.ShapeDtypeStruct``: the types of its parts are registered.

    Raises:
        ValueError: parameters are packed, by :func:`pack`.

    >>> import gradtx, jax, jax.numpy as jnp
    >>> tx, params = gradtx.adam(0.1), jnp.ones(2)
    >>> state = tx.init(params)
    >>> register_serialization(state)
    >>> step = jax.jit(lambda p, state, g: tx.update(g, state, p), donate_argnums=1)
    >>> exported = jax.export.export(step, platforms=["cpu", "cuda", "tpu"])(params, state, params)
    >>> again = jax.export.deserialize(exported.serialize())
    >>> again.call(params, state, params)[0].round(6).tolist()
    [-0.10..., -0.10...]
    """
    if is_packed(state):
        raise ValueError(
            "register_serialization: JAX cannot write packed parameters and slots: export a step "
            "of gradtx.unpack(params) and gradtx.unpack(state)"
        )
    if hasattr(state, "_fields") or _reader(state.__class__) is not None:
        _register(state.__class__)
    for _, child in children_of(state):
        register_serialization(child)


def _names(data: Any) -> Any:
    return tuple(data)


def _storage(data: Any) -> Any:
    names, codec, shape, dtype = data
    return tuple(names), Codec(*codec), tuple(shape), jnp.dtype(dtype)


# For types that are not named tuples: how to read the parts that are not arrays from JSON.
_OWN = {NamedStates: _names, Encoded: _storage}


def _reader(kind: type) -> Callable[[Any], Any] | None:
    """The function that reads the parts of a type beside arrays, if need be its `from_json`."""
    return _OWN.get(kind) or getattr(kind, "from_json", None)


@functools.cache
def _register(kind: type) -> None:
    name = f"{in_files(kind.__module__)}.{kind.__qualname__}"
    read = _reader(kind)
    if read is not None:
        export.register_pytree_node_serialization(
            kind,
            serialized_name=name,
            serialize_auxdata=lambda auxdata: json.dumps(auxdata, default=str).encode(),
            deserialize_auxdata=lambda data: read(json.loads(data)),
        )
        return
    with contextlib.suppress(ValueError):  # the class's own library may have registered it
        export.register_namedtuple_serialization(kind, serialized_name=name)
