"""Matrices divided over a mesh: each device transforms some of them, whole.

A product of matrices whose rows lie on several devices needs a sum over the devices, and an
iteration needs one each time. Equal matrices are a batch, and the batch can be divided instead: the
matrices are brought together once, transformed without a message, and brought back once.
Constraints around an iteration are not enough, since XLA then gathers inside of it; `shard_map`
leaves it no choice.

Where there are fewer equal matrices than devices, some devices have only padding. If stacks are
balanced, these are others for each stack, and they transform nothing. All stacks are then brought
together before the first is transformed, and the last is transformed before any is brought back: a
message in between would make the devices wait for one another, and nothing would be gained. Where
it is known which block of each matrix a device has, that is one message in and one out.
"""

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from gradtx.leaves.shardings import (
    dividing_axes,
    is_open,
    known_sharding,
    open_spec,
    stacks_are_balanced,
)
from gradtx.numerics.control import loop_once_if
from gradtx.ownership.one_message import MatrixBlocks, OneMessage
from gradtx.ownership.owned_slots import in_order, padded
from gradtx.ownership.shard_alike import shard_alike
from gradtx.types import Array


@dataclass(frozen=True)
class Stack:
    """Equal matrices that are divided over devices.

    Attributes:
        count: how many there are.
        shape: of one of them.
        devices: over how many they are divided; each gets equally many, the last with padding.
        axes: of the mesh.
        first: the device that has the first of them, if stacks are balanced: devices that have only
            padding then transform nothing. Otherwise None, and the first device has it.
        arrays: how many arrays are brought to their owners, and brought back.
        bytes: of those arrays, on one device.
        program: what a device computes.
        in_one_message: whether these are brought to their owners together with those of other
            stacks, and back, without padding.
    """

    count: int
    shape: tuple[int, ...]
    devices: int
    axes: tuple[str, ...]
    first: int | None
    arrays: tuple[int, int]
    bytes: tuple[int, int]
    program: Any
    in_one_message: bool = False

    @property
    def each(self) -> int:
        """The matrices of one device, padding included."""
        return -(-self.count // self.devices)

    @property
    def busy(self) -> tuple[int, ...]:
        """The devices that transform something."""
        if self.first is None:
            return tuple(range(self.devices))
        turns = range(-(-self.count // self.each))
        return tuple(sorted((self.first + i) % self.devices for i in turns))


Axes = tuple[tuple[int, ...], ...]
"""Which axes of a leaf are batch, rows and columns."""


_stacks: ContextVar[list[Stack] | None] = ContextVar("stacks", default=None)


@contextlib.contextmanager
def stacks() -> Iterator[list[Stack]]:
    """The stacks that are divided by what is traced within."""
    divided: list[Stack] = []
    token = _stacks.set(divided)
    try:
        yield divided
    finally:
        _stacks.reset(token)


def divided_sharding(path: str, axes: Axes) -> NamedSharding | None:
    """The sharding of a leaf, if its matrices are divided; otherwise None.

    Where only a batch axis is divided, such as experts, every device has whole matrices already.
    """
    sharding = known_sharding(path)
    _, rows, columns = axes
    if sharding is None or not any(axes_along(sharding, axis) for axis in (*rows, *columns)):
        return None
    return sharding


def owners(
    sharding: NamedSharding, axes: Axes, kept: tuple[str, ...] | None = None
) -> tuple[tuple[str, ...], int]:
    """The axes of the mesh over which a stack of matrices is divided, and how many devices.

    These are the axes over which a state has the stack divided. Without such a state they are those
    over which the leaves are divided, so that no matrix leaves its node where each node has all of
    them, or all axes where only the compiler knows how leaves are divided.

    Args:
        sharding: of the leaves.
        axes: which axes of a leaf are batch, rows and columns.
        kept: the axes of the mesh over which slots of these matrices are a stack in the state.
    """
    mesh: Any = sharding.mesh
    if kept is not None:
        over = set(kept)
    elif is_open(sharding):
        over = set(mesh.axis_names)
    else:
        over = {name for these in axes for axis in these for name in axes_along(sharding, axis)}
    names = tuple(name for name in mesh.axis_names if name in over)
    return names, math.prod(mesh.shape[name] for name in names)


def beginnings(
    stacks: Sequence[tuple[tuple[str, ...], int, tuple[int, int, int]]],
) -> list[int | None]:
    """The index at which each stack begins in its padded form, which balances the devices' work.

    The stack that costs most begins at the first device, and each further one where the one before
    it ends, around the mesh.

    Args:
        stacks: of each the axes of the mesh over which it is divided, the number of devices, and
            the number, rows and columns of its matrices.

    Returns:
        None for a stack that is transformed by itself: it gives work to every device, or no device
        would have less to do.
    """
    begins: list[int | None] = [None] * len(stacks)
    if not stacks_are_balanced():
        return begins
    for over in {(axes, devices) for axes, devices, _ in stacks}:
        devices, at, idle = over[1], 0, []
        for k, (axes, _, (count, rows, columns)) in enumerate(stacks):
            each = -(-count // devices)
            busy = -(-count // max(each, 1))
            if axes == over[0] and 0 < busy < devices:
                cost = each * rows * columns * min(rows, columns)  # of a Gram matrix
                idle.append((cost, k, each, busy))
        loads = [0] * devices
        for cost, k, each, busy in sorted(idle, key=lambda stack: -stack[0]):
            begins[k] = at * each
            for i in range(busy):
                loads[(at + i) % devices] += cost
            at = (at + busy) % devices
        if max(loads) == sum(cost for cost, *_ in idle):
            for _, k, *_ in idle:
                begins[k] = None
    return begins


NamedSlots = dict[str, Array]


class Divided(NamedTuple):
    """A batch of equal matrices, to be divided over the devices that transform them.

    Attributes:
        function: maps arrays ``(n, ...)`` to directions and new slots of the same length, each
            entry of which depends on the same entry alone.
        batch: the matrices. These and slots are padded with zeros to a multiple of the devices.
        slots: by name.
        sharding: of the leaves from which the matrices come, all alike.
        over: the axes of the mesh over which the matrices are divided, and how many devices, from
            :func:`owners`.
        axes: which axes of a leaf are batch, rows and columns.
        staying: the slots that lie with the matrices' owners already, padded, and stay there.
        begin: where the padded stack begins, from :func:`beginnings`.
    """

    function: Callable[[Array, NamedSlots], tuple[Array, NamedSlots]]
    batch: Array
    slots: NamedSlots
    sharding: NamedSharding
    over: tuple[tuple[str, ...], int]
    axes: Axes
    staying: Collection[str]
    begin: int | None


def owned(stacks: Sequence[Divided]) -> list[tuple[Array, NamedSlots]]:
    """What ``function(batch, slots)`` returns for each stack, each device computing its shard.

    Args:
        stacks: one, or all that are balanced over the same axes.

    Returns:
        Directions and slots. What does not stay is sharded as it was given, as far as that can be
        said of stacked matrices.
    """
    mesh: Any = stacks[0].sharding.mesh
    names, devices = stacks[0].over
    divided, is_left_open = PartitionSpec(names), is_open(stacks[0].sharding)
    blocks = [block for stack in stacks if (block := _blocks(stack)) is not None]
    in_one = len(blocks) == len(stacks)
    for stack in stacks:
        note(stack, in_one_message=in_one)

    # On explicit axes this runs under `automatic`, which has set the mesh with automatic ones.
    is_set = is_left_open or any(kind == AxisType.Explicit for kind in mesh.axis_types)
    if in_one:
        return _in_one_message(stacks, blocks, None if is_set else mesh)

    def placed(x: Array, spec: PartitionSpec) -> Array:
        return jax.lax.with_sharding_constraint(x, spec if is_set else NamedSharding(mesh, spec))

    def one_stack(x: Array) -> Array:
        # It is whole along its first dimension: otherwise the compiler moves leaves one by one.
        return placed(x, PartitionSpec(None, *open_spec(x.ndim - 1)))

    def is_known(stack: Divided, x: Array) -> bool:
        return not is_left_open and x.shape[1:] == stack.batch.shape[1:]

    def given(stack: Divided, n: str | None, x: Array) -> Array:
        if n in stack.staying:
            return placed(x, divided)
        x = x if is_known(stack, x) else one_stack(x)
        return placed(padded(x, devices, stack.begin), divided)

    def own(shards: list[tuple[Array, NamedSlots]]) -> list[tuple[Array, NamedSlots]]:
        if stacks[0].begin is None:
            return [stack.function(*shard) for stack, shard in zip(stacks, shards, strict=True)]
        device = jax.lax.axis_index(names)
        there = _all_at_once(stacks, shards)
        done = [_unless_padding(*pair, device, devices) for pair in zip(stacks, there, strict=True)]
        return _all_at_once(stacks, done)

    # Loops inside start from constants, alike everywhere: there is nothing to check.
    by_owners = jax.shard_map(
        own, mesh=None if is_set else mesh, in_specs=divided, out_specs=divided, check_vma=False
    )
    arrays = [
        (given(stack, None, stack.batch), {n: given(stack, n, x) for n, x in stack.slots.items()})
        for stack in stacks
    ]

    def returned(stack: Divided, x: Array, before: Array) -> Array:
        count = stack.batch.shape[0]
        if not is_known(stack, x):
            return shard_alike(in_order(one_stack(x), stack.begin)[:count], before)
        along_batch, rows, columns = (
            tuple(name for axis in these for name in axes_along(stack.sharding, axis))
            for these in stack.axes
        )
        # Brought back while it is one stack: one message, not one for each leaf.
        if not along_batch:
            x = placed(x, PartitionSpec(None, rows or None, columns or None))
        return in_order(x, stack.begin)[:count]

    return [
        (
            returned(stack, u, stack.batch),
            {
                n: x if n in stack.staying else returned(stack, x, stack.slots[n])
                for n, x in new.items()
            },
        )
        for stack, (u, new) in zip(stacks, by_owners(arrays), strict=True)
    ]


def _blocks(stack: Divided) -> MatrixBlocks | None:
    """Where each device has a block of every matrix of a balanced stack; None if it does not."""
    moving = [x for n, x in stack.slots.items() if n not in stack.staying]
    elsewhere = any(x.shape != stack.batch.shape for x in moving)
    if stack.begin is None or is_open(stack.sharding) or elsewhere:
        return None
    batch, *sides = ([axes_along(stack.sharding, axis) for axis in these] for these in stack.axes)
    # Of several axes that are merged into rows or columns only the first may be divided.
    if any(batch) or any(any(side[1:]) for side in sides):
        return None
    mesh: Any = stack.sharding.mesh
    count, *shape = stack.batch.shape
    rows, columns = (side[0] if side else () for side in sides)
    over = [math.prod(mesh.shape[name] for name in names) for names in (rows, columns)]
    if any(n % d for n, d in zip(shape, over, strict=True)):
        return None
    each = -(-count // stack.over[1])
    return MatrixBlocks(count, each, stack.begin // each, (shape[0], shape[1]), rows, columns)


def _in_one_message(
    stacks: Sequence[Divided], blocks: Sequence[MatrixBlocks], mesh: Any
) -> list[tuple[Array, NamedSlots]]:
    """The results for stacks whose matrices are brought to owners together, and back together."""
    names, devices = stacks[0].over
    message = OneMessage(blocks, names, stacks[0].sharding.mesh.shape)
    moving = [[n for n in stack.slots if n not in stack.staying] for stack in stacks]

    def own(
        moving_arrays: list[list[Array]], staying: list[NamedSlots]
    ) -> tuple[list[list[Array]], list[NamedSlots]]:
        device = jax.lax.axis_index(names)
        arrived = iter(message.there([(k, x) for k, xs in enumerate(moving_arrays) for x in xs]))
        out, kept = [], []
        for stack, sent, staying_slots in zip(stacks, moving, staying, strict=True):
            shard = next(arrived), {**staying_slots, **{n: next(arrived) for n in sent}}
            u, new = _unless_padding(stack, shard, device, devices)
            out.append([u, *(new[n] for n in sent)])
            kept.append({n: new[n] for n in staying_slots})
        returned = iter(message.back([(k, x) for k, xs in enumerate(out) for x in xs]))
        return [[next(returned) for _ in xs] for xs in out], kept

    arrays = [
        [stack.batch, *(stack.slots[n] for n in sent)]
        for stack, sent in zip(stacks, moving, strict=True)
    ]
    kept = [{n: stack.slots[n] for n in stack.slots if n in stack.staying} for stack in stacks]
    lie = [PartitionSpec(None, of.rows or None, of.columns or None) for of in blocks]
    specs = (
        [[spec] * len(xs) for spec, xs in zip(lie, arrays, strict=True)],
        [dict.fromkeys(staying_slots, PartitionSpec(names)) for staying_slots in kept],
    )
    out, new = jax.shard_map(own, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False)(
        arrays, kept
    )
    return [
        (u, {**staying_slots, **dict(zip(sent, xs, strict=True))})
        for (u, *xs), staying_slots, sent in zip(out, new, moving, strict=True)
    ]


def note(stack: Divided, *, in_one_message: bool = False) -> None:
    """Add a stack to those of :func:`stacks`; of its arrays only shapes and types are read."""
    if (divided := _stacks.get()) is not None:
        divided.append(_stack(stack, in_one_message))


def _all_at_once(
    stacks: Sequence[Divided], shards: list[tuple[Array, NamedSlots]]
) -> list[tuple[Array, NamedSlots]]:
    """The shards of all stacks, behind a barrier until all that devices exchange has arrived."""
    moved = [
        (x, {n: slot for n, slot in slots.items() if n not in stack.staying})
        for stack, (x, slots) in zip(stacks, shards, strict=True)
    ]
    known = jax.lax.optimization_barrier(moved)
    return [(x, slots | there) for (_, slots), (x, there) in zip(shards, known, strict=True)]


def _unless_padding(
    stack: Divided, shard: tuple[Array, NamedSlots], device: Array, devices: int
) -> tuple[Array, NamedSlots]:
    """A device's shard of a balanced stack, transformed unless all of it is padding."""
    each = shard[0].shape[0]
    index = jnp.mod(device - (stack.begin or 0) // each, devices)

    has_matrices = index * each < stack.batch.shape[0]
    return loop_once_if(has_matrices, lambda now, _: stack.function(*now), shard)


def _stack(stack: Divided, in_one_message: bool) -> Stack:
    names, devices = stack.over
    count, *shape = stack.batch.shape
    each = -(-count // devices)
    shard = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((each, *x.shape[1:]), x.dtype), (stack.batch, stack.slots)
    )
    program: Any
    program, out = jax.make_jaxpr(stack.function, return_shape=True)(*shard)
    there, back = (
        [x, *(slot for n, slot in slots.items() if n not in stack.staying)]
        for x, slots in (shard, out)
    )
    return Stack(
        count,
        tuple(shape),
        devices,
        names,
        None if stack.begin is None else stack.begin // each,
        (len(there), len(back)),
        (_bytes(there), _bytes(back)),
        program,
        in_one_message,
    )


def _bytes(arrays: Sequence[Any]) -> int:
    return sum(x.size * x.dtype.itemsize for x in arrays)


def axes_along(sharding: NamedSharding, axis: int) -> tuple[str, ...]:
    """The axes of the mesh over which an axis of an array is divided."""
    return dividing_axes(sharding, axis + 1)[axis]
