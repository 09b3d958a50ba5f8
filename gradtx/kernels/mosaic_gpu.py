"""Kernels for NVIDIA's GPUs through Pallas's Mosaic GPU, in place of its Triton backend.

Mosaic GPU divides a tile among the 128 threads of a warpgroup by a layout, and knows none for
dimensions of length 1, nor every primitive. A kernel's body is traced as for other backends, and
its program is computed on tiles without these dimensions.
"""

import functools
import importlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from gradtx.kernels.cutting import CALLS
from gradtx.programs.interpreter import called, interpret
from gradtx.types import Array

ROWS, COLUMNS = 64, 16
"""A tile has a multiple of these: 4 warps have 16 rows each, and a thread 4 neighbours of a row."""

LACKS = frozenset({"log1p", "pow", "rem"})
"""Primitives that Mosaic GPU does not know, and that no others replace to the last bit."""

FLOATS = frozenset({"float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"})
TYPES = FLOATS | {"int32", "uint32", "int8", "uint8", "bool"}

ALIKE = frozenset({"copy", "reshape", "squeeze", "expand_dims"})
"""Primitives that leave a tile as it is, once it has no dimensions of length 1."""

REDUCTIONS = frozenset({"reduce_max", "reduce_min", "reduce_sum"})


def pallas() -> Any:
    """Pallas's Mosaic GPU, of which an older JAX has other names or none."""
    return importlib.import_module("jax.experimental.pallas.mosaic_gpu")


def launches(grid: Sequence[int]) -> bool:
    """Whether a GPU can launch a grid of tiles: CUDA counts all dimensions but one to 65535."""
    return max(grid[:-1], default=0) < 2**16


def takes(eqns: Iterable[Any]) -> bool:
    """Whether Mosaic GPU can compute equations on tiles."""
    return all(map(_takes, eqns))


def _takes(eqn: Any) -> bool:
    name = eqn.primitive.name
    if any(str(v.aval.dtype) not in TYPES for v in (*eqn.invars, *eqn.outvars)):
        return False
    if name == "integer_pow":
        return bool(eqn.params["y"] >= 0)
    return name not in LACKS and not (name == "select_n" and len(eqn.invars) > 3)


def load(ref: Any, shape: tuple[int, ...]) -> Array:
    """A tile of some shape, without its dimensions of length 1, from a part of an array."""
    return laid_out(pallas().load(ref, optimized=False), shape)


def laid_out(x: Array, shape: tuple[int, ...]) -> Array:
    """An array that has this shape with its dimensions of length 1, divided among the threads.

    Mosaic GPU finds out the layout of a row or a column whose shape does not say which it is.
    """
    layout = pallas().Layout.WGMMA_8BIT
    if x.ndim == 0 or len(shape) != 2:
        return x
    y: Array = pallas().layout_cast(x, layout if x.ndim == 2 else layout.reduce(shape.index(1)))
    return y


def store(ref: Any, x: Array) -> None:
    """Write a tile, or a row or column of one, to a part of an array."""
    pallas().store(ref, x.astype(ref.dtype), optimized=False)


def part(ref: Any, starts: Sequence[Any], sizes: Sequence[int | None]) -> Any:
    """A tile of an array, of which dimensions of length 1 or None are dropped."""
    from jax.experimental import pallas as pl

    spans = zip(starts, sizes, strict=True)
    return ref.at[tuple(i if n in (None, 1) else pl.ds(i, n) for i, n in spans)]


def place(i: int) -> Array:
    """The index of the present tile along dimension `i` of the grid."""
    return jax.lax.axis_index(_name(i))


def _name(i: int) -> str:
    return f"tiles{i}"


def call(
    kernel: Callable[..., None],
    *,
    grid: Sequence[int],
    out_shape: Sequence[jax.ShapeDtypeStruct],
    input_output_aliases: dict[int, int],
    interpret: bool,
    name: str,
    **_: Any,
) -> Callable[..., list[Array]]:
    """As Pallas's ``pallas_call``: a function of arrays that launches a kernel.

    The kernel gets whole arrays, so it has no specifications of tiles.
    """
    sources = {new: old for old, new in input_output_aliases.items()}
    alone = [x for i, x in enumerate(out_shape) if i not in sources]

    def run(*arrays: Array) -> list[Array]:
        def body(*refs: Any) -> None:
            inputs, others = refs[: len(arrays)], iter(refs[len(arrays) :])
            outputs = (
                inputs[sources[i]] if i in sources else next(others) for i in range(len(out_shape))
            )
            kernel(*inputs, *outputs)

        launch = pallas().kernel(
            body,
            out_type=alone,
            grid=tuple(grid),
            grid_names=tuple(map(_name, range(len(grid)))),
            interpret=pallas().InterpretGPUParams() if interpret else None,
            kernel_name=name,
        )
        refs: list[Any] = [
            jax.new_ref(x) if i in input_output_aliases else x for i, x in enumerate(arrays)
        ]
        others = iter(launch(*refs))
        return [
            jax.freeze(refs[sources[i]]) if i in sources else next(others)
            for i in range(len(out_shape))
        ]

    return run


def on_tiles(function: Callable[..., Any], shapes: Sequence[tuple[int, ...]]) -> Callable[..., Any]:
    """A function of arrays of some shapes, as one of arrays without dimensions of length 1."""

    def run(*values: Array) -> list[Array]:
        pairs = zip(shapes, values, strict=True)
        program = jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(s, x.dtype) for s, x in pairs))
        return interpret(program, values, _laid_out_results)

    return run


def _laid_out_results(eqn: Any, inputs: list[Any]) -> Sequence[Any]:
    pairs = zip(_computed(eqn, inputs), eqn.outvars, strict=True)
    return [laid_out(x, v.aval.shape) for x, v in pairs]


def _computed(eqn: Any, inputs: list[Any]) -> Sequence[Any]:
    """The results of an equation, computed from arrays without dimensions of length 1."""
    name, whole = eqn.primitive.name, eqn.outvars[0].aval.shape
    shape = _dropped(whole)
    types = [v.aval.dtype for v in eqn.invars]
    values = [
        jnp.asarray(x, dtype) if isinstance(v, Literal) else x
        for v, dtype, x in zip(eqn.invars, types, inputs, strict=True)
    ]
    if name in CALLS:
        return interpret(called(eqn), values, _laid_out_results)
    if name == "iota":
        return [_iota(whole, eqn.params["dtype"], eqn.params["dimension"])]
    (*_, x) = values
    if name in ALIKE and x.shape == shape:
        return [x]
    if name == "broadcast_in_dim":
        return [_broadcast(x, eqn.invars[0].aval.shape, whole, eqn.params["broadcast_dimensions"])]
    if name in REDUCTIONS:
        before = eqn.invars[0].aval.shape
        axes = tuple(len(_dropped(before[:i])) for i in eqn.params["axes"] if before[i] > 1)
        return [eqn.primitive.bind(x, **eqn.params | {"axes": axes})] if axes else [x]
    if name == "floor":
        nearest = _nearest(x)
        return [jnp.where(nearest > x, nearest - 1, nearest)]
    if name == "ceil":
        nearest = _nearest(-x)  # -floor(-x), which keeps the sign of a zero
        return [-jnp.where(nearest > -x, nearest - 1, nearest)]
    if name == "is_finite":
        return [jnp.abs(x) < math.inf]
    if name == "not" and x.dtype == jnp.bool_:
        return [x ^ _broadcast(jnp.asarray(True), (), whole, ())]
    if name == "convert_element_type" and eqn.params["new_dtype"] == jnp.bool_:
        return [x != 0]
    shapes = (v.aval.shape for v in eqn.invars)
    full = [_broadcast(x, s, whole, range(len(s))) for x, s in zip(values, shapes, strict=True)]
    return [eqn.primitive.bind(*full, **eqn.params)]


def _dropped(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without dimensions of length 1."""
    return tuple(n for n in shape if n > 1)


_nearest = functools.partial(jax.lax.round, rounding_method=jax.lax.RoundingMethod.TO_NEAREST_EVEN)


def _iota(whole: tuple[int, ...], dtype: Any, dimension: int) -> Array:
    shape = _dropped(whole)
    if whole[dimension] == 1:
        return jnp.zeros(shape, dtype)
    return jax.lax.broadcasted_iota(dtype, shape, len(_dropped(whole[:dimension])))


def _broadcast(
    x: Array, whole_of_x: tuple[int, ...], whole: tuple[int, ...], dimensions: Sequence[int]
) -> Array:
    shape = _dropped(whole)
    places = [
        len(_dropped(whole[:i])) for i, n in zip(dimensions, whole_of_x, strict=True) if n > 1
    ]
    return x if x.shape == shape else jax.lax.broadcast_in_dim(x, shape, places)
