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
        program: that of a device.
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
    """The stacks that are divided in a trace within the context."""
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
    sharding: NamedSharding, axes: Axes, stack_axes: tuple[str, ...] | None = None
) -> tuple[tuple[str, ...], int]:
    """The axes of the mesh over which a stack of matrices is divided, and how many devices.

    These are the axes over which a state has the stack divided. Without such a state they are those
    over which the leaves are divided, so that no matrix leaves its node where each node has all of
    them, or all axes where only the compiler knows how leaves are divided.

    Args:
        sharding: of the leaves.
        axes: which axes of a leaf are batch, rows and columns.
        stack_axes: those over which slots of these matrices are a stack in the state.
    """
    mesh: Any = sharding.mesh
    if stack_axes is not None:
        over = set(stack_axes)
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
    """The results of ``function(batch, slots)`` for each stack, each device computing its shard.

    Args:
        stacks: one, or all that are balanced over the same axes.

    Returns:
        Directions and slots. Those that do not stay are sharded like the arguments, as far as that
        can be said of stacked matrices.
    """
    sharding = stacks[0].sharding
    blocks = [block for stack in stacks if (block := _blocks(stack)) is not None]
    in_one = len(blocks) == len(stacks)
    for stack in stacks:
        note(stack, in_one_message=in_one)
    # On explicit axes this runs under `automatic`, which has set the mesh with automatic ones.
    axis_types: Any = sharding.mesh.axis_types
    is_set = is_open(sharding) or any(kind == AxisType.Explicit for kind in axis_types)
    mesh = None if is_set else sharding.mesh
    return _in_one_message(stacks, blocks, mesh) if in_one else _ByStack(stacks, mesh).results()


class _ByStack(NamedTuple):
    """Stacks that are brought to the owners of their matrices, and back, each by itself.

    mesh: None if it is set in the context.
    """

    stacks: Sequence[Divided]
    mesh: Any

    def results(self) -> list[tuple[Array, NamedSlots]]:
        """Directions and slots of each stack."""
        names, _ = self.stacks[0].over
        divided = PartitionSpec(names)
        # Loops inside start from constants, alike everywhere: there is nothing to check.
        by_owners = jax.shard_map(
            self.on_device,
            mesh=self.mesh,
            in_specs=divided,
            out_specs=divided,
            check_vma=False,
        )
        arrays = [
            (
                self.to_owners(stack, None, stack.batch),
                {n: self.to_owners(stack, n, x) for n, x in stack.slots.items()},
            )
            for stack in self.stacks
        ]
        return [
            (
                self.from_owners(stack, u, stack.batch),
                {
                    n: x if n in stack.staying else self.from_owners(stack, x, stack.slots[n])
                    for n, x in new.items()
                },
            )
            for stack, (u, new) in zip(self.stacks, by_owners(arrays), strict=True)
        ]

    def to_owners(self, stack: Divided, name: str | None, x: Array) -> Array:
        """Matrices, or a slot of this name, padded and divided over the owners."""
        names, devices = stack.over
        if name not in stack.staying:
            x = x if _has_form_of_batch(stack, x) else self.as_stack(x)
            x = padded(x, devices, stack.begin)
        return self.placed(x, PartitionSpec(names))

    def on_device(self, shards: list[tuple[Array, NamedSlots]]) -> list[tuple[Array, NamedSlots]]:
        """A device's shards of all stacks, transformed."""
        stacks, (names, devices) = self.stacks, self.stacks[0].over
        if stacks[0].begin is None:
            return [stack.function(*shard) for stack, shard in zip(stacks, shards, strict=True)]
        device = jax.lax.axis_index(names)
        pairs = zip(stacks, _all_at_once(stacks, shards), strict=True)
        done = [_unless_padding(*pair, device, devices) for pair in pairs]
        return _all_at_once(stacks, done)

    def from_owners(self, stack: Divided, x: Array, like: Array) -> Array:
        """Matrices, or a slot, sharded like an array of the arguments."""
        count = stack.batch.shape[0]
        if not _has_form_of_batch(stack, x):
            return shard_alike(in_order(self.as_stack(x), stack.begin)[:count], like)
        along_batch, rows, columns = (
            tuple(name for axis in these for name in axes_along(stack.sharding, axis))
            for these in stack.axes
        )
        # Brought back while it is one stack: one message, not one for each leaf.
        if not along_batch:
            x = self.placed(x, PartitionSpec(None, rows or None, columns or None))
        return in_order(x, stack.begin)[:count]

    def as_stack(self, x: Array) -> Array:
        """An array that each device has whole along its first dimension.

        Otherwise the compiler moves leaves one by one.
        """
        return self.placed(x, PartitionSpec(None, *open_spec(x.ndim - 1)))

    def placed(self, x: Array, spec: PartitionSpec) -> Array:
        sharding = spec if self.mesh is None else NamedSharding(self.mesh, spec)
        return jax.lax.with_sharding_constraint(x, sharding)


def _has_form_of_batch(stack: Divided, x: Array) -> bool:
    """Whether an array has the shape of the matrices, and it is known how these are divided."""
    return not is_open(stack.sharding) and x.shape[1:] == stack.batch.shape[1:]


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

    def on_device(
        moving_arrays: list[list[Array]], staying: list[NamedSlots]
    ) -> tuple[list[list[Array]], list[NamedSlots]]:
        device = jax.lax.axis_index(names)
        arrived = iter(message.there([(k, x) for k, xs in enumerate(moving_arrays) for x in xs]))
        new_arrays, new_staying = [], []
        for stack, sent, staying_slots in zip(stacks, moving, staying, strict=True):
            shard = next(arrived), {**staying_slots, **{n: next(arrived) for n in sent}}
            u, new = _unless_padding(stack, shard, device, devices)
            new_arrays.append([u, *(new[n] for n in sent)])
            new_staying.append({n: new[n] for n in staying_slots})
        returned = iter(message.back([(k, x) for k, xs in enumerate(new_arrays) for x in xs]))
        return [[next(returned) for _ in xs] for xs in new_arrays], new_staying

    arrays = [
        [stack.batch, *(stack.slots[n] for n in sent)]
        for stack, sent in zip(stacks, moving, strict=True)
    ]
    staying = [{n: stack.slots[n] for n in stack.slots if n in stack.staying} for stack in stacks]
    block_specs = [PartitionSpec(None, b.rows or None, b.columns or None) for b in blocks]
    specs = (
        [[spec] * len(xs) for spec, xs in zip(block_specs, arrays, strict=True)],
        [dict.fromkeys(staying_slots, PartitionSpec(names)) for staying_slots in staying],
    )
    by_owners = jax.shard_map(
        on_device, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False
    )
    out, new = by_owners(arrays, staying)
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
    arrived = jax.lax.optimization_barrier(moved)
    return [(x, slots | new) for (_, slots), (x, new) in zip(shards, arrived, strict=True)]


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
    sent, returned = (
        [x, *(slot for n, slot in slots.items() if n not in stack.staying)]
        for x, slots in (shard, out)
    )
    return Stack(
        count,
        tuple(shape),
        devices,
        names,
        None if stack.begin is None else stack.begin // each,
        (len(sent), len(returned)),
        (_bytes(sent), _bytes(returned)),
        program,
        in_one_message,
    )


def _bytes(arrays: Sequence[Any]) -> int:
    return sum(x.size * x.dtype.itemsize for x in arrays)


def axes_along(sharding: NamedSharding, axis: int) -> tuple[str, ...]:
    """The axes of the mesh over which an axis of an array is divided."""
    return dividing_axes(sharding, axis + 1)[axis]
