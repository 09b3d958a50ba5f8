"""Matrices whose batch axes are divided over a mesh, such as experts: each device has its own.

Leaves of one shape are transformed as one batch, in which the axes of leaves, layers and experts
are merged into one. Merging them for the whole array, where a divided axis comes after one that is
not, makes the compiler bring all matrices to every device. Here each device merges its shard. If
rows or columns are divided too, the devices that have parts of the same matrices share them out,
each whole, as in :mod:`gradtx.ownership.owners`. The slots of a matrix stay with the device that
transforms it, where a state has them in a stack that is laid out by
:class:`gradtx.ownership.owned_slots.OwnBatches`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from gradtx.leaves.matrix_layout import Matrices
from gradtx.ownership.owned_slots import OwnBatches, padded
from gradtx.ownership.owners import Divided, axes_along, note
from gradtx.types import Array

NamedStacks = dict[str, Array]


def has_own_batches(sharding: NamedSharding, how: Matrices) -> bool:
    """Whether batch axes of a leaf are divided; never for heads, which are cut out of an axis."""
    batch, *_ = how.axes
    return how.split == how.shape and any(axes_along(sharding, axis) for axis in batch)


def own_batches(sharding: NamedSharding, how: Matrices, leaves: int) -> OwnBatches | None:
    """Where the matrices of equal leaves lie if batch axes are divided; None if they are not."""
    if not has_own_batches(sharding, how):
        return None
    batch, *_ = how.axes
    dims = tuple(axes_along(sharding, axis) for axis in range(len(how.shape)))
    over = [math.prod(sharding.mesh.shape[name] for name in names) for names in dims]
    shards = tuple(over[axis] for axis in batch)
    sizes = tuple(how.shape[axis] for axis in batch)
    return OwnBatches((leaves, *sizes), (1, *shards), math.prod(over) // math.prod(shards), dims)


def axes_of_stack(division: OwnBatches, how: Matrices) -> tuple[str, ...]:
    """The axes of the mesh over which a stack is divided: those of batches, then the sharers'."""
    batch, rows, columns = how.axes
    return tuple(n for axis in (*batch, *sorted((*rows, *columns))) for n in division.dims[axis])


def on_own_batches(
    function: Callable[[Array, NamedStacks], tuple[Array, NamedStacks]],
    x: Array,
    slots: Mapping[str, Array],
    factors: Mapping[str, Array],
    staying: Mapping[str, Array],
    how: Matrices,
    sharding: NamedSharding,
) -> tuple[Array, NamedStacks]:
    """The results of ``function(batch, {name: slot})``, each device computing its own matrices.

    Args:
        function: of a batch ``(n, rows, columns)`` and its slots, each entry of which depends on
            the same entry alone; it returns directions and the new slots.
        x: the leaves as a stack, ``(leaves, *shape)``.
        slots: stacks like `x`.
        factors: slots of which a leaf has one for each matrix, ``(leaves, n, ...)``.
        staying: slots that lie with the matrices' owners already, and stay there.
        how: the layout of one leaf.
        sharding: of one leaf.

    Returns:
        Directions and slots in the forms of the arguments.
    """
    mesh: Any = sharding.mesh
    batch, *_ = how.axes
    division = own_batches(sharding, how, len(x))
    assert division is not None
    on_device = _OnDevice(function, how, sharding, division)
    # Factors with the batch axes of leaves, which are divided, in place of one for all matrices.
    sizes = [how.shape[axis] for axis in batch]
    by_batch = {n: v.reshape(len(v), *sizes, *v.shape[2:]) for n, v in factors.items()}
    dims = division.dims
    leaf_spec = PartitionSpec(None, *(names or None for names in dims))
    batch_spec = PartitionSpec(None, *(dims[axis] or None for axis in batch))
    specs = {**dict.fromkeys(slots, leaf_spec), **dict.fromkeys(factors, batch_spec)}
    specs |= dict.fromkeys(staying, PartitionSpec(axes_of_stack(division, how)))
    # On explicit axes this runs under `automatic`, which has set the mesh with automatic ones.
    is_set = any(kind == AxisType.Explicit for kind in mesh.axis_types)
    u, new = jax.shard_map(
        on_device.run,
        mesh=None if is_set else mesh,
        in_specs=(leaf_spec, *({n: specs[n] for n in some} for some in (slots, by_batch, staying))),
        out_specs=(leaf_spec, specs),
        check_vma=False,
    )(x, dict(slots), by_batch, dict(staying))
    return u, {n: v.reshape(factors[n].shape) if n in factors else v for n, v in new.items()}


class _OnDevice(NamedTuple):
    """The function of :func:`on_own_batches` on the shards of one device."""

    function: Callable[[Array, NamedStacks], tuple[Array, NamedStacks]]
    how: Matrices
    sharding: NamedSharding
    division: OwnBatches

    @property
    def across(self) -> list[tuple[int, tuple[str, ...]]]:
        """Each divided axis of the matrices, and the axes of the mesh over which it is divided."""
        _, rows, columns = self.how.axes
        dims = self.division.dims
        return [(axis, dims[axis]) for axis in sorted((*rows, *columns)) if dims[axis]]

    def run(
        self, x: Array, slots: NamedStacks, factors: NamedStacks, staying: NamedStacks
    ) -> tuple[Array, NamedStacks]:
        stack = _Local(x.shape, self.how, self.across, self.division.sharers)
        slots_of_matrices = {n: stack.matrices(slot) for n, slot in slots.items()}
        slots_of_matrices |= {n: stack.factors(slot) for n, slot in factors.items()} | staying
        if self.across:
            self._note(x, stack.count, slots_of_matrices, [*factors, *staying])
        u, new = self.function(stack.matrices(x), slots_of_matrices)

        def in_form(n: str, v: Array) -> Array:
            if n in staying:
                return v
            return stack.factors_back(v, factors[n]) if n in factors else stack.back(v)

        return stack.back(u), {n: in_form(n, v) for n, v in new.items()}

    def _note(self, x: Array, count: int, slots: NamedStacks, staying: list[str]) -> None:
        """Add the stack to the list of stacks that a trace divides."""
        shape = count, self.how.rows, self.how.columns
        like: Any = {n: _like(v, (count, *v.shape[1:])) for n, v in slots.items()}
        over = tuple(name for _, names in self.across for name in names)
        by = over, self.division.sharers
        axes = self.how.axes
        note(Divided(self.function, _like(x, shape), like, self.sharding, by, axes, staying, None))


def _like(x: Array, shape: tuple[int, ...]) -> Any:
    return jax.ShapeDtypeStruct(shape, x.dtype)


class _Local:
    """A device's part of a stack of leaves: as whole matrices, of which it has a share, and back.

    Args:
        shape: of the part.
        how: the layout of one whole leaf.
        across: the axes of a leaf that are divided and not batch, with the axes of the mesh.
        sharers: how many devices have parts of the same matrices.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        how: Matrices,
        across: list[tuple[int, tuple[str, ...]]],
        sharers: int,
    ) -> None:
        batch, rows, columns = how.axes
        self.sharers = sharers
        # The stack's own axis comes first, then the batch axes, then the others in their order.
        others = sorted((*rows, *columns))
        self.order = (0, *(axis + 1 for axis in (*batch, *others)))
        self.local = tuple(shape[axis] for axis in self.order)
        self.leading = 1 + len(batch)
        self.count = math.prod(self.local[: self.leading])
        place = {axis: 1 + i for i, axis in enumerate(others)}
        self.across = [(place[axis], names) for axis, names in across]
        share = -(-self.count // sharers), *(how.shape[axis] for axis in others)
        to_rows, to_columns = (tuple(place[axis] for axis in axes) for axes in (rows, columns))
        order, layout = (0, *to_rows, *to_columns), ((0,), to_rows, to_columns)
        sizes = share[0], how.rows, how.columns
        self.matrix = Matrices(order, sizes, share, share, layout)

    def matrices(self, x: Array) -> Array:
        """The device's share of the matrices, each whole."""
        x = x.transpose(self.order).reshape(self.count, *self.local[self.leading :])
        x = padded(x, self.sharers, None)
        for axis, names in self.across:
            x = jax.lax.all_to_all(x, names, 0, axis, tiled=True)
        return self.matrix.take(x)

    def back(self, u: Array) -> Array:
        """The inverse of `matrices`."""
        x = self.matrix.put(u)
        for axis, names in reversed(self.across):
            x = jax.lax.all_to_all(x, names, axis, 0, tiled=True)
        x = x[: self.count].reshape(self.local)
        return x.transpose(np.argsort(self.order))

    def factors(self, x: Array) -> Array:
        """The device's share of the factors, which all sharers of the same matrices have whole."""
        x = padded(x.reshape(self.count, *x.shape[self.leading :]), self.sharers, None)
        for _, names in self.across:
            size = len(x) // jax.lax.axis_size(names)
            x = jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(names) * size, size)
        return x

    def factors_back(self, new: Array, like: Array) -> Array:
        """The inverse of `factors`, in the shape of `like`."""
        for _, names in reversed(self.across):
            new = jax.lax.all_gather(new, names, tiled=True)
        return new[: self.count].reshape(like.shape)
