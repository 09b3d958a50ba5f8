"""Matrices of several shapes, brought to the devices that transform them by one message, and back.

Where each shape has fewer matrices than there are devices, a message for each shape is mostly
padding: every device would receive as much as those that have something to do. Here each device
sends every owner what it has of the owner's matrices, one after another, and padding only makes up
for what an owner has less than the one that has most.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.types import Array


@dataclass(frozen=True)
class MatrixBlocks:
    """How equal matrices lie before they are sent: each device has a block of every matrix.

    Attributes:
        count: how many matrices there are.
        each: how many of them an owner has at most.
        first: the owner of the first.
        shape: of a matrix.
        rows: the axes of the mesh that divide the rows.
        columns: those that divide the columns.
    """

    count: int
    each: int
    first: int
    shape: tuple[int, int]
    rows: tuple[str, ...]
    columns: tuple[str, ...]


class OneMessage:
    """What is sent between the devices of a mesh, inside `shard_map`.

    Args:
        stacks: the matrices.
        names: the axes of the mesh, whose devices are owners.
        mesh: the sizes of its axes.
    """

    def __init__(self, stacks: Sequence[MatrixBlocks], names: tuple[str, ...], mesh: Any) -> None:
        self.stacks, self.names = stacks, names
        self.sizes = [mesh[name] for name in names]
        self.devices = math.prod(self.sizes)
        self.blocks = [
            (
                stack.shape[0] // math.prod(mesh[name] for name in stack.rows),
                stack.shape[1] // math.prod(mesh[name] for name in stack.columns),
            )
            for stack in stacks
        ]

    def owned(self, stack: int, device: int) -> slice | None:
        """Which matrices of a stack a device owns."""
        of = self.stacks[stack]
        start = (device - of.first) % self.devices * of.each
        return slice(start, min(start + of.each, of.count)) if start < of.count else None

    def there(self, arrays: Sequence[tuple[int, Array]]) -> list[Array]:
        """The matrices that this device owns, whole.

        Args:
            arrays: the number of a stack and a device's blocks, ``(count, rows, columns)``.

        Returns:
            For each array, ``(each, rows, columns)``; where the device owns fewer matrices of a
            stack, the rest are arbitrary.
        """
        return self._by_type(arrays, self._there)

    def back(self, arrays: Sequence[tuple[int, Array]]) -> list[Array]:
        """The inverse of `there`."""
        return self._by_type(arrays, self._back)

    def _by_type(
        self,
        arrays: Sequence[tuple[int, Array]],
        send: Callable[[list[tuple[int, Array]]], list[Array]],
    ) -> list[Array]:
        """What `send` makes of the arrays of each type, which are one message."""
        alike: dict[Any, list[int]] = {}
        for k, (_, x) in enumerate(arrays):
            alike.setdefault(x.dtype, []).append(k)
        sent: dict[int, Array] = {}
        for members in alike.values():
            sent |= zip(members, send([arrays[k] for k in members]), strict=True)
        return [sent[k] for k in range(len(arrays))]

    def _places(self, arrays: list[tuple[int, Array]]) -> tuple[list[list[int | None]], int]:
        """Where in an owner's row each array begins, for each device; and how long a row is."""
        places: list[list[int | None]] = [[] for _ in arrays]
        ends = []
        for device in range(self.devices):
            end = 0
            for k, (stack, _) in enumerate(arrays):
                entries = self.owned(stack, device)
                places[k].append(None if entries is None else end)
                end += 0 if entries is None else self._length(stack)
            ends.append(end)
        return places, max(ends)

    def _length(self, stack: int) -> int:
        """How many numbers of a stack one device sends another."""
        return self.stacks[stack].each * math.prod(self.blocks[stack])

    def _exchange(self, rows: Array) -> Array:
        """One row from each device, of one row for each device."""
        return jax.lax.all_to_all(rows, self.names, 0, 0, tiled=True)

    def _here(self, places: list[int | None], otherwise: int) -> Array:
        """Where in this device's rows an array begins."""
        starts = [otherwise if start is None else start for start in places]
        return jnp.asarray(starts, jnp.int32)[jax.lax.axis_index(self.names)]

    def _there(self, arrays: list[tuple[int, Array]]) -> list[Array]:
        places, longest = self._places(arrays)
        rows = []
        for device in range(self.devices):
            row = [jnp.zeros(0, arrays[0][1].dtype)]
            for stack, x in arrays:
                entries = self.owned(stack, device)
                if entries is not None:
                    sent = x[entries].ravel()
                    row.append(jnp.pad(sent, (0, self._length(stack) - sent.size)))
            whole = jnp.concatenate(row)
            rows.append(jnp.pad(whole, (0, longest - whole.size)))
        received = self._exchange(jnp.stack(rows))
        stacks = []
        for (stack, _), starts in zip(arrays, places, strict=True):
            start, length = self._here(starts, 0), self._length(stack)
            mine = jax.lax.dynamic_slice_in_dim(received, start, length, 1)
            stacks.append(self._whole(stack, mine))
        return stacks

    def _back(self, arrays: list[tuple[int, Array]]) -> list[Array]:
        places, longest = self._places(arrays)
        # What a device does not own is written behind the end, and not sent.
        behind = max(self._length(stack) for stack, _ in arrays)
        rows = jnp.zeros((self.devices, longest + behind), arrays[0][1].dtype)
        for (stack, x), starts in zip(arrays, places, strict=True):
            start = self._here(starts, longest)
            rows = jax.lax.dynamic_update_slice_in_dim(rows, self._apart(stack, x), start, 1)
        received = self._exchange(rows[:, :longest])
        stacks = []
        for (stack, _), starts in zip(arrays, places, strict=True):
            of, length = self.stacks[stack], self._length(stack)
            by_owner = [
                received[device, start : start + length]
                for i in range(self.devices)
                if (start := starts[device := (of.first + i) % self.devices]) is not None
            ]
            stacks.append(jnp.concatenate(by_owner).reshape(-1, *self.blocks[stack])[: of.count])
        return stacks

    def _order(self, stack: int) -> list[int]:
        """The axes of ``(*mesh, each, rows, columns)`` of blocks, as those of whole matrices."""
        of, n = self.stacks[stack], len(self.names)
        rows, columns = (list(map(self.names.index, names)) for names in (of.rows, of.columns))
        return [n, *rows, n + 1, *columns, n + 2]

    def _whole(self, stack: int, received: Array) -> Array:
        """Matrices, from the blocks of each device."""
        of = self.stacks[stack]
        x = received.reshape(*self.sizes, of.each, *self.blocks[stack])
        return x.transpose(self._order(stack)).reshape(of.each, *of.shape)

    def _apart(self, stack: int, x: Array) -> Array:
        """The inverse of `_whole`: a row of blocks for each device."""
        order = self._order(stack)
        sizes = (*self.sizes, self.stacks[stack].each, *self.blocks[stack])
        x = x.reshape([sizes[axis] for axis in order])
        return x.transpose(np.argsort(order)).reshape(self.devices, -1)
