"""The arguments of losses: their checks, and the type in which losses are computed."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from gradtx.numerics import widen
from gradtx.types import Array


def floating(where: str, **arrays: Any) -> list[Array]:
    """Floating-point arrays in one type, float32 or wider, so that nothing is rounded first.

    Raises:
        TypeError: an array is of another type.
    """
    by_name = {name: jnp.asarray(x) for name, x in arrays.items()}
    check_floating(where, **by_name)
    wide = [widen(x) for x in by_name.values()]
    dtype = jnp.result_type(*wide)
    return [x.astype(dtype) for x in wide]


def check_floating(where: str, **arrays: Array) -> None:
    """Raise a TypeError unless all arrays are floating-point."""
    for name, x in arrays.items():
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise TypeError(f"{where}: {name} must be floating-point, not {x.dtype}")


def real(x: Any, beside: Any = jnp.float32) -> Array:
    """Numbers of any real type, or booleans, as floating-point ones in float32 or wider.

    Args:
        x: the numbers.
        beside: the type that integers and booleans get, float32 or wider.

    Raises:
        TypeError: they are complex, and would lose their imaginary part.
    """
    x = jnp.asarray(x)
    if jnp.iscomplexobj(x):
        raise TypeError(f"a loss takes real labels, targets and scores, not {x.dtype}")
    return widen(x) if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(beside)


def check_shapes(where: str, **arrays: Any) -> None:
    """Raise a ValueError unless all shapes are the same: nothing is broadcast by accident."""
    shapes = {name: jnp.shape(x) for name, x in arrays.items()}
    if len(set(shapes.values())) > 1:
        shown_shapes = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"{where}: the shapes must be the same, not {shown_shapes}")


def check_rank(where: str, rank: int, **arrays: Any) -> None:
    """Raise a ValueError unless all arrays have `rank` dimensions."""
    for name, x in arrays.items():
        if jnp.ndim(x) != rank:
            raise ValueError(f"{where}: {name} must have {rank} dimensions, not {jnp.shape(x)}")


def counted(where: str, labels: Array, ignore_index: Any) -> Array:
    """Which labels count: all but the one that is ignored.

    Raises:
        TypeError: the label to ignore is not an integer.
    """
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int | np.integer):
        raise TypeError(f"{where}: ignore_index must be an integer or None, not {ignore_index!r}")
    if not jnp.iinfo(labels.dtype).min <= ignore_index <= jnp.iinfo(labels.dtype).max:
        return jnp.ones(labels.shape, bool)
    return labels != ignore_index


def check_labels(where: str, labels: Array) -> None:
    """Raise a TypeError unless labels are integers."""
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(f"{where}: labels must be integers, not {labels.dtype}")
