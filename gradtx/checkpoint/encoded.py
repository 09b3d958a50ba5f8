"""Slots in codecs as named arrays, and back."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from gradtx.leaves.paths import path_string
from gradtx.storage import Encoded, as_codec, is_encoded
from gradtx.storage.encoded import FORMATS
from gradtx.storage.format import Codec

HALVES = 5
"""The first format in which a byte of two codes has one from each half of a block."""


def parts_of(path: str, leaf: Any) -> Iterator[tuple[str, Any]]:
    """The arrays of which a leaf of a state consists, with their paths."""
    if not is_encoded(leaf):
        yield path, leaf
        return
    for key, array in jax.tree_util.tree_flatten_with_path(leaf)[0]:
        yield f"{path}/{path_string(key)}" if path else path_string(key), array


def written(slot: Encoded) -> dict[str, Any]:
    """The entry of an encoded slot in a header: its codec, shape and type."""
    return {**slot.codec._asdict(), "shape": list(slot.shape), "dtype": str(slot.dtype)}


def gathered(flat: Mapping[str, Any], header: Mapping[str, Any], version: int) -> dict[str, Any]:
    """The arrays of a state dict, with encoded slots in place of their parts.

    Args:
        flat: the arrays by name.
        header: the state dict's record of encoded slots.
        version: the format of the state dict.

    Raises:
        ValueError: a slot's parts are missing, do not fit its codec, or can no longer be read.
    """
    entries = dict(flat)
    for path, said in header.items():
        like = _like(path, said)
        names = [name for name, _ in parts_of(path, like)]
        parts = [entries.pop(name, None) for name in names]
        for name, want, part in zip(names, jax.tree.leaves(like), parts, strict=True):
            if part is None:
                raise ValueError(f"the state dict has no {name!r}, a part of an encoded slot")
            if (np.shape(part), part.dtype) != (want.shape, want.dtype):
                raise ValueError(
                    f"the entry {name!r} of a state dict is {part.dtype}{list(np.shape(part))}, "
                    f"where its codec has {want.dtype}{list(want.shape)}"
                )
        structure: Any = jax.tree.structure(like)
        slot = structure.unflatten(parts)
        entries[path] = slot if version >= HALVES else _from_neighbours(path, slot)
    return entries


def _from_neighbours(path: str, slot: Encoded) -> Encoded:
    """An encoded slot from an earlier layout, in which a byte held two neighbouring codes."""
    form, blocks = FORMATS[slot.codec.name], slot.blocks
    if form.per_byte == 1 or blocks is None:
        return slot
    if form.drawn and slot.codec.signed:
        raise ValueError(
            f"the slot {path!r} is in {slot.codec.name} with the dither of an earlier gradtx, "
            "which this one cannot draw; load it with that one, and save it in another codec"
        )
    codes = np.moveaxis(np.asarray(slot.parts["codes"]), blocks.axis, -1)
    each = np.stack([codes & 15, codes >> 4], -1)
    halves = each.reshape(*codes.shape[:-1], blocks.number, 2, blocks.size // 2)
    paired = (halves[..., 0, :] | halves[..., 1, :] << 4).reshape(codes.shape)
    parts = slot.parts | {"codes": np.moveaxis(paired, -1, blocks.axis)}
    return Encoded(parts, slot.key, slot.codec, slot.shape, slot.dtype)


def _like(path: str, said: Any) -> Any:
    """The encoded slot that a header describes, with shapes for its arrays."""
    try:
        codec = as_codec(repr(path), Codec(**{name: said[name] for name in Codec._fields}))
        shape = jax.ShapeDtypeStruct(tuple(map(int, said["shape"])), np.dtype(said["dtype"]))
        return jax.eval_shape(lambda: Encoded.of(jax.numpy.zeros(shape.shape, shape.dtype), codec))
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise ValueError(f"the header of the state dict is damaged: {path!r}: {error}") from None
