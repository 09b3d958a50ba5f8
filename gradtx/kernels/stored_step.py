"""Steps on stored slots as one kernel for each leaf: decode, rule, encode, without a float32 slot.

XLA computes the scale of a block before its codes, and stores the slot in between, or computes it
twice. A Pallas kernel holds whole blocks in fast memory and moves what must be moved: codes,
scales, gradient, parameter. Its body is the rule itself, cut out of the program of the step, so
nothing is written twice. TPUs get it through Mosaic, NVIDIA's GPUs through Triton, and CPUs as a
loop over tiles that fit in the cache. Of a leaf that is divided over devices, each runs the kernel
on its shard, which has whole blocks, where the engine knows the sharding of the leaf. What does not
fit a kernel is run as it is.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun
from jax.interpreters import mlir
from jax.sharding import NamedSharding

from gradtx.kernels.cutting import Cut, cuts, inlined, run_with_kernels
from gradtx.kernels.tiling import (
    Shard,
    Tiling,
    Window,
    cpu_tiling,
    gpu_tiling,
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
from gradtx.programs.interpreter import advance, uses
from gradtx.programs.opaque import (
    has_triton,
    is_exported,
    is_on_one_device,
    opaque,
    through_triton,
)
from gradtx.programs.tracing import is_tracer
from gradtx.storage.draws import Draws
from gradtx.storage.encoded import FORMATS, Blocks, Encoded, KeyWords, numbers_in, parts_of
from gradtx.storage.format import Codec
from gradtx.storage.marked import Marked, decode_p, encode_p, marked, parts_and_key, plain
from gradtx.types import Array, Params, State, Updates, is_stored


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
    inside = any(isinstance(x, Marked) for x in slots)
    alone = not any(isinstance(x, Encoded) and x.blocks is not None for x in slots)

    def in_order(done: Any, new: State) -> tuple[Any, State]:
        return after_parameters(done, new) if whole and alone and not inside else (done, new)

    if not any(map(Marked.can, slots)):
        return in_order(*step(updates, state, params, **extra_args))
    structure: Any
    trees = (params, marked(state), updates, arrays)
    leaves, structure = jax.tree.flatten(trees)
    at = [i for i, x in enumerate(leaves) if isinstance(x, jax.Array)]
    if not any(is_tracer(leaves[i]) for i in at):
        return step(updates, state, params, **extra_args)

    def run(*inputs: Array) -> Any:
        mine = list(leaves)
        for i, x in zip(at, inputs, strict=True):
            mine[i] = x
        params, state, updates, arrays = structure.unflatten(mine)
        return step(updates, state, params, **arrays, **functions)

    inputs = [leaves[i] for i in at]
    closed, out = jax.make_jaxpr(run, return_shape=True)(*inputs)
    if closed.effects:
        return in_order(*step(updates, state, params, **extra_args))
    jaxpr: Any = closed.jaxpr
    invars = [*jaxpr.constvars, *jaxpr.invars]
    program = Program(ClosedJaxpr(jaxpr.replace(constvars=[], invars=invars), []))
    operands = {i: len(closed.consts) + k for k, i in enumerate(at)}
    old = [operands.get(i) for i in range(len(jax.tree.leaves((params, state))))]
    if not whole:
        old[: len(jax.tree.leaves(params))] = [None] * len(jax.tree.leaves(out[0]))
    overwritten = tuple((i, k) for i, k in enumerate(old) if k is not None)
    known = _shardings(trees) if shardings_are_known() else [None] * len(leaves)
    results = program_p.bind(
        *closed.consts,
        *inputs,
        program=program,
        overwritten=overwritten,
        shardings=(*[None] * len(closed.consts), *(known[i] for i in at)),
    )
    returned: Any = jax.tree.structure(out)
    done = returned.unflatten(results)
    return done if inside else in_order(*plain(done))


def _shardings(trees: tuple[Params | None, State, Updates, Any]) -> list[NamedSharding | None]:
    """The shardings of parameters and gradients that are known; None for every other array."""
    paths = [path for path, _ in with_paths(trees)[0]]
    return [
        known_sharding(path_string(path)) if which.idx in (0, 2) else None for which, *path in paths
    ]


def after_parameters(params: Params, state: State) -> tuple[Params, State]:
    """A step's results, of which slots in shorter floats wait for the new parameters.

    These are computed from what the rule returns, not from what is kept of it, and so from the old
    slots. On a CPU XLA runs the kernels of the slots first, and copies them, on one core::

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


class Program:
    """A traced program that JAX takes for data.

    Since 0.12 it refuses an equation that contains a program with operations that JAX lowers in two
    steps, such as ``searchsorted``.
    """

    def __init__(self, closed: ClosedJaxpr) -> None:
        self.closed = closed


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
        fills: whether tiles have powers of 2 as sizes, and what is beyond an array is masked.
        halves: whether its compiler supports float16. If not, kernels read and write the bits of
            scales, of which XLA makes a copy.
    """

    platform: str
    codecs: frozenset[str]
    tiling: Callable[[tuple[int, ...], Blocks], Tiling | None]
    pieces: Callable[[tuple[int, ...]], Blocks | None]
    settings: Callable[[], "Settings"] | None
    fills: bool = False
    halves: bool = True

    def fits(self, cut: Cut, shard: Shard | None) -> bool:
        """Whether there is a kernel for a device's shard of a leaf."""
        if shard is None or not self.codecs.issuperset(codec.name for codec in cut.codecs):
            return False
        if not self.halves and _has_halves(cut):
            return False
        # Two halves of a block that share bytes are not next to one another in a tile filled up.
        in_halves = any(FORMATS[codec.name].per_byte > 1 for codec in cut.codecs)
        if self.fills and in_halves and shard.blocks.size != power_of_2(shard.blocks.size):
            return False
        tiling = self.tiling(shard.shape, shard.blocks)
        return tiling is not None and (not cut.drawn or tiling.evenly(shard))

    def filled(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """The sizes of a tile: `sizes`, or on a platform that needs them the next powers of 2."""
        return tuple(map(power_of_2, sizes)) if self.fills else sizes


def _has_halves(cut: Cut) -> bool:
    """Whether a kernel computes with float16 numbers other than scales."""
    computed, read = uses(cut.eqns)
    return any(
        v.aval.dtype == jnp.float16 and v.aval.shape in ((), cut.shape) for v in (*computed, *read)
    )


class Settings(NamedTuple):
    """How kernels reach memory, and how they are compiled.

    Attributes:
        memory: where they read numbers from.
        load: ``(reference, mask) -> array``.
        store: ``(reference, array, mask)``.
        options: for the compiler.
    """

    memory: Any
    load: Callable[[Any, Array | None], Array]
    store: Callable[[Any, Array, Array | None], None]
    options: dict[str, Any]


def _mosaic() -> Settings:
    """The settings for TPUs: Mosaic copies tiles in, and writes nothing outside of an array.

    Mosaic loads no float16 ("Invalid vector type for load") and converts to none.
    """
    from jax.experimental.pallas import tpu

    def load(ref: Any, _: Array | None) -> Array:
        x = ref[...]
        return half.from_bits(x.astype(jnp.int32)) if x.dtype == jnp.uint16 else x

    def store(ref: Any, x: Array, _: Array | None) -> None:
        ref[...] = (half.to_bits(x) if ref.dtype == jnp.uint16 else x).astype(ref.dtype)

    return Settings(tpu.SMEM, load, store, {})


def _triton() -> Settings:
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    return Settings(
        pallas.ANY,
        lambda ref, mask: triton.load(ref, mask=mask),
        lambda ref, x, mask: triton.store(ref, x.astype(ref.dtype), mask=mask),
        {"compiler_params": triton.CompilerParams(num_warps=8, num_stages=1)},
    )


FLOATS = frozenset({"f8_e4m3", "f8_e5m2", "f8_expanded"})
FOURS = frozenset({"int4", "int4_companded", "int4_dithered"})
TPU_CODECS = FLOATS | FOURS | {"int8", "int8_companded", "bf16"}
TPU = Backend("tpu", TPU_CODECS, tpu_tiling, tpu_pieces, _mosaic, halves=False)
GPU_CODECS = TPU_CODECS | {"f16"}
GPU = Backend("cuda", GPU_CODECS, gpu_tiling, lambda _: None, _triton, fills=True)
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
    known = dict(zip(flat.jaxpr.invars, shardings, strict=True)) if divided else None

    def shard_of(cut: Cut) -> Shard | None:
        return Shard.of(cut, known, backend.pieces)

    kernel_cuts = cuts(flat.jaxpr, dict(overwritten), lambda cut: backend.fits(cut, shard_of(cut)))
    made: dict[Any, Any] = {}

    def kernel(cut: Cut) -> Callable[..., Sequence[Any]]:
        shard = shard_of(cut)
        assert shard is not None
        kind = cut.kind(), shard
        if kind not in made:
            run = functools.partial(_launched, cut, shard, backend, interpret)
            if backend.settings is None:
                run = functools.partial(_looped, cut, shard, backend)
            made[kind] = jax.jit(shard.run(run, cut))
        return made[kind]

    return run_with_kernels(flat.jaxpr, flat.consts, arrays, kernel_cuts, kernel)


def _launched(
    cut: Cut, shard: Shard, backend: Backend, interpret: bool, *inputs: Array
) -> list[Any]:
    """Launch the Pallas kernel of a cut; the results are the arrays that it writes."""
    from jax.experimental import pallas as pl

    tiling = backend.tiling(shard.shape, shard.blocks)
    assert tiling is not None
    assert backend.settings is not None
    memory, load, store, options = backend.settings()
    leaf = next(v for v in cut.arrays if v.aval.shape == cut.shape)
    count = len(cut.scalars)
    scalar_values = dict(zip(cut.scalars, inputs, strict=False)) | shard.firsts(cut)
    floats = [v for v, x in scalar_values.items() if jnp.issubdtype(x.dtype, jnp.floating)]
    others = [v for v in scalar_values if v not in floats]
    packed = [
        (jnp.stack([scalar_values[v].astype(dtype) for v in which]), which)
        for which, dtype in ((floats, jnp.float32), (others, jnp.int32))
        if which
    ]

    def rows(v: Any) -> int:
        return shard.rows(v, cut)

    def seen(v: Any) -> tuple[int, ...]:
        return tiling.seen(shard.shape_of(v, cut), rows(v))

    def spec(v: Any) -> Any:
        return pl.BlockSpec() if backend.fills else pl.BlockSpec(*tiling.tile(rows(v)))

    def window(v: Any, b: int) -> Window:
        at = [pl.program_id(i) for i in range(len(tiling.grid))]
        return tiling.window(rows(v), at, b)

    def inside(v: Any, b: int) -> Array | None:
        tile_window = window(v, b)
        return tile_window.inside(backend.filled(tile_window.kept(tile_window.sizes)), seen(v))

    def block(ref: Any, v: Any, b: int) -> Any:
        """Block `b` of a tile, in the tile that Pallas has brought in or in the whole array."""
        r = rows(v)
        if not backend.fills:
            rows_of_block = (*[slice(None)] * tiling.axis, pl.ds(b * r, r))
            return ref if tiling.blocks == 1 else ref.at[rows_of_block]
        spans = zip(*window(v, b), strict=True)
        return ref.at[tuple(i if n is None else pl.ds(i, power_of_2(n)) for i, n in spans)]

    def body(*refs: Any) -> None:
        numbers, sources = refs[: len(packed)], refs[len(packed) : len(packed) + len(cut.arrays)]
        targets = refs[len(packed) + len(cut.arrays) :]
        scalars = {}
        for ref, (_, which) in zip(numbers, packed, strict=True):
            for k, v in enumerate(which):
                dtype = scalar_values[v].dtype
                scalars[v] = ref[k] != 0 if dtype == jnp.bool_ else ref[k].astype(dtype)
        for b in range(tiling.blocks):
            env = dict(scalars)
            for ref, v in zip(sources, cut.arrays, strict=True):
                env[v] = load(block(ref, v, b), inside(v, b))
            draws = functools.partial(_draws, shard, tiling, window(leaf, b), scalars)
            computed(cut, env, tiling.axis, draws, inside(leaf, b))
            for ref, v in zip(targets, cut.outputs, strict=True):
                store(block(ref, v, b), env[v], inside(v, b))

    def kind(v: Any) -> Any:
        return jnp.uint16 if v.aval.dtype == jnp.float16 and not backend.halves else v.aval.dtype

    arrays = [
        jax.lax.bitcast_convert_type(x, kind(v)).reshape(seen(v))
        for x, v in zip(inputs[count:], cut.arrays, strict=True)
    ]
    before = len(packed)
    results = pl.pallas_call(
        body,
        grid=tiling.grid,
        in_specs=[
            *(pl.BlockSpec(memory_space=memory) for _ in packed),
            *map(spec, cut.arrays),
        ],
        out_specs=list(map(spec, cut.outputs)),
        out_shape=[jax.ShapeDtypeStruct(seen(v), kind(v)) for v in cut.outputs],
        input_output_aliases={before + k: i for i, k in cut.overwrites.items()},
        interpret=interpret,
        name="stored_step",
        **options,
    )(*(x for x, _ in packed), *arrays)
    return [
        jax.lax.bitcast_convert_type(shard.formed(x), v.aval.dtype)
        for x, v in zip(results, cut.outputs, strict=True)
    ]


def _looped(cut: Cut, shard: Shard, backend: Backend, *inputs: Array) -> list[Any]:
    """Run a cut as a loop over tiles, for a CPU: a tile's intermediate arrays stay in the cache.

    What is encoded is computed once, behind a barrier, for the scale, the codes and the parameter.
    XLA divides a tile among all cores, but not what it fuses with the writing into an array. So
    this is done on a condition that is always true, which it does not fuse with anything; each
    array has its own, so that one core writes while others compute what is left.
    """
    tiling = backend.tiling(shard.shape, shard.blocks)
    assert tiling is not None
    scalars = dict(zip(cut.scalars, inputs, strict=False)) | shard.firsts(cut)
    once = {eqn.invars[0] for eqn in cut.coded if eqn.primitive is encode_p}

    def turn(k: Array) -> list[Array]:
        at: list[Array] = []
        for extent in reversed(tiling.grid):
            k, last = jnp.divmod(k, extent)
            at.insert(0, last)
        return at

    def window(v: Any, k: Array) -> tuple[list[Any], list[int], tuple[int, ...]]:
        """Tile `k` of an array: where it begins, its sizes, and its shape as the rule sees it."""
        tile_window = tiling.window(shard.rows(v, cut), turn(k))
        return (
            tile_window.starts,
            [n or 1 for n in tile_window.sizes],
            tile_window.kept(tile_window.sizes),
        )

    def seen(v: Any) -> tuple[int, ...]:
        return tiling.seen(shard.shape_of(v, cut), shard.rows(v, cut))

    pairs = zip(inputs[len(cut.scalars) :], cut.arrays, strict=True)
    arrays = [x.reshape(seen(v)) for x, v in pairs]
    old = [
        arrays[cut.overwrites[i]] if i in cut.overwrites else jnp.zeros(seen(v), v.aval.dtype)
        for i, v in enumerate(cut.outputs)
    ]

    def write(k: Array, v: Any, x: Array, tile: Array) -> Array:
        starts, sizes, _ = window(v, k)
        return jax.lax.dynamic_update_slice(x, tile.reshape(sizes).astype(x.dtype), starts)

    scale = next(x for x in arrays if jnp.issubdtype(x.dtype, jnp.floating))
    always = true_after(scale[(0,) * scale.ndim])

    def body(k: Array, new: list[Array]) -> list[Array]:
        now = list(arrays)
        for i, source in cut.overwrites.items():
            now[source] = new[i]
        env = dict(scalars)
        for x, v in zip(now, cut.arrays, strict=True):
            starts, sizes, shape = window(v, k)
            env[v] = jax.lax.dynamic_slice(x, starts, sizes).reshape(shape)
        tile_window = tiling.window(shard.blocks.size, turn(k))
        draws = functools.partial(_draws, shard, tiling, tile_window, scalars)
        computed(cut, env, tiling.axis, draws, None, once)
        return [
            jax.lax.cond(always, functools.partial(write, k, v), lambda x, _: x, x, env[v])
            for v, x in zip(cut.outputs, new, strict=True)
        ]

    results = jax.lax.fori_loop(0, math.prod(tiling.grid), body, old)
    return [shard.formed(x) for x in results]


def _draws(
    shard: Shard,
    tiling: Tiling,
    window: Window,
    firsts: Mapping[Any, Any],
    codec: Codec,
    key: KeyWords,
) -> Draws:
    """The random numbers of a tile: each depends on its entry's position in the whole slot."""
    whole = Draws.of(key, tiling.seen(shard.slot(codec), shard.blocks.size))
    return window.draws(whole._replace(start=whole.start + firsts.get(codec, 0)))


def computed(
    cut: Cut,
    env: dict[Any, Any],
    axis: int,
    draws: Callable[[Codec, KeyWords], Draws],
    there: Array | None,
    once: Collection[Any] = frozenset(),
) -> None:
    """Evaluate the equations of a cut on one tile, and add the values of their variables to `env`.

    The blocks of the tile lie along `axis`. `draws` makes the random numbers of a codec. Entries of
    the tile that are not `there`, since the leaf ends before them, are encoded as zeros.
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
            x = inputs[0] if there is None else jnp.where(there, inputs[0], 0)
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
            whole = [jnp.broadcast_to(x, tile) for x in inputs]
            results = [eqn.primitive.bind(*whole, **eqn.params)]
        return jax.lax.optimization_barrier(results) if eqn.outvars[0] in once else results

    advance(env, cut.eqns, compute)


def _lowered(backend: Backend, ctx: Any, *arrays: Any, **static: Any) -> Any:
    run: Callable[..., Any] = functools.partial(
        with_kernels, backend=backend, divided=not is_on_one_device(ctx)
    )
    if backend is GPU and (is_exported(ctx) or not has_triton()):
        run = _as_it_is
    with through_triton() if backend is GPU else contextlib.nullcontext():
        return mlir.lower_fun(run, multiple_results=True)(ctx, *arrays, **static)


for _backend in (TPU, GPU, CPU):
    mlir.register_lowering(
        program_p, functools.partial(_lowered, _backend), platform=_backend.platform
    )
