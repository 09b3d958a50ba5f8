"""One layer of stacked layers, read and written where the stack is, in whatever form it is."""

from dataclasses import dataclass
from typing import Any

import jax

from gradtx.leaves.memory import brought_in, in_memory_of, is_on_host
from gradtx.leaves.shardings import dividing_axes, explicit_mesh
from gradtx.storage import Encoded, is_encoded
from gradtx.types import Array


@jax.tree_util.register_dataclass
@dataclass
class _InGroups:
    """A stack of 8-bit numbers on the host, ``[..., rows, n]`` as ``[..., rows / 8, 8, n]``.

    A TPU's compiler reads slices in tiles of 8 rows, but keeps an 8-bit array of 32 rows or more in
    tiles of 32, and would bring in the whole stack at each layer to change them. In this shape it
    does so once, before the loop, a stack at a time.
    """

    array: Array

    @classmethod
    def of(cls, x: Array) -> "_InGroups":
        return cls(x.reshape(*x.shape[:-2], x.shape[-2] // 8, 8, x.shape[-1]))

    def whole(self) -> Array:
        *first, groups, eight, last = self.array.shape
        return self.array.reshape(*first, groups * eight, last)


def _is_in_groups(x: Any) -> bool:
    return isinstance(x, _InGroups)


def is_one_stack(x: Any) -> bool:
    """Whether a node of a tree of stacks is a whole one, in a codec or in groups of rows."""
    return is_encoded(x) or _is_in_groups(x)


def divides_rows(sharding: Any, ndim: int) -> bool:
    """Whether rows of a stack of `ndim` axes are divided: a group might lie on two devices."""
    return sharding is not None and any(dividing_axes(sharding, ndim)[ndim - 2 : ndim - 1])


def in_slices(x: Any, rows_divided: bool) -> Any:
    """A stack in a form that is read layer by layer where it is; else brought to the device."""
    if x.dtype.itemsize > 1 or not is_on_host(x):
        return x
    if x.ndim < 3 or x.shape[-2] % 8 or rows_divided or explicit_mesh(x) is not None:
        return brought_in(x)
    return _InGroups.of(x)


def as_it_was(slot: Array, stack: Any) -> Array:
    """A new stack of slots in the shape and the memory (host or device) of the old one."""
    return in_memory_of(stack.whole() if _is_in_groups(stack) else stack, slot)


def layer_of(x: Any, layer: Array, layers: int) -> Any:
    """One layer of stacked layers, as a stack of one layer."""
    if _is_in_groups(x):
        return _InGroups(layer_of(x.array, layer, layers)).whole()
    size = x.shape[0] // layers
    if is_encoded(x):
        parts = {n: layer_of(part, layer, layers) for n, part in x.parts.items()}
        return x.of_rows(parts, size, layer * size)
    return brought_in(jax.lax.dynamic_slice_in_dim(x, layer * size, size))


def with_layer(x: Any, new: Any, layer: Array) -> Any:
    """The stacked layers `x` with one of them replaced by `new`."""
    if isinstance(x, Encoded):
        parts = {n: with_layer(part, new.parts[n], layer) for n, part in x.parts.items()}
        return x.of_parts(parts, x.shape, x.codec.axis)
    if _is_in_groups(x):
        return _InGroups(with_layer(x.array, _InGroups.of(new).array, layer))
    at = layer * new.shape[0]
    mine = in_memory_of(new.astype(x.dtype), x)
    return jax.lax.dynamic_update_slice_in_dim(x, mine, at, 0)


def key_of_layer(key: Array, name: int, layer: Array) -> Array:
    """The random key of one layer of the scan with this name.

    The name's highest bit is set, since ``fold_in(key, i)`` is the same as ``split(key)[i]``, which
    the next step and the other leaves have.
    """
    return jax.random.fold_in(jax.random.fold_in(key, name | 1 << 31), layer)
