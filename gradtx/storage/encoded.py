"""A slot that is kept in a codec: a pytree of codes and scales, with the slot's shape."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.leaves.rows import put_rows, take_rows
from gradtx.leaves.written import written_by_names
from gradtx.numerics import compute_dtype
from gradtx.storage.companded import Companded
from gradtx.storage.dithered import Dithered
from gradtx.storage.draws import Draws
from gradtx.storage.dynamic import Int4, Int8
from gradtx.storage.floats import Float8, Short, Split
from gradtx.storage.format import NEAREST, SCALE, Codec, Format
from gradtx.types import Array

FORMATS: dict[str, Format] = {
    "bf16": Short(jnp.bfloat16),
    "f16": Short(jnp.float16),
    "bf16+8": Split(),
    "f8_e4m3": Float8(jnp.float8_e4m3fn),
    "f8_e5m2": Float8(jnp.float8_e5m2),
    "f8_expanded": Float8(jnp.float8_e4m3fn, expand=True),
    "int8": Int8(),
    "int8_companded": Companded(8, 32, jnp.float16),
    "int4_companded": Companded(4, 128, jnp.float32),
    "int4": Int4(),
    "int4_dithered": Dithered(),
}
"""The formats by name; docs/storage_measured.md says where each comes from."""


def as_codec(where: str, name_or_codec: Any) -> Codec:
    """A codec from its name, or one with options, checked.

    Raises:
        TypeError: it is neither.
        ValueError: there is none of that name, or it has no such option.
    """
    if not isinstance(name_or_codec, str | Codec):
        raise TypeError(f"{where}: a codec is a name or a gradtx.Codec, not {name_or_codec!r:.80}")
    codec = Codec(name_or_codec) if isinstance(name_or_codec, str) else name_or_codec
    form = FORMATS.get(codec.name)
    if form is None:
        raise ValueError(
            f"{where}: there is no codec {codec.name!r:.80}; there are {', '.join(FORMATS)}"
        )
    problem = None
    if form.block is None and (codec.block, codec.axis) != (None, None):
        problem = "keeps each entry alone, and takes no block and no axis"
    elif codec.block is not None and not _is_size(codec.block, form.per_byte):
        problem = f"takes a block of 2 entries or more, {'and even, ' * (form.per_byte - 1)}not "
        problem += repr(codec.block)
    elif not (codec.axis is None or type(codec.axis) is int):
        problem = f"takes an integer as axis, not {codec.axis!r}"
    elif codec.signed not in (None, True, False):
        problem = f"is signed or not, by True or False, not {codec.signed!r}"
    elif codec.rounding not in (None, *form.roundings):
        problem = f"rounds to {' or '.join(form.roundings)}, not {codec.rounding!r}"
    if problem:
        raise ValueError(f"{where}: {codec.name} {problem}")
    return codec


def _is_size(block: Any, per_byte: int) -> bool:
    return type(block) is int and block >= 2 and block % per_byte == 0


class Blocks(NamedTuple):
    """The blocks of a slot: `number` blocks of `size` entries along an axis, the last padded."""

    axis: int
    number: int
    size: int

    def fill(self, shape: tuple[int, ...]) -> bool:
        """Whether a slot of some shape fills its blocks, without padding."""
        return self.number * self.size == shape[self.axis]

    def padded(self, x: Array) -> Array:
        """A slot with zeros at the end of the axis, so that all blocks are full."""
        pad = self.number * self.size - x.shape[self.axis]
        return jnp.pad(x, [(0, pad * (i == self.axis)) for i in range(x.ndim)]) if pad else x

    def cut(self, x: Array) -> Array:
        """An array of full blocks, with their axis cut in two: the block, and the entry in it."""
        shape = x.shape
        return x.reshape(*shape[: self.axis], self.number, -1, *shape[self.axis + 1 :])

    def joined(self, x: Array) -> Array:
        """An array with one axis for blocks and entries again, padding included; undoes `cut`."""
        shape = x.shape
        return x.reshape(*shape[: self.axis], -1, *shape[self.axis + 2 :])


def blocks_of(codec: Codec, shape: tuple[int, ...]) -> Blocks | None:
    """The blocks into which a codec cuts a slot of some shape; None if entries share no scale.

    It depends on nothing but the shape, so codes do not depend on the number of devices.

    Raises:
        ValueError: the slot has no such axis.
    """
    form = FORMATS[codec.name]
    block = codec.block or form.block
    if block is None:
        return None
    axes = range(len(shape))
    if codec.axis is not None and not -len(shape) <= codec.axis < len(shape):
        raise ValueError(f"{codec.name}: a slot of shape {shape} has no axis {codec.axis}")

    def cut(axis: int) -> Blocks:
        count = max(1, -(-shape[axis] // block))
        size = max(1, -(-shape[axis] // count))
        return Blocks(axis, count, size + size % form.per_byte)

    def scales(blocks: Blocks) -> float:
        return blocks.number / max(1, shape[blocks.axis])

    return min(map(cut, axes), key=scales) if codec.axis is None else cut(codec.axis % len(shape))


KeyWords = tuple[Array, Array] | tuple[Array, Array, Array]


def numbers_of(key: Array | None) -> KeyWords | None:
    """A slot's random key as two int32, and a third for rows of a slot: their first place in it."""
    if key is None:
        return None
    first, second, *place = jax.lax.bitcast_convert_type(jnp.asarray(key), jnp.int32)
    return (first, second, place[0]) if place else (first, second)


def _packed(code: Array, axis: int) -> Array:
    """Codes of four bits in pairs in a byte: a code of a block's first half in the lower bits."""
    shape = code.shape
    halves = code.astype(jnp.int32).reshape(*shape[:axis], 2, shape[axis] // 2, *shape[axis + 1 :])
    return jnp.sum(halves << _places(halves.ndim, axis), axis).astype(jnp.uint8)


def _unpacked(code: Array, axis: int) -> Array:
    shape = code.shape
    halves = jnp.expand_dims(code.astype(jnp.int32), axis)
    halves = (halves >> _places(halves.ndim, axis)) & 15
    return halves.reshape(*shape[:axis], 2 * shape[axis], *shape[axis + 1 :])


def _places(ndim: int, axis: int) -> Array:
    """The shifts of the two codes in a byte, 0 and 4 bits, as an array along an axis."""
    return 4 * jax.lax.broadcasted_iota(jnp.int32, [1 + (i == axis) for i in range(ndim)], axis)


def parts_of(codec: Codec, x: Array, axis: int, draws: Draws | None) -> dict[str, Array]:
    """The encoded arrays of full blocks along an axis, by name; codes of four bits in pairs."""
    form = FORMATS[codec.name]
    if draws is not None:
        draws = draws._replace(of_scale=codec.rounding == SCALE)
    parts = form.encode(x, axis, bool(codec.signed), draws)
    if form.per_byte == 2:
        parts["codes"] = _packed(parts["codes"], axis)
    return parts


def numbers_in(codec: Codec, parts: dict[str, Array], axis: int, draws: Draws | None) -> Array:
    """The numbers of full blocks along an axis, decoded from the arrays of `parts_of`."""
    form = FORMATS[codec.name]
    if form.per_byte == 2:
        parts = parts | {"codes": _unpacked(parts["codes"], axis)}
    return form.decode(parts, axis, bool(codec.signed), draws)


def encoded(codec: Codec, value: Array, key: KeyWords | None) -> dict[str, Array]:
    """The arrays, by name, in which a codec keeps a slot: codes and scales for example."""
    blocks, x = blocks_of(codec, value.shape), value.astype(jnp.float32)
    if blocks is None:
        return parts_of(codec, x, 0, key and Draws.of(key, x.shape))
    cut, types = blocks.cut(blocks.padded(x)), FORMATS[codec.name].types
    parts = parts_of(codec, cut, blocks.axis + 1, key and Draws.of(key, cut.shape))
    return {n: blocks.joined(x).astype(types.get(n, x.dtype)) for n, x in parts.items()}


def decoded(
    codec: Codec, parts: dict[str, Array], shape: tuple[int, ...], key: KeyWords | None
) -> Array:
    """A slot of some shape in float32, from the arrays in which a codec keeps it."""
    blocks = blocks_of(codec, shape)
    if blocks is None:
        return numbers_in(codec, parts, 0, key and Draws.of(key, shape))
    cut = {n: blocks.cut(x) for n, x in parts.items()}
    cut_shape = (*shape[: blocks.axis], blocks.number, blocks.size, *shape[blocks.axis + 1 :])
    x = blocks.joined(numbers_in(codec, cut, blocks.axis + 1, key and Draws.of(key, cut_shape)))
    return jax.lax.slice_in_dim(x, 0, shape[blocks.axis], axis=blocks.axis)


@written_by_names
@jax.tree_util.register_pytree_with_keys_class
class Encoded:
    """A slot in a codec: a `Stored` pytree of arrays with as many dimensions as the slot.

    Codes lie as the slot's entries do, four-bit ones in pairs, one from each half of a block; there
    is one scale for each block along its axis.

    Args:
        parts: the arrays by name.
        key: the bits of a random key, uint32[2], if the codec needs one. Some rows of a slot have a
            third number, the place of their first entry in the slot.
        codec: the codec, with its axis and whether it is signed.
        shape: the slot's own shape.
        dtype: the type in which the slot would be kept otherwise.

    >>> slot = Encoded.of(jnp.linspace(-1, 1, 512), Codec("int8", signed=True))
    >>> slot
    Encoded(int8, (512,))
    >>> slot.parts["codes"].dtype, slot.parts["scale"].shape
    (dtype('uint8'), (2,))
    >>> bool(jnp.allclose(slot.load(), jnp.linspace(-1, 1, 512), atol=0.0071))
    True
    """

    def __init__(
        self, parts: dict[str, Any], key: Any, codec: Codec, shape: tuple[int, ...], dtype: Any
    ) -> None:
        self.parts, self.key, self.codec = parts, key, codec
        self.shape, self.dtype = tuple(shape), jnp.dtype(dtype)

    @classmethod
    def of(cls, x: Array, codec: Codec, key: Array | None = None) -> "Encoded":
        """The array `x` encoded by a codec.

        Args:
            x: a real array of at least one dimension.
            codec: the codec; `signed` is True if it is None, and `rounding` goes by it.
            key: a random key, by default that of the seed 0; only codecs that need one keep it.
        """
        form = FORMATS[codec.name]
        blocks = blocks_of(codec, x.shape)
        signed = codec.signed is not False
        codec = codec._replace(
            axis=None if blocks is None else blocks.axis,
            signed=signed,
            rounding=codec.rounding or (NEAREST if signed else form.of_averages),
        )
        drawn = form.drawn or codec.rounding != NEAREST
        bits = None
        if drawn:
            bits = jax.random.key_data(jax.random.key(0) if key is None else key)
        # XLA would encode zeros while it compiles, which takes it minutes for a large slot.
        x = jax.lax.optimization_barrier(x)
        return cls({}, bits, codec, x.shape, x.dtype).store(x)

    @property
    def blocks(self) -> Blocks | None:
        """The blocks of the slot; None if its entries share no scales."""
        return blocks_of(self.codec, self.shape)

    @property
    def is_read_by_key(self) -> bool:
        """Whether codes can only be read with the key with which they were written."""
        return FORMATS[self.codec.name].drawn

    @property
    def size(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"Encoded({self.codec.name}, {self.shape})"

    def load(self) -> Array:
        """The slot, in at least float32."""
        return self._decoded(self.parts, self.shape)

    def store(self, value: Array) -> "Encoded":
        """Another value in the same codec, with the next random key."""
        key = self.next_key()
        return self._with(encoded(self.codec, value, numbers_of(key)), key)

    def entries(self) -> list[Array]:
        """The arrays with a number for each entry, such as its code, in the slot's shape."""
        blocks, entries = self.blocks, []
        for name in ("codes", "values", "residual"):
            if name in self.parts:
                x = self.parts[name]
                if blocks is not None:
                    if FORMATS[self.codec.name].per_byte == 2:
                        x = blocks.joined(_unpacked(blocks.cut(x), blocks.axis + 1))
                    x = jax.lax.slice_in_dim(x, 0, self.shape[blocks.axis], axis=blocks.axis)
                entries.append(x.astype(jnp.float32))
        return entries

    def of_parts(
        self, parts: dict[str, Array], shape: tuple[int, ...], axis: int | None
    ) -> "Encoded":
        """A slot of another shape in the same codec, whose blocks lie along `axis`."""
        codec = self.codec._replace(axis=axis)
        return type(self)(parts, self.key, codec, shape, self.dtype)

    def of_rows(self, parts: dict[str, Array], rows: int, first: Array) -> "Encoded":
        """Some rows as a slot, whose entries get the random numbers that they get in this one.

        Args:
            parts: the encoded arrays of the rows.
            rows: how many rows there are. No block may lie along them.
            first: the number of the first row.
        """
        slot = self.of_parts(parts, (rows, *self.shape[1:]), self.codec.axis)
        numbers = numbers_of(self.key)
        if self.key is None or numbers is None:
            return slot
        shape, blocks = self.shape, self.blocks
        if blocks is not None:
            size = blocks.number * blocks.size
            shape = (*shape[: blocks.axis], size, *shape[blocks.axis + 1 :])
        draws = Draws.of(numbers, shape).part([first, *[0] * (self.ndim - 1)])
        start = jax.lax.bitcast_convert_type(jnp.asarray(draws.start, jnp.int32), self.key.dtype)
        return slot.with_key(jnp.append(self.key[:2], start))

    def holding(self, other: "Encoded") -> "Encoded":
        """This slot with the encoded arrays of another, whose codec may round in another way.

        Its random key is this one's, unless both have one.
        """
        key = self.key if self.key is None or other.key is None else other.key
        return self._with(other.parts, key)

    def with_key(self, key: Array | None) -> "Encoded":
        """The same codes with another random key."""
        return self._with(self.parts, key)

    def take(self, indices: Array) -> Array:
        """Some rows, decoded alone if no block has entries of several rows."""
        if not self.in_rows:
            return take_rows(self.load(), indices)
        rows = {n: take_rows(x, indices) for n, x in self.parts.items()}
        return self._decoded(rows, (*indices.shape, *self.shape[1:]))

    def put(self, indices: Array, values: Array) -> "Encoded":
        """Other values for some rows."""
        if not self.in_rows:
            return self.store(put_rows(self.load(), indices, values))
        key = self.next_key()
        rows = encoded(self.codec, values, numbers_of(key))
        parts = {n: put_rows(x, indices, rows[n]) for n, x in self.parts.items()}
        return self._with(parts, key)

    @property
    def in_rows(self) -> bool:
        """Whether rows can be decoded and encoded without the other rows."""
        blocks = self.blocks
        return not self.is_read_by_key and (blocks is None or blocks.axis > 0)

    def _with(self, parts: dict[str, Array], key: Array | None) -> "Encoded":
        return type(self)(parts, key, self.codec, self.shape, self.dtype)

    def next_key(self) -> Array | None:
        """The bits of the random key with which the next value is stored; None without a key."""
        if self.key is None:
            return None
        bits, place = (self.key[:2], self.key[2:]) if len(self.key) > 2 else (self.key, None)
        key = jax.random.fold_in(jax.random.wrap_key_data(bits, impl="threefry2x32"), 0)
        bits = jax.random.key_data(key)
        return bits if place is None else jnp.concatenate([bits, place])

    def _decoded(self, parts: dict[str, Array], shape: tuple[int, ...]) -> Array:
        x = decoded(self.codec, parts, shape, numbers_of(self.key))
        return x.astype(compute_dtype(self.dtype))

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        names = tuple(sorted(self.parts))
        children = [(jax.tree_util.GetAttrKey(n), self.parts[n]) for n in names]
        children.append((jax.tree_util.GetAttrKey("key"), self.key))
        return children, (names, self.codec, self.shape, self.dtype)

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> "Encoded":
        names, codec, shape, dtype = aux
        *parts, key = children
        return cls(dict(zip(names, parts, strict=True)), key, codec, shape, dtype)


def is_encoded(x: Any) -> bool:
    """Whether `x` is a slot in a codec."""
    return isinstance(x, Encoded)
