"""Padding: keeping a slot in a shape that the number of devices divides."""

from typing import Any

import jax
import jax.numpy as jnp

from gradtx.leaves.rows import put_rows, take_rows
from gradtx.leaves.shardings import in_one_program, sliceable
from gradtx.leaves.written import written_by_names
from gradtx.types import Array, PyTree


@written_by_names
@jax.tree_util.register_pytree_with_keys_class
class Padded:
    """A slot with zeros at the end of its dimensions, so that its shards are equal.

    It is a `Stored` slot: rules see it in its own shape.

    Args:
        value: the array as it is kept.
        shape: the slot's own shape.

    >>> slot = Padded.of(jnp.ones(3), (4,))
    >>> slot.value.tolist(), slot.load().tolist()
    ([1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0])
    """

    def __init__(self, value: Any, shape: tuple[int, ...]) -> None:
        self.value, self.shape = value, tuple(shape)

    @classmethod
    def of(cls, x: Array, padded_shape: tuple[int, ...]) -> "Padded":
        """`x` padded to the shape `padded_shape`."""
        return cls(
            jnp.pad(x, [(0, k - n) for k, n in zip(padded_shape, x.shape, strict=True)]), x.shape
        )

    @property
    def dtype(self) -> Any:
        return self.value.dtype

    def __repr__(self) -> str:
        return f"Padded({self.shape} in {getattr(self.value, 'shape', self.value)})"

    def load(self) -> Array:
        return jax.lax.slice(self.value, (0,) * len(self.shape), self.shape)

    def store(self, value: Array) -> "Padded":
        return Padded.of(value.astype(self.value.dtype), self.value.shape)

    def take(self, indices: Array) -> Array:
        return take_rows(self.load(), indices)

    def put(self, indices: Array, values: Array) -> "Padded":
        return self.store(put_rows(self.load(), indices, values))

    def tree_flatten_with_keys(self) -> tuple[Any, tuple[int, ...]]:
        return ((jax.tree_util.GetAttrKey("value"), self.value),), self.shape

    @classmethod
    def tree_unflatten(cls, shape: tuple[int, ...], children: Any) -> "Padded":
        return cls(children[0], shape)


def is_padded(x: Any) -> bool:
    """Whether `x` is `Padded`."""
    return isinstance(x, Padded)


def unpadded(tree: PyTree) -> PyTree:
    """A state with every slot in its own shape, as for saving it."""
    return in_one_program(_each_loaded, tree, is_padded)


def _each_loaded(slots: list[Padded]) -> list[Array]:
    return [Padded(sliceable(x.value), x.shape).load() for x in slots]
