"""Tiles of leaves: every entry is in one, and what belongs to a block lies along its axis."""

# Sees mutants of: matrix_layout.

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gradtx
from gradtx.kernels.tiling import (
    Shard,
    Window,
    cpu_tiling,
    gpu_tiling,
    power_of_2,
    tpu_pieces,
    tpu_tiling,
)
from gradtx.storage.encoded import Blocks, blocks_of

TILINGS = {"TPU": tpu_tiling, "GPU": gpu_tiling, "CPU": cpu_tiling}
FOUND = [
    # chip, shape, blocks, the grid, and the size of a tile
    ("TPU", (512, 160), (0, 2, 256), (1, 1, 1), (None, 512, 160)),
    ("TPU", (768, 1024), (0, 3, 256), (1, 1, 4), (None, 768, 256)),
    ("TPU", (2048, 512), (0, 8, 256), (1, 1, 4), (None, 2048, 128)),  # 2**18 entries
    ("TPU", (576, 128), (0, 9, 64), (1, 2, 1), (None, 512, 128)),
    ("TPU", (2, 2560, 24), (1, 10, 256), (2, 2, 1), (None, 2048, 24)),
    ("TPU", (100, 64), (0, 1, 100), (1, 1, 1), (None, 100, 64)),
    ("TPU", (527, 160), (0, 3, 176), (1, 1, 1), (None, 528, 160)),
    ("TPU", (8, 512), (1, 2, 256), (1,), (8, 512)),
    ("TPU", (2, 500, 512), (2, 2, 256), (2,), (512, 512)),
    ("TPU", (64, 2048), (1, 16, 128), (1,), (64, 2048)),
    ("GPU", (512, 160), (0, 2, 256), (1, 2, 5), (None, 256, 32)),
    ("GPU", (512, 8), (0, 2, 256), (1, 2, 1), (None, 256, 8)),
    ("GPU", (512, 2), (0, 2, 256), (1, 2, 1), (None, 256, 2)),
    ("GPU", (256, 4, 8), (0, 1, 256), (1, 1, 1), (None, 256, 32)),
    ("GPU", (3, 521, 40), (1, 3, 174), (3, 3, 2), (None, 174, 32)),
    ("GPU", (3, 4, 512), (2, 2, 256), (1, 1), (32, 256)),
    ("GPU", (3, 2, 521), (2, 3, 174), (1, 3), (8, 174)),
    ("GPU", (40, 521), (1, 3, 174), (2, 3), (32, 174)),
    ("GPU", (1024,), (0, 4, 256), (1, 1), (4, 256)),
    ("GPU", (10240,), (0, 40, 256), (2, 1), (32, 256)),
    ("GPU", (521,), (0, 3, 174), (1, 3), (1, 174)),
    ("CPU", (512, 1536), (0, 2, 256), (1, 2, 3), (None, 256, 512)),
    ("CPU", (250, 3, 5), (0, 1, 250), (1, 1, 15), (None, 250, 1)),
    ("CPU", (2, 96, 6), (1, 3, 32), (2, 3, 3), (None, 32, 2)),
    ("CPU", (6, 64), (1, 2, 32), (3, 1), (4, 32)),
]


def windows(tiling, x, r):
    """What is in each window of an array, by the window's number."""
    for at in itertools.product(*map(range, tiling.grid)):
        for b in range(tiling.blocks):
            window = tiling.window(r, at, b)
            sizes = [1 if n is None else n for n in window.sizes]
            own = [slice(i, i + n) for i, n in zip(window.starts, sizes, strict=True)]
            found = x[tuple(own)]
            yield found.reshape(window.kept(found.shape))


@pytest.mark.parametrize(("chip", "shape", "blocks", "grid", "tile"), FOUND)
def test_every_entry_is_in_one_tile_beside_those_of_its_block(chip, shape, blocks, grid, tile):
    blocks = Blocks(*blocks)
    tiling = TILINGS[chip](shape, blocks)
    assert (tiling.grid, tiling.tile(blocks.size)[0]) == (grid, tile)
    axis, _, size = blocks
    places = np.arange(math.prod(shape)).reshape(shape)
    few = (*shape[:axis], blocks.number, *shape[axis + 1 :])
    scales = np.arange(math.prod(few)).reshape(few)
    of_entries = np.take(scales, np.arange(shape[axis]) // size, axis)
    entries, own, of_blocks = (
        list(windows(tiling, x.reshape(tiling.seen(x.shape, r)), r))
        for x, r in ((places, size), (of_entries, size), (scales, 1))
    )
    for found, count in ((entries, places.size), (of_blocks, scales.size)):
        # The tile of a last block may lie beyond the array, and there is nothing.
        assert sorted(np.concatenate([x.ravel() for x in found])) == list(range(count))
    stride = math.prod(shape[axis + 1 :])
    for place, scale, block in zip(entries, own, of_blocks, strict=True):
        along = np.moveaxis(place, tiling.axis, 0)
        steps = (np.arange(len(along)) * stride).reshape(-1, *[1] * (along.ndim - 1))
        np.testing.assert_array_equal(along, along[:1] + steps)
        np.testing.assert_array_equal(scale, np.broadcast_to(block, scale.shape))


@pytest.mark.parametrize(
    ("chip", "shape", "blocks"),
    [
        ("TPU", (2304, 512), (0, 8, 288)),  # more than is in a tile
        ("TPU", (521, 160), (0, 3, 174)),  # rows that are no multiple of 8
        ("TPU", (256, 4, 8), (0, 1, 256)),  # dimensions after the block's
        ("TPU", (1024,), (0, 4, 256)),
        ("TPU", (16, 300), (1, 2, 150)),  # blocks that are no whole registers
        ("TPU", (16, 500), (1, 2, 256)),
        ("TPU", (64, 256), (1, 1, 256)),
        ("TPU", (64, 2176), (1, 17, 128)),
        ("TPU", (7, 512), (1, 2, 256)),
        ("TPU", (64, 16384), (1, 16, 1024)),
        ("GPU", (4097, 8), (0, 1, 4097)),
        ("CPU", (521, 8), (0, 3, 174)),
    ],
)
def test_what_does_not_fit_has_no_tiles(chip, shape, blocks):
    assert TILINGS[chip](shape, Blocks(*blocks)) is None


def test_the_largest_blocks():
    found = gpu_tiling((4096, 8), Blocks(0, 1, 4096))
    assert (found.grid, found.tile(4096)[0]) == ((1, 1, 4), (None, 4096, 2))
    for rows in (2**19, 2**20):  # a tile holds one however large it is
        found = cpu_tiling((rows, 4), Blocks(0, 1, rows))
        assert (found.grid, found.tile(rows)[0]) == ((1, 1, 4), (None, rows, 1))
    assert list(map(power_of_2, (1, 2, 5, 8))) == [1, 2, 8, 8]


@pytest.mark.parametrize(
    ("shape", "blocks"),
    [
        ((2, 300, 128), (1, 2, 256)),
        ((512, 256), (0, 2, 256)),
        ((100, 256), (0, 1, 100)),
        ((3, 2, 257, 128), (2, 2, 256)),
        ((300, 64), None),
        ((256,), None),
    ],
)
def test_slots_without_blocks_are_in_pieces_on_a_tpu(shape, blocks):
    assert tpu_pieces(shape) == (blocks and Blocks(*blocks))


@pytest.mark.parametrize(
    ("starts", "sizes", "tile", "shape"),
    [
        ([1, 5, 8], (None, 5, 8), (8, 8), (2, 8, 16)),  # larger than the block, which is cut
        ([1, 0, 8], (None, 8, 8), (8, 8), (2, 16, 12)),
        ([4, 3], (4, 3), (4, 4), (6, 6)),
        ([0, 8, 8], (None, 8, 8), (8, 8), (2, 16, 16)),
    ],
)
def test_entries_of_a_tile_that_are_in_the_array(starts, sizes, tile, shape):
    window = Window(starts, sizes)
    kept = zip(*map(window.kept, (starts, sizes, shape)), np.indices(tile), strict=True)
    want = np.all([(i < size) & (start + i < length) for start, size, length, i in kept], axis=0)
    found = window.inside(tile, shape)
    assert (found is None) == want.all()
    np.testing.assert_array_equal(want if found is None else found, want)


@dataclasses.dataclass(eq=False)
class Variable:
    aval: jax.ShapeDtypeStruct


@dataclasses.dataclass
class Leaf:
    """What a shard reads of a cut: a leaf, and the scales of its blocks."""

    shape: tuple
    blocks: Blocks | None
    drawn: tuple = ()

    def __post_init__(self):
        axis, number, _ = self.blocks or Blocks(0, 1, self.shape[0])
        few = (*self.shape[:axis], number, *self.shape[axis + 1 :])
        self.arrays = [Variable(jax.ShapeDtypeStruct(x, jnp.float32)) for x in (few, self.shape)]


def on(*axes):
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    return NamedSharding(mesh, PartitionSpec(*axes))


def shard(leaf, *axes, pieces=lambda shape: None):
    scales, whole = leaf.arrays
    return Shard.of(leaf, {scales: on(), whole: on(*axes)}, pieces)


@pytest.mark.parametrize(
    ("shape", "blocks", "axes", "own", "number"),
    [
        ((1024, 16), (0, 4, 256), ("a",), (256, 16), 1),
        ((1024, 16), (0, 4, 256), ("b", "a"), (512, 4), 2),
        ((2, 1024, 16), (1, 4, 256), (None, "b", "a"), (2, 512, 4), 2),
        ((522, 16), (0, 3, 176), (None, "a"), (522, 4), 3),  # the last block is not full
    ],
)
def test_a_device_has_whole_blocks(shape, blocks, axes, own, number):
    leaf = Leaf(shape, Blocks(*blocks))
    part = shard(leaf, *axes)
    assert (part.shape, part.blocks) == (own, leaf.blocks._replace(number=number))
    scales, whole = leaf.arrays
    assert [part.rows(v, leaf) for v in leaf.arrays] == [1, blocks[2]]
    assert part.shape_of(whole, leaf) == own
    axis = blocks[0]
    few = (*own[:axis], number, *own[axis + 1 :])
    assert part.shape_of(scales, leaf) == few
    tiling = cpu_tiling(own, part.blocks._replace(size=own[axis] // number))
    for x in (jax.ShapeDtypeStruct(own, jnp.float32), jax.ShapeDtypeStruct(few, jnp.float32)):
        seen = jax.ShapeDtypeStruct(tiling.seen(x.shape, 1), x.dtype)
        assert jax.eval_shape(part.formed, seen).shape == x.shape


def test_what_would_divide_a_block_or_is_not_known_has_no_shard():
    assert shard(Leaf((1024, 16), Blocks(0, 4, 256)), ("a", "b")) is None
    assert shard(Leaf((522, 16), Blocks(0, 3, 176)), "b") is None
    leaf = Leaf((1024, 16), Blocks(0, 4, 256))
    assert Shard.of(leaf, {leaf.arrays[0]: on()}, tpu_pieces) is None
    assert Shard.of(leaf, None, tpu_pieces) == ((1024, 16), leaf.blocks, (1024, 16), None)
    assert shard(Leaf((1024, 64), None), "a", pieces=tpu_pieces) is None
    part = shard(Leaf((1024, 128), None), "b", pieces=tpu_pieces)
    assert (part.shape, part.blocks) == ((512, 128), Blocks(0, 2, 256))
    assert part.rows(leaf.arrays[0], Leaf((1024, 128), None)) == 256


@pytest.mark.parametrize(
    ("axes", "evenly"),
    [((), True), (("b",), True), ((None, "a"), False), ((None, None, None, "a"), False)],
)
def test_of_dimensions_that_are_seen_as_one_only_the_first_may_be_divided(axes, evenly):
    leaf = Leaf((2, 4, 256, 4), Blocks(2, 1, 256))
    part = shard(leaf, *axes)
    assert cpu_tiling(part.shape, part.blocks).evenly(part) == evenly


def test_a_device_knows_its_place_in_the_slot():
    codec = gradtx.Codec("int8", axis=1, rounding="stochastic")
    shape = (2, 522, 16)  # three blocks of 174
    leaf = Leaf(shape, blocks_of(codec, shape), (codec,))
    part = shard(leaf, "b", None, "a")
    found = jax.shard_map(
        lambda: part.firsts(leaf)[codec][None, None],
        mesh=part.sharding.mesh,
        in_specs=(),
        out_specs=PartitionSpec("b", "a"),
        check_vma=False,
    )
    assert jax.jit(found)().tolist() == [[0, 4, 8, 12], [522 * 16 + i for i in (0, 4, 8, 12)]]
    assert Shard.of(leaf, None, tpu_pieces).firsts(leaf) == {}
