"""Slots in a codec whose reading and writing can be found in a traced program."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gradtx.numerics import compute_dtype
from gradtx.numerics.opaque import opaque
from gradtx.storage.encoded import Encoded
from gradtx.storage.format import Codec
from gradtx.types import Array, PyTree, is_stored


def _decode(*parts: Array, names: tuple[str, ...], codec: Codec, shape: tuple[int, ...]) -> Any:
    held = dict(zip(names, parts, strict=True))
    return [Encoded(held, None, codec, shape, jnp.float32).load()]


def _encode(x: Array, *old: Array, names: tuple[str, ...], codec: Codec) -> Any:
    parts = (
        Encoded(dict(zip(names, old, strict=True)), None, codec, x.shape, x.dtype).store(x).parts
    )
    return [parts[name] for name in names]


decode_p = opaque("decode", _decode)
"""``(parts) -> [slot]``."""

encode_p = opaque("encode", _encode)
"""``(slot, old parts) -> [parts]``: what it overwrites is named, and not read."""


@jax.tree_util.register_pytree_with_keys_class
class Marked(Encoded):
    """A slot in a codec that is read by `decode_p` and written by `encode_p`."""

    @classmethod
    def can(cls, x: Any) -> bool:
        """Whether a slot can be one: kept in blocks, without a key, and computed in float32."""
        return (
            isinstance(x, Encoded)
            and x.key is None
            and x.blocks is not None
            and compute_dtype(x.dtype) == jnp.float32
        )

    def load(self) -> Array:
        names = tuple(sorted(self.parts))
        parts = [self.parts[n] for n in names]
        (x,) = decode_p.bind(*parts, names=names, codec=self.codec, shape=self.shape)
        return jnp.asarray(x)

    def store(self, value: Array) -> Encoded:
        names = tuple(sorted(self.parts))
        old = [self.parts[n] for n in names]
        new = encode_p.bind(value.astype(jnp.float32), *old, names=names, codec=self.codec)
        return self._with(dict(zip(names, new, strict=True)), None)


def marked(tree: PyTree) -> PyTree:
    """A tree with its slots marked, where they can be."""
    return _each(tree, Marked.can, Marked)


def plain(tree: PyTree) -> PyTree:
    """A tree with its slots as they were."""
    return _each(tree, lambda x: isinstance(x, Marked), Encoded)


def _each(tree: PyTree, which: Callable[[Any], bool], kind: type[Encoded]) -> PyTree:
    def one(x: Any) -> Any:
        return kind(x.parts, x.key, x.codec, x.shape, x.dtype) if which(x) else x

    return jax.tree.map(one, tree, is_leaf=is_stored)
