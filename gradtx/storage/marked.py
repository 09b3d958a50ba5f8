"""Slots in a codec whose reading and writing can be found in a traced program."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gradtx.numerics import compute_dtype
from gradtx.programs.opaque import opaque
from gradtx.storage.encoded import Encoded, decoded, encoded, numbers_of
from gradtx.storage.format import Codec
from gradtx.types import Array, PyTree, is_stored


def _decode(*arrays: Array, names: tuple[str, ...], codec: Codec, shape: tuple[int, ...]) -> Any:
    parts, key = parts_and_key(names, arrays)
    return [decoded(codec, parts, shape, key)]


def _encode(x: Array, *arrays: Array, names: tuple[str, ...], codec: Codec) -> Any:
    _, key = parts_and_key(names, arrays)
    parts = encoded(codec, x, key)
    return [parts[name] for name in names]


def parts_and_key(names: tuple[str, ...], arrays: Sequence[Any]) -> tuple[dict[str, Any], Any]:
    """The arrays that `decode_p` reads, as the parts of a slot and its random key or None."""
    return dict(zip(names, arrays, strict=False)), tuple(arrays[len(names) :]) or None


decode_p = opaque("decode", _decode)
"""``(parts, key) -> [slot]``, where the key is two numbers or nothing."""

encode_p = opaque("encode", _encode)
"""``(slot, old parts, key) -> [parts]``: what it overwrites is named, and not read."""


@jax.tree_util.register_pytree_with_keys_class
class Marked(Encoded):
    """A slot in a codec that is read by `decode_p` and written by `encode_p`."""

    @classmethod
    def can(cls, x: Any) -> bool:
        """Whether a slot can be `Marked`: in blocks or with a random key, and read as float32."""
        return (
            isinstance(x, Encoded)
            and (x.blocks is not None or x.key is not None)
            and compute_dtype(x.dtype) == jnp.float32
        )

    def load(self) -> Array:
        names = tuple(sorted(self.parts))
        arrays = [*(self.parts[n] for n in names), *(numbers_of(self.key) or ())]
        (x,) = decode_p.bind(*arrays, names=names, codec=self.codec, shape=self.shape)
        return jnp.asarray(x)

    def store(self, value: Array) -> Encoded:
        names, key = tuple(sorted(self.parts)), self.next_key()
        arrays = [*(self.parts[n] for n in names), *(numbers_of(key) or ())]
        new = encode_p.bind(value.astype(jnp.float32), *arrays, names=names, codec=self.codec)
        return self._with(dict(zip(names, new, strict=True)), key)


def marked(tree: PyTree) -> PyTree:
    """A tree in which slots are `Marked`, so that kernels find where they are read and written."""
    return _each(tree, Marked.can, Marked)


def plain(tree: PyTree) -> PyTree:
    """A tree in which slots that are `Marked` are ordinary `Encoded` ones again."""
    return _each(tree, lambda x: isinstance(x, Marked), Encoded)


def _each(tree: PyTree, which: Callable[[Any], bool], kind: type[Encoded]) -> PyTree:
    def one(x: Any) -> Any:
        return kind(x.parts, x.key, x.codec, x.shape, x.dtype) if which(x) else x

    return jax.tree.map(one, tree, is_leaf=is_stored)
