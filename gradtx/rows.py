"""Rows: the gradient, or the update, of the few rows of a table that a step touches."""

from typing import Any

import jax
import jax.numpy as jnp

from gradtx.types import Array


@jax.tree_util.register_pytree_with_keys_class
class Rows:
    """Some rows of a table: ``table[indices[i]]`` has the value ``values[i]``, every other row 0.

    An index may come several times (the values add up) and an index outside the table, negative
    ones included, names no row. Transformations treat `Rows` as one leaf.

    Args:
        indices: integers of shape ``(n,)``.
        values: an array of shape ``(n, *shape[1:])``.
        shape: the shape of the whole table.

    Raises:
        TypeError: the indices are not integers.
        ValueError: the shapes do not fit.

    >>> rows = Rows(jnp.array([2, 0, 2]), jnp.ones((3, 2)), (4, 2))
    >>> rows.to_dense().tolist()
    [[1.0, 1.0], [0.0, 0.0], [2.0, 2.0], [0.0, 0.0]]
    """

    def __init__(self, indices: Any, values: Any, shape: tuple[int, ...]) -> None:
        self.indices, self.values, self.shape = indices, values, tuple(shape)
        if not hasattr(values, "shape") or not hasattr(indices, "dtype"):
            return  # a placeholder that JAX puts into every pytree at times
        if not jnp.issubdtype(indices.dtype, jnp.integer):
            raise TypeError(
                f"Rows: indices must be integers, not {indices.dtype}; a tree.map over gradients "
                "multiplies the indices too: use gradtx.tree, which takes Rows as one leaf"
            )
        if values.shape[-len(self.shape) + 1 :] != self.shape[1:] and len(self.shape) > 1:
            raise ValueError(
                f"Rows: values of shape {values.shape} do not fit rows of a table of shape "
                f"{self.shape}"
            )
        if indices.ndim != values.ndim - len(self.shape) + 1:
            raise ValueError(
                f"Rows: indices of shape {indices.shape} do not go with values of shape "
                f"{values.shape}"
            )

    def tree_flatten_with_keys(self) -> tuple[tuple[Any, Any], tuple[int, ...]]:
        key = jax.tree_util.GetAttrKey
        return ((key("indices"), self.indices), (key("values"), self.values)), self.shape

    @classmethod
    def tree_unflatten(cls, shape: tuple[int, ...], children: Any) -> "Rows":
        return cls(children[0], children[1], shape)

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"Rows({self.values.shape[0]} of {self.shape}, {self.dtype})"

    def with_values(self, values: Any) -> "Rows":
        """The same rows with other values."""
        return Rows(self.indices, values, self.shape)

    def coalesce(self) -> "Rows":
        """The same sum with every index once; what is left over names the row past the last."""
        past = self.shape[0]
        inside = (self.indices >= 0) & (self.indices < past)
        named = jnp.where(inside, self.indices, past)
        indices, position = jnp.unique(
            named, size=named.shape[0], fill_value=past, return_inverse=True
        )
        summed = jax.ops.segment_sum(self.values, position.reshape(-1), named.shape[0])
        kept = (indices < past).reshape((-1,) + (1,) * (self.values.ndim - 1))
        return Rows(indices, jnp.where(kept, summed, 0), self.shape)

    def to_dense(self) -> Array:
        """The whole table."""
        return add_rows(jnp.zeros(self.shape, self.dtype), self)


def is_rows(x: Any) -> bool:
    """Whether `x` is `Rows`."""
    return isinstance(x, Rows)


def take_rows(table: Array, indices: Array) -> Array:
    """The rows of `table` at `indices`; zeros for an index past the last."""
    return table.at[indices].get(mode="fill", fill_value=0)


def put_rows(table: Array, indices: Array, values: Array) -> Array:
    """`table` with `values` written at `indices`; an index past the last writes nothing."""
    return table.at[indices].set(values.astype(table.dtype), mode="drop")


def add_rows(table: Array, rows: Rows) -> Array:
    """`table` with `rows` added, computed in at least float32 and rounded once per row."""
    past = table.shape[0]
    indices = jnp.where(rows.indices < 0, past, rows.indices)
    return table.at[indices].add(rows.values.astype(table.dtype), mode="drop")
