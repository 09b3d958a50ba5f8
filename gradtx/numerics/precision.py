"""Precision: the types in which numbers are stored, and those in which rules compute."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.programs.tracing import is_tracer
from gradtx.types import Array, DType, PyTree

_F = TypeVar("_F", bound=Callable[..., Any])


@functools.cache
def compute_dtype(dtype: DType) -> DType:
    """The type in which arithmetic on numbers stored as `dtype` is done: float32 or wider."""
    dtype = jnp.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32:
        return jnp.dtype(jnp.float32)
    return dtype


def is_narrow(dtype: DType) -> bool:
    """Whether a type has fewer digits than rules compute with, such as bfloat16 or float16."""
    return compute_dtype(dtype) != jnp.dtype(dtype)


@functools.cache
def real_dtype(dtype: DType) -> DType:
    """The type of the absolute value of numbers of type `dtype`."""
    return jnp.finfo(dtype).dtype


def scalar_dtype(arrays: Sequence[Any]) -> DType:
    """The type of a number that belongs to several arrays: real, float32 or wider."""
    if not arrays:
        return jnp.dtype(jnp.float32)
    return real_dtype(compute_dtype(jnp.result_type(*(x.dtype for x in arrays))))


def accumulator_dtype(x: Array, dtype: DType | None = None) -> DType:
    """The type of a slot that sums squares of `x`: real, and float32 or wider by default.

    In bfloat16 a second moment with a decay of 0.999 would never decay (half a unit in the last
    place is 0.2 %), and in float16 small squares would vanish.
    """
    return jnp.dtype(dtype) if dtype is not None else real_dtype(compute_dtype(x.dtype))


def mean_dtype(x: Array, dtype: DType) -> DType:
    """The type of a mean or a sum of numbers like `x`: complex ones stay complex if it is real."""
    return jnp.result_type(dtype, jnp.complex64) if jnp.iscomplexobj(x) else jnp.dtype(dtype)


def zero_mean(x: Array, dtype: DType | None = None) -> Array:
    """The slot in which a mean or a sum of gradients of `x` begins, in :func:`mean_dtype`."""
    return zeros_like(x, None if dtype is None else mean_dtype(x, dtype))


def moments(
    p: Array, mu_dtype: DType | None = None, nu_dtype: DType | None = None
) -> dict[str, Array]:
    """The slots of Adam and its variants for a parameter: the means of gradients and of squares.

    >>> {k: str(x.dtype) for k, x in moments(jnp.ones(2, jnp.bfloat16)).items()}
    {'mu': 'bfloat16', 'nu': 'float32'}
    """
    return {"mu": zero_mean(p, mu_dtype), "nu": zeros_like(p, accumulator_dtype(p, nu_dtype))}


def own_copy(p: Any, dtype: DType | None = None) -> Array:
    """A copy of a parameter for a state: no buffer can be donated twice."""
    return jnp.array(p, dtype, copy=True)


def cast(x: Array, dtype: DType) -> Array:
    """`x` as a strong `dtype`; nothing is traced if it already is one."""
    if x.dtype == dtype and not getattr(x, "weak_type", False):
        return x
    return x.astype(dtype)


def as_inexact(x: Array) -> Array:
    """`x`, or floats of integers, whose products and squares would wrap around."""
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(float)


def as_arrays(tree: PyTree) -> PyTree:
    """`tree` with floating-point arrays in place of Python numbers, and all else unchanged.

    Raises:
        TypeError: there is a tensor of PyTorch or TensorFlow in it.

    >>> as_arrays({"a": 1, "b": None})
    {'a': Array(1., dtype=float32), 'b': None}
    """
    kinds = set(map(type, jax.tree.leaves(tree)))
    if any(map(_is_tensor, kinds)):
        keyed = jax.tree_util.tree_flatten_with_path(tree)[0]
        path, tensor = next((k, x) for k, x in keyed if _is_tensor(type(x)))
        at = jax.tree_util.keystr(path, simple=True, separator="/")
        raise TypeError(
            f"at {at!r} there is a {type(tensor).__module__}.{type(tensor).__name__}: make it an "
            "array by jnp.asarray(x.detach().cpu().numpy()), or for TensorFlow "
            "jnp.asarray(x.numpy()); gradtx.interop hands over whole optimizers"
        )
    if not kinds & {int, float}:
        return tree
    return jax.tree.map(lambda x: jnp.asarray(x, float) if type(x) in (int, float) else x, tree)


def _is_tensor(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("torch", "tensorflow")


def signed(x: Any) -> Any:
    """An unsigned or narrow integer array in the default type: differences and negatives wrapped.

    An unsigned integer that this type does not reach becomes its largest.

    >>> -signed(np.uint8(3))
    np.int32(-3)
    """
    known = isinstance(x, jax.Array | np.ndarray | np.generic)
    if not known or not jnp.issubdtype(x.dtype, jnp.integer) or x.dtype in (jnp.int32, jnp.int64):
        return x
    dtype = jnp.result_type(int)
    if jnp.iinfo(x.dtype).max > jnp.iinfo(dtype).max:
        of: Any = jnp if isinstance(x, jax.Array) else np  # JAX would cut 64 bits off first
        x = of.minimum(x, of.asarray(jnp.iinfo(dtype).max, x.dtype))
    return x.astype(dtype)


def widen(x: Array) -> Array:
    """`x` in the type in which rules compute."""
    return cast(x, compute_dtype(x.dtype))


SMALL = 1 << 16
"""Constants of up to so many entries come from the host: XLA compiles a program for each shape.
"""


def full(shape: tuple[int, ...], value: Any, dtype: DType, *, beside: Array) -> Array:
    """`value` in a shape; where `beside` is traced, it is a value of the same program."""
    if is_tracer(beside) or math.prod(shape) > SMALL or not _is_number(value):
        return jnp.full(shape, value, dtype)
    return jax.device_put(np.full(shape, value, dtype))


def zeros_like(x: Array, dtype: DType | None = None) -> Array:
    """Zeros of the shape, sharding and (unless given) type of `x`."""
    return full_like(x, 0, dtype)


def full_like(x: Array, value: Any, dtype: DType | None = None) -> Array:
    """`value` in the shape, sharding and (unless given) type of `x`."""
    known = isinstance(x, jax.Array) and not is_tracer(x) and x.is_fully_addressable
    weak = known and dtype is None and x.weak_type  # which an array of NumPy cannot be
    if not known or weak or x.size > SMALL or not _is_number(value):
        return jnp.full_like(x, value, dtype=dtype)
    constant = np.full(x.shape, value, dtype or x.dtype)
    return jax.device_put(constant, x.sharding if x.committed else None)


def _is_number(value: Any) -> bool:
    return np.ndim(value) == 0 and not isinstance(value, jax.Array)


def precise(function: _F) -> _F:
    """`function` with products of matrices in the full precision of their type on every chip.

    TPUs and GPUs may round factors to fewer bits; decompositions and roots amplify that error.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return run  # type: ignore[return-value]
