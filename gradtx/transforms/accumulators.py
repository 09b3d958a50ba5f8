"""Accumulators: what a window of micro-batches keeps of the gradients of each parameter."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.engine.leaves import gradient
from gradtx.leaves.paths import aligned, is_leaf, leaves_with_path, matches, path_string
from gradtx.leaves.rows import Rows, index_dtype, is_rows
from gradtx.numerics import accumulator_dtype, cast, divide, real_dtype, widen
from gradtx.types import Array, DType, Params, PyTree, Updates


class WindowRows(NamedTuple):
    """The rows of a table that a window has touched so far, with duplicates, in fixed space.

    indices: i32[n] (i64 for a table that needs it); values: f32[n, ...], the rows times their
    weights; used: i32[], how many there are, more than n if they did not fit.
    """

    indices: Any
    values: Any
    used: Any

    @classmethod
    def empty(cls, p: Array, room: int, dtype: DType | None) -> "WindowRows":
        """An empty window for the table `p`."""
        indices = jnp.zeros(room, index_dtype(p.shape[0] + room))
        values = jnp.zeros((room, *p.shape[1:]), _wide(p, dtype))
        return cls(indices, values, jnp.zeros([], jnp.int32))

    def with_rows(self, rows: Rows | None, weight: Array, first: Array, bad: Array) -> "WindowRows":
        """The window with a micro-batch appended, unless the micro-batch is bad."""
        used = jnp.where(first, 0, self.used)
        if rows is None:
            return self._replace(used=jnp.where(bad, self.used, used))
        indices, values = rows.flat()
        # Rows that are bad, or for which there is no room, are written past the end: they are
        # dropped.
        start = jnp.where(bad, self.indices.size, used)
        at = start + jnp.arange(indices.size, dtype=jnp.int32)
        where = {"mode": "drop", "indices_are_sorted": True, "unique_indices": True}
        new = widen(values) * weight
        return WindowRows(
            self.indices.at[at].set(indices.astype(self.indices.dtype), **where),
            self.values.at[at].set(cast(new, self.values.dtype), **where),
            jnp.where(bad, self.used, used + indices.size),
        )

    def rows(self, like: Rows, total: Any) -> Rows:
        """The sum over the window, divided by `total`; NaN if something did not fit."""
        room = self.indices.size
        there = jnp.arange(room, dtype=jnp.int32) < self.used
        values = widen(self.values)
        total = jnp.asarray(total, real_dtype(values.dtype))
        values = values * jnp.where(self.used > room, jnp.nan, divide(jnp.ones_like(total), total))
        values = jnp.where(there.reshape((room,) + (1,) * (values.ndim - 1)), values, 0)
        indices = jnp.where(there, self.indices, like.shape[0])
        return Rows(indices, cast(values, like.dtype), like.shape)


def is_window(a: Any) -> bool:
    """Whether rows are kept instead of a whole array."""
    return isinstance(a, WindowRows)


def _wide(p: Array, dtype: DType | None) -> DType:
    real = accumulator_dtype(p, dtype)
    return jnp.promote_types(real, jnp.complex64) if jnp.iscomplexobj(p) else real


def zeros(p: Any, dtype: DType | None) -> Any:
    """The accumulator of one parameter."""
    if p is None:
        return None
    p = jnp.asarray(p)
    return jnp.zeros_like(p, dtype=_wide(p, dtype))


def accumulators(params: Params, dtype: DType | None, rows: Mapping[str, int] | None) -> PyTree:
    """The accumulators of a tree: `WindowRows` for the leaves that the patterns of `rows` name.

    Raises:
        ValueError: a pattern matches no leaf, two match one, or a leaf is not a table.
    """
    leaves, treedef = leaves_with_path(params)
    room = dict(rows or {})
    named = [(path_string(path), p) for path, p in leaves]
    for pattern in room:
        if not any(matches(path, pattern) for path, _ in named):
            raise ValueError(
                f"accumulate: rows names {pattern!r}, which matches no leaf; the leaves are "
                f"{', '.join(path for path, _ in named)}"
            )

    def of(path: str, p: Any) -> Any:
        mine = [pattern for pattern in room if matches(path, pattern)]
        if len(mine) > 1:
            raise ValueError(f"accumulate: {path!r} matches several patterns of rows: {mine}")
        if p is None or not mine:
            return zeros(p, dtype)
        if not jnp.ndim(p):
            raise ValueError(f"accumulate: rows names {path!r}, which is a number and has no rows")
        return WindowRows.empty(jnp.asarray(p), room[mine[0]], dtype)

    return treedef.unflatten([of(path, p) for path, p in named])


def map_accumulated(
    function: Callable[..., Any], updates: Updates, acc: PyTree, *trees: PyTree, keep: bool = True
) -> PyTree:
    """``function(g, a, ...)`` on each leaf with an accumulator `a`.

    Without a gradient, `g` is None if `keep`; otherwise the result is None.
    """

    def on_leaf(g: Any, a: Any, *others: Any) -> Any:
        return None if a is None or (g is None and not keep) else function(g, a, *others)

    return jax.tree.map(on_leaf, updates, acc, *trees, is_leaf=is_leaf)


def fitting(updates: Updates, acc: PyTree) -> Updates:
    """Gradients as arrays, `Rows` where rows are kept, and None.

    Raises:
        ValueError: the trees differ, or a shape does (the error names the path).
    """
    structure: Any
    leaves, structure = leaves_with_path(updates)
    accumulators = aligned(
        "the gradients and the accumulator are different trees", updates, structure, acc
    )
    return structure.unflatten(
        [_fitting(path, g, a) for (path, g), a in zip(leaves, accumulators, strict=True)]
    )


def _fitting(path: Any, g: Any, a: Any) -> Any:
    if g is None:
        return None
    g = g if is_rows(g) else gradient(g, path)
    if not is_window(a):
        if a is None or g.shape != a.shape:
            raise ValueError(
                f"at {path_string(path)!r} the gradient is {g.shape} and the accumulator "
                f"{None if a is None else a.shape}; for the gradients of single examples see "
                "differentially_private"
            )
        return g.to_dense() if is_rows(g) else g
    if not is_rows(g):
        raise ValueError(
            f"at {path_string(path)!r} the gradient is an array and not Rows, for which accumulate "
            "is to keep rows: look the table up with gradtx.sparse.take, or leave it out of "
            "the argument rows"
        )
    rows, room = math.prod(g.indices.shape), a.indices.size
    if g.shape[1:] != a.values.shape[1:] or rows > room:
        raise ValueError(
            f"at {path_string(path)!r} a micro-batch has {rows} rows of shape {g.shape[1:]}, and "
            f"the window has room for {room} of shape {a.values.shape[1:]}: see the argument rows "
            "of accumulate"
        )
    return g
