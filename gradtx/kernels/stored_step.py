"""Steps on stored slots as one kernel for each leaf: decode, rule, encode, without a float32 slot.

XLA computes the scale of a block before its codes, and stores the slot in between, or computes it
twice. A Pallas kernel holds whole blocks in fast memory and moves only codes, scales, gradient and
parameter. Its body is the rule itself, cut out of the program of the step, so nothing is written
twice. TPUs get it through Mosaic, NVIDIA's GPUs through Triton or, where JAX has lost that, through
Mosaic GPU, and CPUs as a loop over tiles that fit in the cache. If a leaf is divided over devices
and the engine knows how, each device runs the kernel on its shard, which has whole blocks. A step
that does not fit a kernel runs as it is.
"""

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal, jaxpr_as_fun
from jax.interpreters import mlir
from jax.sharding import NamedSharding

from gradtx.core.traits import not_handed_on
from gradtx.kernels import mosaic_gpu
from gradtx.kernels.cutting import Cut, cuts, inlined, run_with_kernels
from gradtx.kernels.tiling import (
    Shard,
    Tiling,
    Window,
    cpu_tiling,
    gpu_tiling,
    mosaic_gpu_tiling,
    power_of_2,
    tpu_pieces,
    tpu_tiling,
)
from gradtx.leaves.memory import is_on_host
from gradtx.leaves.paths import path_string, with_paths
from gradtx.leaves.shardings import known_sharding, shardings_are_known
from gradtx.numerics import half
from gradtx.numerics.compiler_hints import delay, true_after
from gradtx.numerics.root import root_p
from gradtx.programs.interpreter import Program, advance, uses
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
from gradtx.programs.tracing import is_tracer
from gradtx.storage.draws import Draws
from gradtx.storage.encoded import FORMATS, Blocks, Encoded, KeyWords, numbers_in, parts_of
from gradtx.storage.format import Codec
from gradtx.storage.marked import Marked, decode_p, encode_p, marked, parts_and_key, plain
from gradtx.types import Array, DType, Params, State, Updates, is_stored


def in_kernels(
    step: Callable[..., tuple[Any, State]],
    updates: Updates,
    state: State,
    params: Params | None,
    extra_args: dict[str, Any],
    *,
    whole: bool,
) -> tuple[Any, State]:
    """``step(updates, state, params, **extra_args)``, with a kernel for each leaf of encoded slots.

    Args:
        step: an update, or a whole step.
        updates: a tree.
        state: its state. Without encoded slots, or outside of a trace, this only calls `step`.
        params: the parameters.
        extra_args: more arguments.
        whole: whether it returns new parameters, in place of the old ones.
    """
    arrays = {n: v for n, v in extra_args.items() if not callable(v)}
    functions = {n: v for n, v in extra_args.items() if callable(v)}
    slots = jax.tree.leaves(state, is_leaf=is_stored)
    in_a_kernel = any(isinstance(x, Marked) for x in slots)
    has_blocks = any(isinstance(x, Encoded) and x.blocks is not None for x in slots)

    def ordered(done: Any, new: State) -> tuple[Any, State]:
        waits = whole and not has_blocks and not in_a_kernel
        return after_parameters(done, new) if waits else (done, new)

    if not any(map(Marked.can, slots)):
        return ordered(*step(updates, state, params, **extra_args))
    structure: Any
    trees = (params, marked(state), updates, arrays)
    leaves, structure = jax.tree.flatten(trees)
    array_leaves = [i for i, x in enumerate(leaves) if isinstance(x, jax.Array)]
    if not any(is_tracer(leaves[i]) for i in array_leaves):
        return step(updates, state, params, **extra_args)

    def run(*inputs: Array) -> Any:
        all_leaves = list(leaves)
        for i, x in zip(array_leaves, inputs, strict=True):
            all_leaves[i] = x
        params, state, updates, arrays = structure.unflatten(all_leaves)
        return step(updates, state, params, **arrays, **functions)

    inputs = [leaves[i] for i in array_leaves]
    closed, out = jax.make_jaxpr(run, return_shape=True)(*inputs)
    if closed.effects:
        return ordered(*step(updates, state, params, **extra_args))
    operands = {i: len(closed.consts) + k for k, i in enumerate(array_leaves)}
    old = [operands.get(i) for i in range(len(jax.tree.leaves((params, state))))]
    if not whole:
        old[: len(jax.tree.leaves(params))] = [None] * len(jax.tree.leaves(out[0]))
    shardings = _shardings(trees) if shardings_are_known() else [None] * len(leaves)
    results = program_p.bind(
        *closed.consts,
        *inputs,
        program=Program.of(closed),
        overwritten=tuple((i, k) for i, k in enumerate(old) if k is not None),
        shardings=(*[None] * len(closed.consts), *(shardings[i] for i in array_leaves)),
    )
    returned: Any = jax.tree.structure(out)
    done = returned.unflatten(results)
    return done if in_a_kernel else ordered(*plain(done))


def _shardings(trees: tuple[Params | None, State, Updates, Any]) -> list[NamedSharding | None]:
    """The shardings of parameters and gradients that are known; None for every other array."""
    paths = [path for path, _ in with_paths(trees)[0]]
    return [
        known_sharding(path_string(path)) if which.idx in (0, 2) else None for which, *path in paths
    ]


def after_parameters(params: Params, state: State) -> tuple[Params, State]:
    """A step's results, of which slots in shorter floats wait for the new parameters.

    Parameters are computed from the results of the rule, before these are rounded, and so from the
    old slots. On a CPU XLA runs the kernels of the slots first, and copies them, on one core::

        %copy.2 = bf16[N] copy(%state_mu)
    """
    structure: Any = jax.tree.structure(params)

    def alike(tree: Any) -> bool:
        return bool(structure == jax.tree.structure(tree, is_leaf=is_stored))

    def one(slot: Any, p: Any) -> Any:
        short = isinstance(slot, Encoded) and [*slot.parts] == ["values"]
        if not short or slot.shape != jnp.shape(p):
            return slot
        x = slot.parts["values"]
        if is_on_host(x):  # where nothing is computed
            return slot
        new = delay(x.astype(jnp.float32), after=p).astype(x.dtype)
        return jax.tree.map(lambda array: new if array is x else array, slot)

    def each(tree: Any) -> Any:
        return jax.tree.map(one, tree, params, is_leaf=is_stored) if alike(tree) else tree

    return params, jax.tree.map(each, state, is_leaf=alike)


def without_kernels(
    step: Callable[..., tuple[Any, State]],
) -> Callable[..., tuple[Any, State]]:
    """A step or an update that runs without kernels, also inside of a step with kernels."""

    def run(updates: Updates, state: State, *params: Any, **extra_args: Any) -> tuple[Any, State]:
        done, new = step(updates, plain(state), *params, **extra_args)
        slots = jax.tree.leaves(state, is_leaf=is_stored)
        return done, marked(new) if any(isinstance(x, Marked) for x in slots) else new

    return run


@not_handed_on
class Kernels(NamedTuple):
    """Compiled steps on stored slots are kernels, where possible.

    Attributes:
        on: whether they are.
    """

    on: bool


def _as_it_is(*arrays: Array, program: Program, overwritten: Any, shardings: Any) -> list[Any]:
    return list(jaxpr_as_fun(program.closed)(*arrays))


program_p = opaque("stored_step", _as_it_is)
"""The program of a step, ``(arrays) -> [results]``, which is lowered with kernels."""
program_p.def_abstract_eval(lambda *arrays, program, **static: program.closed.out_avals)


class Backend(NamedTuple):
    """A platform's kernels: their tiles, the codecs that they compute, their compiler.

    Attributes:
        platform: its name.
        codecs: the codecs whose codes a kernel of the platform can compute.
        tiling: ``(shape, blocks) -> Tiling``, None for leaves that do not fit.
        pieces: ``shape -> blocks`` of leaves whose slots have none, but random numbers; None for
            those that XLA computes in one kernel.
        settings: of its compiler; None for a loop of XLA's over tiles.
        fills: whether tiles have powers of 2 as sizes, and entries beyond an array are masked.
        takes: whether its compiler can compute some equations on a tile.
        halves: whether its compiler supports float16. If not, kernels read and write the bits of
            scales, of which XLA makes a copy.
    """

    platform: str
    codecs: frozenset[str]
    tiling: Callable[[tuple[int, ...], Blocks], Tiling | None]
    pieces: Callable[[tuple[int, ...]], Blocks | None]
    settings: Callable[[], "Settings"] | None
    fills: bool = False
    takes: Callable[[Sequence[Any]], bool] = lambda _: True
    halves: bool = True

    def fits(self, cut: Cut, shard: Shard | None) -> bool:
        """Whether there is a kernel for a device's shard of a leaf."""
        if shard is None or not self.codecs.issuperset(codec.name for codec in cut.codecs):
            return False
        if not self.takes(cut.eqns):
            return False
        if not self.halves and _has_halves(cut):
            return False
        # Two halves of a block that share bytes are not next to one another in a tile filled up.
        in_halves = any(FORMATS[codec.name].per_byte > 1 for codec in cut.codecs)
        if self.fills and in_halves and shard.blocks.size != power_of_2(shard.blocks.size):
            return False
        tiling = self.tiling(shard.shape, shard.blocks)
        return tiling is not None and (not cut.drawn or tiling.evenly(shard))

    def filled(self, sizes: tuple[Any, ...]) -> tuple[Any, ...]:
        """The sizes of a tile: `sizes`, or on a platform that needs them the next powers of 2."""
        return tuple(n and power_of_2(n) for n in sizes) if self.fills else sizes


def _has_halves(cut: Cut) -> bool:
    """Whether a kernel computes with float16 numbers other than scales."""
    computed, read = uses(cut.eqns)
    return any(
        v.aval.dtype == jnp.float16 and v.aval.shape in ((), cut.shape) for v in (*computed, *read)
    )


class Settings(NamedTuple):
    """How kernels reach memory, and how they are launched and compiled.

    Attributes:
        memory: where they read numbers from.
        load: ``(reference, shape, mask) -> array``.
        store: ``(reference, array, mask)``.
        call: Pallas's ``pallas_call``, or a function like it.
        place: ``i -> index`` of the present tile along a dimension of the grid.
        whole: whether they get whole arrays, not tiles that Pallas has brought in.
        drops: whether the tiles that they load lack dimensions of length 1.
    """

    memory: Any
    load: Callable[[Any, tuple[int, ...], Array | None], Array]
    store: Callable[[Any, Array, Array | None], None]
    call: Callable[..., Callable[..., Sequence[Array]]]
    place: Callable[[int], Array]
    whole: bool = False
    drops: bool = False


def _mosaic() -> Settings:
    """The settings for TPUs: Mosaic copies tiles in, and writes nothing outside of an array.

    Mosaic loads no float16 ("Invalid vector type for load") and converts to none.
    """
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    def load(ref: Any, *_: Any) -> Array:
        x = ref[...]
        return half.from_bits(x.astype(jnp.int32)) if x.dtype == jnp.uint16 else x

    def store(ref: Any, x: Array, _: Array | None) -> None:
        ref[...] = (half.to_bits(x) if ref.dtype == jnp.uint16 else x).astype(ref.dtype)

    return Settings(tpu.SMEM, load, store, pallas.pallas_call, pallas.program_id)


def _triton() -> Settings:
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    return Settings(
        pallas.ANY,
        lambda ref, _, mask: triton.load(ref, mask=mask),
        lambda ref, x, mask: triton.store(ref, x.astype(ref.dtype), mask=mask),
        functools.partial(
            pallas.pallas_call,
            compiler_params=triton.CompilerParams(num_warps=8, num_stages=1),
        ),
        pallas.program_id,
        whole=True,
    )


def _mosaic_gpu() -> Settings:
    return Settings(
        mosaic_gpu.pallas().GMEM,
        lambda ref, shape, _: mosaic_gpu.load(ref, shape),
        lambda ref, x, _: mosaic_gpu.store(ref, x),
        mosaic_gpu.call,
        mosaic_gpu.place,
        whole=True,
        drops=True,
    )


FLOATS = frozenset({"f8_e4m3", "f8_e5m2", "f8_expanded"})
FOURS = frozenset({"int4", "int4_companded", "int4_dithered"})
TPU_CODECS = FLOATS | FOURS | {"int8", "int8_companded", "bf16"}
TPU = Backend("tpu", TPU_CODECS, tpu_tiling, tpu_pieces, _mosaic, halves=False)
GPU_CODECS = TPU_CODECS | {"f16"}
BYTES = frozenset({"int8", "f8_e4m3", "f8_e5m2"})
GPUS = {
    TRITON: Backend("cuda", GPU_CODECS, gpu_tiling, lambda _: None, _triton, fills=True),
    MOSAIC_GPU: Backend(
        "cuda", BYTES, mosaic_gpu_tiling, lambda _: None, _mosaic_gpu, takes=mosaic_gpu.takes
    ),
}
"""Of GPUs, by what compiles their kernels."""
CPU = Backend("cpu", GPU_CODECS, cpu_tiling, lambda _: None, None)


def with_kernels(
    *arrays: Array,
    program: Program,
    overwritten: Any,
    shardings: Any,
    backend: Backend,
    divided: bool = False,
    interpret: bool = False,
) -> list[Any]:
    """The results of a step's program, with kernels on one device, or on each device's shards."""
    flat: Any = inlined(program.closed, backend.platform, shardings, *arrays)
    by_variable = dict(zip(flat.jaxpr.invars, shardings, strict=True)) if divided else None

    def shard_of(cut: Cut) -> Shard | None:
        return Shard.of(cut, by_variable, backend.pieces)

    kernel_cuts = cuts(flat.jaxpr, dict(overwritten), lambda cut: backend.fits(cut, shard_of(cut)))
    compiled: dict[Any, Any] = {}

    def kernel(cut: Cut) -> Callable[..., Sequence[Any]]:
        shard = shard_of(cut)
        assert shard is not None
        kind = cut.kind(), shard
        if kind not in compiled:
            run = functools.partial(_launched, cut, shard, backend, interpret)
            if backend.settings is None:
                run = functools.partial(_looped, cut, shard, backend)
            compiled[kind] = jax.jit(shard.run(run, cut))
        return compiled[kind]

    return run_with_kernels(flat.jaxpr, flat.consts, arrays, kernel_cuts, kernel)


class _Tiles(NamedTuple):
    """The tiles in which a kernel goes through a device's shards of the arrays of a cut."""

    cut: Cut
    shard: Shard
    backend: Backend
    tiling: Tiling

    @classmethod
    def of(cls, cut: Cut, shard: Shard, backend: Backend) -> "_Tiles":
        tiling = backend.tiling(shard.shape, shard.blocks)
        assert tiling is not None
        return cls(cut, shard, backend, tiling)

    def scalars(self, inputs: Sequence[Array]) -> dict[Any, Any]:
        """The scalars that a kernel reads, the first of its inputs, and where the shard begins."""
        return dict(zip(self.cut.scalars, inputs, strict=False)) | self.shard.firsts(self.cut)

    def rows(self, v: Any) -> int:
        """How many rows of an array each block has."""
        return self.shard.rows(v, self.cut)

    def seen(self, v: Any) -> tuple[int, ...]:
        """The shape of an array as the grid sees it."""
        return self.tiling.seen(self.shard.shape_of(v, self.cut), self.rows(v))

    def draws(self, window: Window, scalars: Mapping[Any, Any]) -> Callable[..., Draws]:
        """``(codec, key) -> draws``, the random numbers in a window of the leaf."""
        return functools.partial(_draws, self.shard, self.tiling, window, scalars)


class _Numbers(NamedTuple):
    """Scalars in one array, from which a kernel reads each in its type."""

    array: Array
    types: dict[Any, DType]

    @classmethod
    def packed(cls, scalars: Mapping[Any, Any]) -> "list[_Numbers]":
        """Those that are floats in float32, and the others in int32."""
        types = {v: x.dtype for v, x in scalars.items()}
        floats = {v: t for v, t in types.items() if jnp.issubdtype(t, jnp.floating)}
        others = {v: t for v, t in types.items() if v not in floats}
        return [
            cls(jnp.stack([scalars[v].astype(dtype) for v in group]), group)
            for group, dtype in ((floats, jnp.float32), (others, jnp.int32))
            if group
        ]

    def read(self, ref: Any) -> dict[Any, Array]:
        return {
            v: ref[k] != 0 if dtype == jnp.bool_ else ref[k].astype(dtype)
            for k, (v, dtype) in enumerate(self.types.items())
        }


class _PallasTiles(NamedTuple):
    """The tiles of a Pallas kernel, and how it reads and writes them."""

    tiles: _Tiles
    settings: Settings
    numbers: list[_Numbers]

    def spec(self, v: Any) -> Any:
        """The tile of an array that Pallas brings in, or all of it."""
        from jax.experimental import pallas as pl

        tiles = self.tiles
        if self.settings.whole:
            return pl.BlockSpec()
        return pl.BlockSpec(*tiles.tiling.tile(tiles.rows(v)))

    def window(self, v: Any, b: int) -> Window:
        """Block `b` of the present tile of an array."""
        tiling = self.tiles.tiling
        at = [self.settings.place(i) for i in range(len(tiling.grid))]
        return tiling.window(self.tiles.rows(v), at, b)

    def mask(self, v: Any, b: int) -> Array | None:
        """Which entries of a block lie in the array; None for all."""
        window = self.window(v, b)
        sizes = self.tiles.backend.filled(window.kept(window.sizes))
        return window.inside(sizes, self.tiles.seen(v))

    def block(self, ref: Any, v: Any, b: int) -> Any:
        """Block `b` of a tile, in the tile that Pallas has brought in or in the whole array."""
        from jax.experimental import pallas as pl

        tiling, rows = self.tiles.tiling, self.tiles.rows(v)
        if not self.settings.whole:
            rows_of_block = (*[slice(None)] * tiling.axis, pl.ds(b * rows, rows))
            return ref if tiling.blocks == 1 else ref.at[rows_of_block]
        window = self.window(v, b)
        if self.settings.drops:
            return mosaic_gpu.part(ref, *window)
        spans = zip(window.starts, self.tiles.backend.filled(window.sizes), strict=True)
        return ref.at[tuple(i if n is None else pl.ds(i, n) for i, n in spans)]

    def kernel(self, *refs: Any) -> None:
        """Compute the blocks of a tile, one after another."""
        cut, tiling = self.tiles.cut, self.tiles.tiling
        leaf = next(v for v in cut.arrays if v.aval.shape == cut.shape)
        blocks = (tiling.sizes(self.tiles.rows(v)) for v in cut.arrays)
        shapes = [tuple(n for n in sizes if n is not None) for sizes in blocks]
        begin, end = len(self.numbers), len(self.numbers) + len(cut.arrays)
        scalars: dict[Any, Array] = {}
        for ref, numbers in zip(refs[:begin], self.numbers, strict=True):
            scalars |= numbers.read(ref)
        for b in range(tiling.blocks):
            draws = self.tiles.draws(self.window(leaf, b), scalars)
            mask = self.mask(leaf, b)

            def results(*values: Array, draws: Any = draws, mask: Any = mask) -> list[Array]:
                env = scalars | dict(zip(cut.arrays, values, strict=True))
                computed(cut, env, tiling.axis, draws, mask)
                return [env[v] for v in cut.outputs]

            if self.settings.drops:
                results = mosaic_gpu.on_tiles(results, shapes)
            values = [
                self.settings.load(self.block(ref, v, b), shape, self.mask(v, b))
                for ref, v, shape in zip(refs[begin:end], cut.arrays, shapes, strict=True)
            ]
            for ref, v, x in zip(refs[end:], cut.outputs, results(*values), strict=True):
                self.settings.store(self.block(ref, v, b), x, self.mask(v, b))


def _launched(
    cut: Cut, shard: Shard, backend: Backend, interpret: bool, *inputs: Array
) -> list[Any]:
    """Launch the Pallas kernel of a cut; the results are the arrays that it writes."""
    from jax.experimental import pallas as pl

    tiles = _Tiles.of(cut, shard, backend)
    assert backend.settings is not None
    settings = backend.settings()
    numbers = _Numbers.packed(tiles.scalars(inputs))
    pallas_tiles = _PallasTiles(tiles, settings, numbers)

    def passed_type(v: Any) -> Any:
        return jnp.uint16 if v.aval.dtype == jnp.float16 and not backend.halves else v.aval.dtype

    arrays = [
        jax.lax.bitcast_convert_type(x, passed_type(v)).reshape(tiles.seen(v))
        for x, v in zip(inputs[len(cut.scalars) :], cut.arrays, strict=True)
    ]
    results = settings.call(
        pallas_tiles.kernel,
        grid=tiles.tiling.grid,
        in_specs=[
            *(pl.BlockSpec(memory_space=settings.memory) for _ in numbers),
            *map(pallas_tiles.spec, cut.arrays),
        ],
        out_specs=list(map(pallas_tiles.spec, cut.outputs)),
        out_shape=[jax.ShapeDtypeStruct(tiles.seen(v), passed_type(v)) for v in cut.outputs],
        input_output_aliases={len(numbers) + k: i for i, k in cut.overwrites.items()},
        interpret=interpret,
        name="stored_step",
    )(*(packed.array for packed in numbers), *arrays)
    return [
        jax.lax.bitcast_convert_type(shard.formed(x), v.aval.dtype)
        for x, v in zip(results, cut.outputs, strict=True)
    ]


def _looped(cut: Cut, shard: Shard, backend: Backend, *inputs: Array) -> list[Any]:
    """Run a cut as a loop over tiles, for a CPU: a tile's intermediate arrays stay in the cache.

    An encoded array is computed once, behind a barrier, for the scale, the codes and the parameter.
    XLA divides a tile among all cores, but not a computation that it fuses with the writing into an
    array. So this is done on a condition that is always true, which it does not fuse with anything;
    each array has its own, so that one core writes while others compute the rest.
    """
    tiles = _Tiles.of(cut, shard, backend)
    tiling, scalars = tiles.tiling, tiles.scalars(inputs)
    encoded = {eqn.invars[0] for eqn in cut.coded if eqn.primitive is encode_p}
    pairs = zip(inputs[len(cut.scalars) :], cut.arrays, strict=True)
    arrays = [x.reshape(tiles.seen(v)) for x, v in pairs]
    old = [
        arrays[cut.overwrites[i]] if i in cut.overwrites else jnp.zeros(tiles.seen(v), v.aval.dtype)
        for i, v in enumerate(cut.outputs)
    ]
    scale = next(x for x in arrays if jnp.issubdtype(x.dtype, jnp.floating))
    always = true_after(scale[(0,) * scale.ndim])

    def write(at: Window, x: Array, tile: Array) -> Array:
        tile = tile.reshape([n or 1 for n in at.sizes]).astype(x.dtype)
        return jax.lax.dynamic_update_slice(x, tile, at.starts, allow_negative_indices=False)

    def body(k: Array, new: list[Array]) -> list[Array]:
        window = functools.partial(tiling.window, at=_place_in(tiling.grid, k))
        current = list(arrays)
        for i, source in cut.overwrites.items():
            current[source] = new[i]
        env = dict(scalars)
        for x, v in zip(current, cut.arrays, strict=True):
            starts, sizes = tile = window(tiles.rows(v))
            shape = [n or 1 for n in sizes]
            entries = jax.lax.dynamic_slice(x, starts, shape, allow_negative_indices=False)
            env[v] = entries.reshape(tile.kept(sizes))
        draws = tiles.draws(window(shard.blocks.size), scalars)
        computed(cut, env, tiling.axis, draws, None, encoded)
        return [
            jax.lax.cond(
                always,
                functools.partial(write, window(tiles.rows(v))),
                lambda x, _: x,
                x,
                env[v],
            )
            for v, x in zip(cut.outputs, new, strict=True)
        ]

    results = jax.lax.fori_loop(0, math.prod(tiling.grid), body, old)
    return [shard.formed(x) for x in results]


def _place_in(grid: Sequence[int], k: Array) -> list[Array]:
    """The indices of tile `k` of a grid."""
    indices: list[Array] = []
    for extent in reversed(grid):
        n = np.asarray(extent, k.dtype)
        indices.insert(0, jax.lax.rem(k, n))
        k = jax.lax.div(k, n)
    return indices


def _draws(
    shard: Shard,
    tiling: Tiling,
    window: Window,
    firsts: Mapping[Any, Any],
    codec: Codec,
    key: KeyWords,
) -> Draws:
    """The random numbers of a tile: each depends on its entry's position in the whole slot."""
    slot_draws = Draws.of(key, tiling.seen(shard.slot(codec), shard.blocks.size))
    return window.draws(slot_draws._replace(start=slot_draws.start + firsts.get(codec, 0)))


def computed(
    cut: Cut,
    env: dict[Any, Any],
    axis: int,
    draws: Callable[[Codec, KeyWords], Draws],
    mask: Array | None,
    once: Collection[Any] = frozenset(),
) -> None:
    """Evaluate the equations of a cut on one tile, and add the values of their variables to `env`.

    The blocks of the tile lie along `axis`. `draws` makes the random numbers of a codec. Entries
    outside of `mask`, since the leaf ends before them, are encoded as zeros. Variables in `once`
    are computed once for all their uses.
    """
    tile = next(env[v].shape for v in cut.arrays if v.aval.shape == cut.shape)

    def compute(eqn: Any, inputs: list[Any]) -> Any:
        types = [v.aval.dtype for v in eqn.invars]
        inputs = [
            jnp.asarray(x, dtype) if isinstance(v, Literal) else x
            for v, dtype, x in zip(eqn.invars, types, inputs, strict=True)
        ]
        if eqn.primitive is decode_p:
            parts, key = parts_and_key(eqn.params["names"], inputs)
            codec = eqn.params["codec"]
            results = [numbers_in(codec, parts, axis, key and draws(codec, key))]
        elif eqn.primitive is encode_p:
            _, key = parts_and_key(eqn.params["names"], inputs[1:])
            codec = eqn.params["codec"]
            x = inputs[0] if mask is None else jnp.where(mask, inputs[0], 0)
            parts = parts_of(codec, x, axis, key and draws(codec, key))
            results = [parts[name] for name in eqn.params["names"]]
        elif eqn.primitive.name == "broadcast_in_dim":
            results = inputs
        elif eqn.primitive.name == "sign":  # Mosaic's needs a TPU, and there may be none here
            (x,) = inputs
            results = [jnp.where(x > 0, 1, jnp.where(x < 0, -1, x)).astype(x.dtype)]
        elif eqn.primitive is root_p:  # Pallas knows JAX's
            results = [jax.lax.sqrt(jnp.broadcast_to(inputs[0], tile))]
        else:
            full = [jnp.broadcast_to(x, tile) for x in inputs]
            results = [eqn.primitive.bind(*full, **eqn.params)]
        return jax.lax.optimization_barrier(results) if eqn.outvars[0] in once else results

    advance(env, cut.eqns, compute)


def _lowered(backend: Backend, ctx: Any, *arrays: Any, **static: Any) -> Any:
    run = functools.partial(with_kernels, backend=backend, divided=not is_on_one_device(ctx))
    return mlir.lower_fun(run, multiple_results=True)(ctx, *arrays, **static)


def _lowered_for_gpus(ctx: Any, *arrays: Any, **static: Any) -> Any:
    compiler = None if is_exported(ctx) else gpu_compiler(capability_here())
    if compiler is None:
        return mlir.lower_fun(_as_it_is, multiple_results=True)(ctx, *arrays, **static)
    with through(compiler):
        return _lowered(GPUS[compiler], ctx, *arrays, **static)


for _backend in (TPU, CPU):
    mlir.register_lowering(
        program_p, functools.partial(_lowered, _backend), platform=_backend.platform
    )
mlir.register_lowering(program_p, _lowered_for_gpus, platform="cuda")
