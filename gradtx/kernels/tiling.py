"""How a kernel goes through a leaf: a device's shard of it, and the tiles of that shard."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from gradtx.kernels import mosaic_gpu
from gradtx.kernels.cutting import Cut
from gradtx.storage.draws import Draws
from gradtx.storage.encoded import Blocks, blocks_of
from gradtx.storage.format import Codec
from gradtx.types import Array


class Shard(NamedTuple):
    """The shard of a leaf that one device has.

    Attributes:
        shape: its shape.
        blocks: how it is cut into blocks, all of them whole.
        whole: the shape of the leaf.
        sharding: of the leaf; None if it is on one device.
    """

    shape: tuple[int, ...]
    blocks: Blocks
    whole: tuple[int, ...]
    sharding: NamedSharding | None

    @classmethod
    def of(
        cls,
        cut: Cut,
        shardings: Mapping[Any, NamedSharding | None] | None,
        pieces: Callable[[tuple[int, ...]], Blocks | None],
    ) -> "Shard | None":
        """The shard of a cut's leaf; None if that is not known, or if blocks would be divided.

        Args:
            cut: the cut.
            shardings: of arrays; None on one device.
            pieces: ``shape -> blocks`` where slots have none.
        """
        shape, blocks, sharding = cut.shape, cut.blocks, None
        if shardings is not None:
            known = (shardings.get(v) for v in cut.arrays if v.aval.shape == shape)
            sharding = next(filter(None, known), None)
            if sharding is None:
                return None
            try:
                shape = sharding.shard_shape(shape)
                blocks = blocks and _divided(blocks, cut.shape, sharding)
            except ValueError:
                return None
        blocks = blocks or pieces(shape)
        return cls(shape, blocks, cut.shape, sharding) if blocks else None

    def rows(self, v: Any, cut: Cut) -> int:
        """The length of a block in an array: its entries, its packed bytes, or 1 for its scale.

        The last block of a parameter may be shorter.
        """
        if v.aval.shape == cut.shape or cut.blocks is None:
            return self.blocks.size
        return int(v.aval.shape[cut.blocks.axis]) // cut.blocks.number

    def shape_of(self, v: Any, cut: Cut) -> tuple[int, ...]:
        """The shape of a device's shard of an array."""
        if v.aval.shape == cut.shape:
            return self.shape
        return _along(self.shape, self.blocks, self.rows(v, cut))

    def formed(self, x: Array) -> Array:
        """A kernel's output, whose dimensions are those of tiles, with the leaf's dimensions."""
        axis = self.blocks.axis
        return x.reshape(*self.shape[:axis], -1, *self.shape[axis + 1 :])

    def run(self, kernel: Callable[..., list[Any]], cut: Cut) -> Callable[..., list[Any]]:
        """A function of whole leaves that runs a kernel on each device's shard of them."""
        if self.sharding is None:
            return kernel
        # On explicit axes this runs under `automatic`, which has set the mesh with automatic ones.
        is_set = AxisType.Explicit in self.sharding.mesh.axis_types
        whole, divided = PartitionSpec(), self.sharding.spec
        return jax.shard_map(
            kernel,
            mesh=None if is_set else self.sharding.mesh,
            in_specs=(*[whole for _ in cut.scalars], *[divided for _ in cut.arrays]),
            out_specs=[divided for _ in cut.outputs],
            check_vma=False,
        )

    def slot(self, codec: Codec) -> tuple[int, ...]:
        """The shape of the whole slot in a codec, with the padding of the last block."""
        blocks = blocks_of(codec, self.whole)
        return self.whole if blocks is None else _along(self.whole, blocks, blocks.size)

    def firsts(self, cut: Cut) -> dict[Codec, Array]:
        """The index in the whole slot of a shard's first entry, for codecs with random numbers.

        Empty on one device; otherwise inside of `run`.
        """
        if self.sharding is None:
            return {}
        spec = self.sharding.spec
        starts = [
            jax.lax.axis_index(spec[i]) * n if i < len(spec) and spec[i] else 0
            for i, n in enumerate(self.shape)
        ]
        return {
            codec: jnp.asarray(Draws.of((0, 0), self.slot(codec)).part(starts).start, jnp.int32)
            for codec in cut.drawn
        }


def _along(shape: tuple[int, ...], blocks: Blocks, r: int) -> tuple[int, ...]:
    """A leaf's shape, in which each block has the length `r` along its axis."""
    return (*shape[: blocks.axis], blocks.number * r, *shape[blocks.axis + 1 :])


def _divided(blocks: Blocks, shape: tuple[int, ...], sharding: NamedSharding) -> Blocks:
    """The blocks of a shard; ValueError if some would be divided."""
    if not blocks.fill(shape):
        sharding.shard_shape(_along(shape, blocks._replace(number=1), 1))
        return blocks
    return blocks._replace(number=sharding.shard_shape(_along(shape, blocks, 1))[blocks.axis])


class Window(NamedTuple):
    """A block of some array in a tile.

    Attributes:
        starts: where it begins in the array, by dimension.
        sizes: its size; None for a dimension that it does not have.
    """

    starts: list[Any]
    sizes: tuple[int | None, ...]

    def kept(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Of one value for each dimension of an array, the values of this window's dimensions."""
        return tuple(x for x, n in zip(values, self.sizes, strict=True) if n is not None)

    def draws(self, whole: Draws) -> Draws:
        """The random draws of the entries in this window, among those of the whole slot."""
        part = whole.part(self.starts)
        return part._replace(strides=self.kept(part.strides))

    def inside(self, tile: tuple[int, ...], shape: tuple[int, ...]) -> Array | None:
        """A mask of the tile's entries that lie in this window and in an array of some shape.

        A tile may be larger than the window. None if all its entries do.
        """
        ends = []
        dimensions = zip(*map(self.kept, (self.starts, self.sizes, shape)), strict=True)
        for axis, (start, size, length) in enumerate(dimensions):
            if size == tile[axis] and not length % size:
                continue
            along = jax.lax.broadcasted_iota(jnp.int32, tile, axis)
            if size < tile[axis]:
                ends.append(along < size)
            if length % size:
                ends.append(along < length - start)
        return functools.reduce(jnp.logical_and, ends) if ends else None


class Tiling(NamedTuple):
    """How a kernel goes through a leaf, and through the arrays of its encoded slots.

    An array has `r` rows in each block: as many entries as the block, or one scale, or half as many
    bytes as codes of four bits. They are the second dimension of what the grid sees.

    Attributes:
        grid: how many tiles there are.
        groups: ``(shape, r) -> groups``, an array's dimensions, those together that the grid sees
            as one.
        tile: ``r -> (shape, index)``, the tile and where it lies.
        blocks: how many blocks there are in a tile, one after another.
        axis: the axis of a tile along which a block lies.
    """

    grid: tuple[int, ...]
    groups: Callable[[tuple[int, ...], int], tuple[tuple[int, ...], ...]]
    tile: Callable[[int], tuple[Any, Callable[..., tuple[Any, ...]]]]
    blocks: int
    axis: int

    def seen(self, shape: tuple[int, ...], r: int) -> tuple[int, ...]:
        """The shape of an array as the grid sees it."""
        return tuple(map(math.prod, self.groups(shape, r)))

    def evenly(self, shard: Shard) -> bool:
        """Whether neighbours in a shard are equally far apart in the whole leaf.

        They are not if several dimensions are one to the grid, and another than the first of them
        is divided over devices.
        """
        size = shard.blocks.size
        both = zip(self.groups(shard.shape, size), self.groups(shard.whole, size), strict=True)
        return all(
            here == there or math.prod(group[:i]) == 1
            for group, whole in both
            for i, (here, there) in enumerate(zip(group, whole, strict=True))
        )

    def sizes(self, r: int) -> tuple[int | None, ...]:
        """The sizes of a block in a tile; None for a dimension that it does not have."""
        shape, _ = self.tile(r)
        return (shape[0], r, *shape[2:])

    def window(self, r: int, at: Sequence[Array], number: int = 0) -> Window:
        """The window of a block, by its number in a tile, of the tile at an index of the grid."""
        shape, index = self.tile(r)
        starts = [i * (n or 1) for i, n in zip(index(*at), shape, strict=True)]
        starts[1] += number * r
        return Window(starts, self.sizes(r))


ENTRIES = 2**18
"""How many entries of a leaf are in a tile on a TPU: with all that a kernel holds, 10 of 16 MB."""


def tpu_tiling(shape: tuple[int, ...], blocks: Blocks) -> Tiling | None:
    """Tiles of 8 blocks and 128 columns: the scales are then a whole register.

    Blocks along the last dimension lie across lanes. With several dimensions after the block's,
    such as heads, a register holds parts of many blocks: these leaves do not fit. Neither do those
    of fewer blocks, the last padded, whose rows are no multiple of 8: Mosaic takes no such tile.
    """
    axis, number, size = blocks
    if axis == len(shape) - 1:
        return _in_lanes(shape, blocks)
    if axis != len(shape) - 2:
        return None
    count, columns, before = min(number, 8), shape[-1], math.prod(shape[:axis])
    width = min(columns, 128 * max(1, 8 // count))
    rows = count * size
    if rows * width > ENTRIES or (rows % 8 and rows != shape[axis]):
        return None
    return Tiling(
        (before, -(-number // count), -(-columns // width)),
        lambda shape, _: (shape[:axis], shape[axis:-1], shape[-1:]),
        lambda r: ((None, count * r, width), lambda p, i, j: (p, i, j)),
        count,
        0,
    )


def _in_lanes(shape: tuple[int, ...], blocks: Blocks) -> Tiling | None:
    """Tiles of whole rows, in which blocks are whole registers."""
    _, number, size = blocks
    before, most = math.prod(shape[:-1]), ENTRIES // shape[-1] // 32 * 32
    if not blocks.fill(shape) or size % 128 or not 2 <= number <= 16 or min(before, most) < 8:
        return None
    many = min(before, most)
    return Tiling(
        (-(-before // many),),
        lambda shape, _: (shape[:-1], shape[-1:]),
        lambda r: ((many, number * r), lambda i: (i, 0)),
        number,
        1,
    )


def tpu_pieces(shape: tuple[int, ...]) -> Blocks | None:
    """Blocks of 256 rows; None for rows of no multiple of 128, which a TPU may lay by columns."""
    if len(shape) < 2 or shape[-1] % 128:
        return None
    axis, rows = len(shape) - 2, shape[-2]
    return Blocks(axis, -(-rows // 256), min(rows, 256))


def gpu_tiling(shape: tuple[int, ...], blocks: Blocks) -> Tiling | None:
    """A tile is a block of 32 columns, or 32 blocks along rows."""
    return None if blocks.size > 4096 else _by_block(shape, blocks, 2**13)


def mosaic_gpu_tiling(shape: tuple[int, ...], blocks: Blocks) -> Tiling | None:
    """A tile is a block of 16 columns or more, of which each thread holds at most 64 numbers.

    Blocks along rows do not fit: a thread would hold 128 numbers of a tile of 64 rows.
    """
    size, columns = blocks.size, math.prod(shape[blocks.axis + 1 :])
    if not blocks.fill(shape) or size % mosaic_gpu.ROWS or columns % mosaic_gpu.COLUMNS:
        return None
    if size > 512:
        return None
    entries = max(2**12, mosaic_gpu.COLUMNS * power_of_2(size))
    tiling = _by_block(shape, blocks, entries, divided=True)
    return tiling if mosaic_gpu.launches(tiling.grid) else None


def cpu_tiling(shape: tuple[int, ...], blocks: Blocks) -> Tiling | None:
    """Tiles of two megabytes, which stay in the cache, if columns can be so divided.

    Rows of a tile are long then: a core reads little from pages that it does not read on.
    """
    return _by_block(shape, blocks, 2**19, divided=True) if blocks.fill(shape) else None


def _by_block(
    shape: tuple[int, ...], blocks: Blocks, entries: int, *, divided: bool = False
) -> Tiling:
    """Tiles of one block and several columns, or, if it lies along rows, of several such blocks.

    Args:
        shape: of the leaf.
        blocks: of the leaf.
        entries: how many there are in a tile at most, but for a larger block.
        divided: whether all tiles are full.
    """
    axis, number, size = blocks
    before, columns = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    alone = columns == 1 and blocks.fill(shape)  # each is a row by itself
    if alone:
        before, number = before * number, 1
    along = columns if columns > 1 else before
    many = max(1, entries // power_of_2(size))
    many = math.gcd(along, many) if divided else min(power_of_2(along), many)
    if columns == 1:
        return Tiling(
            (-(-before // many), number),
            lambda shape, r: (
                ((*shape[:axis], shape[axis] // r), (r, *shape[axis + 1 :]))
                if alone
                else (shape[:axis], shape[axis:])
            ),
            lambda r: ((many, r), lambda i, k: (i, k)),
            1,
            1,
        )
    return Tiling(
        (before, number, -(-columns // many)),
        lambda shape, _: (shape[:axis], shape[axis : axis + 1], shape[axis + 1 :]),
        lambda r: ((None, r, many), lambda i, k, j: (i, k, j)),
        1,
        0,
    )


def power_of_2(n: int) -> int:
    """The least power of 2 that is at least `n`."""
    return 1 << (n - 1).bit_length()
