"""Functions that a traced program shows as one equation."""

import contextlib
import functools
import importlib
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir


def opaque(name: str, function: Callable[..., list[Any]]) -> Primitive:
    """A primitive that computes ``function(*arrays, **static) -> [array, ...]``.

    Code that reads a jaxpr can find it; under ``jit``, ``vmap`` and differentiation it is the
    function itself.

    >>> twice = opaque("twice", lambda x, by: [x * by])
    >>> jax.make_jaxpr(lambda x: twice.bind(x, by=2))(jnp.ones(3)).eqns[0].primitive
    twice
    >>> jax.jit(jax.grad(lambda x: twice.bind(x, by=2)[0]))(1.0)
    Array(2., dtype=float32, weak_type=True)
    """
    primitive = Primitive(name)
    primitive.multiple_results = True

    @functools.lru_cache(maxsize=1024)
    def abstract(*arrays: Any, **static: Any) -> Any:
        return jax.make_jaxpr(functools.partial(function, **static))(*arrays).out_avals

    def batched(arrays: Any, axes: Any, **static: Any) -> Any:
        results = jax.vmap(functools.partial(function, **static), in_axes=tuple(axes))(*arrays)
        return results, [0] * len(results)

    def differentiated(primals: Any, tangents: Any, **static: Any) -> Any:
        tangent_arrays = [_there(x, dx) for x, dx in zip(primals, tangents, strict=True)]
        run = functools.partial(function, **static)
        results, changes = jax.jvp(run, list(primals), tangent_arrays)
        return results, [_zero(x, dx) for x, dx in zip(results, changes, strict=True)]

    primitive.def_impl(function)
    primitive.def_abstract_eval(abstract)
    batching.primitive_batchers[primitive] = batched
    ad.primitive_jvps[primitive] = differentiated
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=True))
    return primitive


def is_on_one_device(ctx: Any) -> bool:
    """Whether a program is for one device, or for one at a time, as within ``shard_map``."""
    context = ctx.module_context.axis_context
    mesh = getattr(context, "mesh", None)
    if mesh is None:
        return getattr(context, "num_devices", 1) == 1
    return set(context.manual_axes) | set(mesh.manual_axes) == set(mesh.axis_names)


def is_exported(ctx: Any) -> bool:
    """Whether a program is lowered to be saved: JAX does not save kernels for GPUs."""
    return bool(ctx.module_context.lowering_parameters.for_export)


def offers_triton() -> bool:
    """Whether this JAX compiles Pallas's kernels for GPUs through Triton: later ones will not."""
    return _can_import("jax.experimental.pallas.triton")


def offers_mosaic_gpu() -> bool:
    """Whether this JAX compiles them through Mosaic GPU, which before 0.12 knows no square root."""
    return jax.__version_info__ >= (0, 12) and _can_import("jax.experimental.pallas.mosaic_gpu")


def _can_import(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


TRITON, MOSAIC_GPU = "Triton", "Mosaic GPU"


def gpu_compiler(capability: float = math.inf) -> str | None:
    """What compiles kernels for GPUs of some compute capability; None where nothing does.

    It is Triton as long as JAX has it: it takes more leaves and older GPUs.
    """
    if capability >= 8 and offers_triton():
        return TRITON
    return MOSAIC_GPU if capability >= 9 and offers_mosaic_gpu() else None


def capability_here() -> float:
    """The least compute capability of the GPUs that are here.

    If no GPU is here, the program is compiled ahead, for any.
    """
    return min(float(getattr(d, "compute_capability", math.inf)) for d in jax.devices())


@contextlib.contextmanager
def through(compiler: str | None) -> Iterator[None]:
    """Without the warning of JAX 0.12, at each kernel, that Triton will go: `gpu_compiler` asks."""
    with warnings.catch_warnings():
        if compiler == TRITON:
            warnings.filterwarnings(
                "ignore", "The Pallas Triton backend is deprecated", DeprecationWarning
            )
        yield


def _there(x: Any, dx: Any) -> Any:
    """A tangent as an array, as `jax.jvp` wants it."""
    if not isinstance(dx, ad.Zero):
        return dx
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.zeros_like(x)
    return np.zeros(jnp.shape(x), jax.dtypes.float0)


def _zero(x: Any, dx: Any) -> Any:
    return ad.Zero(jax.typeof(x).to_tangent_aval()) if dx.dtype == jax.dtypes.float0 else dx
