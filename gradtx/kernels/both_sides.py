"""Sums over the rows and over the columns of what a step computes, in one pass on a GPU.

A kernel of XLA's for GPUs reduces in one direction, so that rows and columns need two, besides the
one that writes the slot. Here tiles of a matrix are summed both ways by the kernel that writes it,
and XLA adds up the sums of tiles. Other platforms and older GPUs, several devices without
``shard_map``, exported programs, and matrices that do not fit the kernel are left to XLA.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import mlir

from gradtx.kernels import mosaic_gpu
from gradtx.numerics.compiler_hints import recompute
from gradtx.programs.opaque import (
    MOSAIC_GPU,
    TRITON,
    capability_here,
    gpu_compiler,
    is_exported,
    is_on_one_device,
    opaque,
    through,
)
from gradtx.types import Array

SIDE = 64
"""How many rows, and how many columns, are in a tile."""

Function = Callable[..., Array]


def written_and_summed(
    make: Function, terms: Function, slot: Array, *arrays: Any, after: tuple[Array, Array]
) -> tuple[Array, Array, Array]:
    """A new slot, and the sums over its rows and over its columns of terms computed from it.

    The slot is ``new = make(slot, *arrays)``, the terms are ``terms(new, *arrays)``.

    Args:
        make: a function of entries; like `terms` it closes over nothing.
        terms: a function of entries.
        slot: what is overwritten, at least a matrix; sums are over its last two dimensions.
        arrays: numbers, and arrays with which the slot can be broadcast to its own shape.
        after: two scalars for which, on a CPU, the new slot and the sums of rows wait, so that they
            share nothing; see :func:`recompute`.

    >>> new, rows, columns = written_and_summed(
    ...     jnp.add,
    ...     jnp.multiply,
    ...     jnp.ones((2, 3)),
    ...     x := jnp.arange(3.0)[None],
    ...     after=(x[0, 0],) * 2,
    ... )
    >>> rows.tolist(), columns.tolist()
    ([8.0, 8.0], [0.0, 4.0, 12.0])
    """
    operands = [
        jnp.asarray(x, slot.dtype) if isinstance(x, float) else jnp.asarray(x) for x in arrays
    ]
    new, rows, columns = written_and_summed_p.bind(*after, slot, *operands, make=make, terms=terms)
    return new, rows, columns


def _plain(
    first: Array, second: Array, slot: Array, *arrays: Array, make: Function, terms: Function
) -> list[Array]:
    new = recompute(make, slot, *arrays, after=first)
    rows = jnp.sum(recompute(terms, new, *arrays, after=second), -1)
    columns = jnp.sum(recompute(terms, new, *arrays, after=jnp.max(rows)), -2)
    return [new, rows, columns]


written_and_summed_p = opaque("written_and_summed", _plain)


def fits(slot: Any, *arrays: Any) -> bool:
    """Whether a slot and the arrays beside it can be cut into the tiles of the Pallas kernel."""
    *_, rows, columns = slot.shape
    if any(x.dtype != jnp.float32 for x in (slot, *arrays)) or rows % SIDE or columns % SIDE:
        return False
    return 0 not in slot.shape


def _grid(slot: Any) -> tuple[int, int, int]:
    *before, rows, columns = slot.shape
    return math.prod(before), rows // SIDE, columns // SIDE


def in_tiles(
    slot: Array,
    *arrays: Array,
    make: Function,
    terms: Function,
    compiler: str = TRITON,
    interpret: bool = False,
) -> list[Array]:
    """The results of `written_and_summed`, computed by a Pallas kernel on tiles of the arrays."""
    *_, rows, columns = slot.shape
    before, *_ = grid = _grid(slot)

    def seen(x: Array) -> Array:
        """An array with three dimensions: its matrices in one batch, or a single number for all."""
        if not x.ndim:
            return x.reshape(1, 1, 1)
        return x.reshape(-1, *x.shape[-2:])

    def tile(x: Array) -> _Tile:
        many, height, width = (n > 1 for n in x.shape)
        size = SIDE if height else 1, SIDE if width else 1
        return (None, *size), lambda b, i, j: (b * many, i * height, j * width)

    def new_and_sums(old: Array, *beside: Array) -> tuple[Array, Array, Array]:
        new = make(old, *beside)
        square = terms(new, *beside)
        return new, jnp.sum(square, 1), jnp.sum(square, 0)

    operands = [seen(x) for x in (slot, *arrays)]
    call = _call_mosaic_gpu if compiler == MOSAIC_GPU else _call_triton
    new, by_row, by_column = call(
        new_and_sums,
        list(map(tile, operands)),
        [
            tile(operands[0]),
            ((None, None, SIDE), lambda b, i, j: (b, j, i)),
            ((None, None, SIDE), lambda b, i, j: (b, i, j)),
        ],
        grid=grid,
        out_shape=[
            jax.ShapeDtypeStruct(shape, slot.dtype)
            for shape in (
                (before, rows, columns),
                (before, columns // SIDE, rows),
                (before, rows // SIDE, columns),
            )
        ],
        input_output_aliases={0: 0},
        interpret=interpret,
        name="written_and_summed",
    )(*operands)
    return [
        new.reshape(slot.shape),
        jnp.sum(by_row, 1).reshape(slot.shape[:-1]),
        jnp.sum(by_column, 1).reshape(*slot.shape[:-2], columns),
    ]


_Tile = tuple[tuple[int | None, ...], Callable[..., tuple[Any, ...]]]
"""A tile's sizes, None for a dimension that it does not have, and where it lies on the grid."""


def _call_triton(
    function: Callable[..., Any], inputs: Sequence[_Tile], outputs: Sequence[_Tile], **options: Any
) -> Any:
    """A kernel that applies a function to tiles that Pallas brings in."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    def body(*refs: Any) -> None:
        results = function(*(ref[...] for ref in refs[: len(inputs)]))
        for ref, x in zip(refs[len(inputs) :], results, strict=True):
            ref[...] = x

    return pl.pallas_call(
        body,
        in_specs=[pl.BlockSpec(*tile) for tile in inputs],
        out_specs=[pl.BlockSpec(*tile) for tile in outputs],
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=1),
        **options,
    )


def _call_mosaic_gpu(
    function: Callable[..., Any], inputs: Sequence[_Tile], outputs: Sequence[_Tile], **options: Any
) -> Any:
    """The same with tiles that the kernel takes from whole arrays."""
    shapes = [tuple(n for n in sizes if n is not None) for sizes, _ in inputs]

    def part(ref: Any, tile: _Tile) -> Any:
        sizes, index = tile
        places = index(*map(mosaic_gpu.place, range(3)))
        starts = [i * (n or 1) for i, n in zip(places, sizes, strict=True)]
        return mosaic_gpu.part(ref, starts, sizes)

    def body(*refs: Any) -> None:
        tiles = list(map(part, refs, (*inputs, *outputs)))
        values = map(mosaic_gpu.load, tiles[: len(inputs)], shapes)
        results = mosaic_gpu.on_tiles(function, shapes)(*values)
        for ref, x in zip(tiles[len(inputs) :], results, strict=True):
            mosaic_gpu.store(ref, x)

    return mosaic_gpu.call(body, **options)


STORED = "convolution custom_call dot_general optimization_barrier scatter transpose while"
"""Operations whose results are in memory anyway, such as a gradient's."""


def _is_stored(x: Any) -> bool:
    """Whether a value of the lowered program lies in memory, as an argument does.

    A gradient that is clipped, or converted from bfloat16, is computed by what reads it, and would
    be stored for the kernel.
    """
    operation = getattr(x.owner, "name", None)
    return not isinstance(operation, str) or operation.removeprefix("stablehlo.") in STORED.split()


def _lowered(ctx: Any, *values: Any, **static: Any) -> Any:
    kinds = ctx.avals_in[2:]
    whole = [x for x, kind in zip(values[2:], kinds, strict=True) if kind.size == kinds[0].size]
    on_gpu = tuple(ctx.module_context.platforms) == ("cuda",) and not is_exported(ctx)
    kernel = on_gpu and is_on_one_device(ctx) and fits(*kinds) and all(map(_is_stored, whole))
    compiler = gpu_compiler(capability_here()) if kernel else None
    if compiler == MOSAIC_GPU and not mosaic_gpu.launches(_grid(kinds[0])):
        compiler = None  # Triton's lowering joins the dimensions of such a grid

    def run(*arrays: Array) -> list[Array]:
        if compiler is None:
            return _plain(*arrays, **static)
        return in_tiles(*arrays[2:], compiler=compiler, **static)

    with through(compiler):
        return mlir.lower_fun(run, multiple_results=True)(ctx, *values)


# Not cached: only in place does it see what its operands are. One rule for all platforms: JAX does
# not lower for several at once what is not cached and has several rules.
mlir.register_lowering(written_and_summed_p, _lowered, cacheable=False)
