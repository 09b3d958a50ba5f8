"""Formats: how tables lie in a device's memory."""

from typing import Any

from jax.experimental.layout import Format, Layout

from gradtx.leaves.paths import map_with_paths, path_string
from gradtx.types import PyTree


def row_major(tree: PyTree) -> PyTree:
    """The formats in which every array lies row after row, for `jax.device_put` and `jax.jit`.

    A TPU keeps the columns of a table contiguous if its rows are shorter than 128: that takes less
    memory, since it fills rows up to 128, but a step that writes some rows then copies the table
    and its slots, there and back. Row after row nothing is copied.

    Args:
        tree: parameters, a state, or both; arrays, or `jax.ShapeDtypeStruct` with a sharding.

    Returns:
        A tree like it, of `jax.experimental.layout.Format` for arrays of two dimensions or more,
        and of shardings for the others.

    Raises:
        ValueError: a `jax.ShapeDtypeStruct` has no sharding.

    >>> import jax, jax.numpy as jnp
    >>> formats = row_major({"table": jnp.zeros((8, 2)), "b": jnp.zeros(2)})
    >>> formats["table"].layout.major_to_minor
    (0, 1)
    >>> jax.device_put(jnp.zeros((8, 2)), formats["table"]).shape
    (8, 2)
    """

    def one(path: Any, x: Any) -> Any:
        if x.sharding is None:
            raise ValueError(f"row_major: {path_string(path)!r} has no sharding")
        return Format(Layout(tuple(range(x.ndim))), x.sharding) if x.ndim > 1 else x.sharding

    return map_with_paths(one, tree)
