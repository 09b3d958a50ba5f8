"""Matrices divided over a mesh: each device transforms some of them, whole.

A product of matrices whose rows lie on several devices needs a sum over the devices, and an
iteration needs one each time. Equal matrices are a batch, and the batch can be divided instead: the
matrices are brought together once, transformed without a message, and brought back once.
Constraints around an iteration are not enough, since XLA then gathers inside of it; `shard_map`
leaves it no choice.
"""

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from gradtx.engine.owned_slots import padded
from gradtx.types import Array


@dataclass(frozen=True)
class Stack:
    """Equal matrices that are divided over devices.

    Attributes:
        count: how many there are.
        shape: of one of them.
        devices: over how many they are divided; each gets equally many, the last with padding.
        axes: of the mesh.
        arrays: how many arrays are brought to their owners, and brought back.
        bytes: of those arrays, on one device.
        program: what a device computes.
    """

    count: int
    shape: tuple[int, ...]
    devices: int
    axes: tuple[str, ...]
    arrays: tuple[int, int]
    bytes: tuple[int, int]
    program: Any

    @property
    def each(self) -> int:
        """The matrices of one device, padding included."""
        return -(-self.count // self.devices)


Axes = tuple[tuple[int, ...], ...]
"""Which axes of a leaf are batch, rows and columns."""


_places: ContextVar[Mapping[str, NamedSharding] | None] = ContextVar("places", default=None)
_stacks: ContextVar[list[Stack] | None] = ContextVar("stacks", default=None)


@contextlib.contextmanager
def stacks() -> Iterator[list[Stack]]:
    """The stacks that are divided by what is traced within."""
    found: list[Stack] = []
    token = _stacks.set(found)
    try:
        yield found
    finally:
        _stacks.reset(token)


@contextlib.contextmanager
def owned_by(places: Mapping[str, NamedSharding]) -> Iterator[None]:
    """Inside, matrices whose rows or columns are divided are transformed by one device each.

    Args:
        places: where each leaf lies, by path.
    """
    token = _places.set(places)
    try:
        yield
    finally:
        _places.reset(token)


def known_places() -> bool:
    """Whether it is known where leaves lie."""
    return _places.get() is not None


def place_of(path: str) -> NamedSharding | None:
    """Where a leaf lies, if that is known."""
    return (_places.get() or {}).get(path)


def divided_place(path: str, axes: Axes) -> NamedSharding | None:
    """Where a leaf lies, if its matrices are divided.

    Where only a batch axis is divided, such as experts, every device has whole matrices already.
    """
    place = place_of(path)
    _, rows, columns = axes
    if place is None or not any(_axes_along(place, axis) for axis in (*rows, *columns)):
        return None
    return place


def owners(place: NamedSharding, axes: Axes) -> tuple[tuple[str, ...], int]:
    """The axes of the mesh over which a stack of matrices is divided, and how many devices."""
    mesh: Any = place.mesh
    over = {name for these in axes for axis in these for name in _axes_along(place, axis)}
    names = tuple(name for name in mesh.axis_names if name in over)
    return names, math.prod(mesh.shape[name] for name in names)


Slots = dict[str, Array]


def owned(
    function: Callable[[Array, Slots], tuple[Array, Slots]],
    batch: Array,
    slots: Slots,
    place: NamedSharding,
    axes: Axes,
    *,
    staying: Collection[str],
) -> tuple[Array, Slots]:
    """``function(batch, slots)``, each device computing its part of the first dimension.

    Args:
        function: maps arrays ``(n, ...)`` to directions and new slots of the same length, each
            entry of which depends on the same entry alone.
        batch: the matrices. These and slots are padded with zeros to a multiple of the devices.
        slots: by name.
        place: where the leaves lie from which the matrices come, all alike.
        axes: which axes of a leaf are batch, rows and columns.
        staying: the slots that lie with the matrices' owners already, padded, and stay there.

    Returns:
        What the function returns. What has the shape of the batch, and does not stay, lies as the
        leaves do, as far as that can be said of stacked matrices.
    """
    mesh: Any = place.mesh
    names, devices = owners(place, axes)
    divided = PartitionSpec(names)
    along_batch, rows, columns = (
        tuple(name for axis in these for name in _axes_along(place, axis)) for these in axes
    )

    if (found := _stacks.get()) is not None:
        found.append(_stack(function, batch, slots, names, devices, staying))

    # On explicit axes this runs under `automatic`, which has set the mesh with automatic ones.
    is_set = any(kind == AxisType.Explicit for kind in mesh.axis_types)

    def placed(x: Array, spec: PartitionSpec) -> Array:
        return jax.lax.with_sharding_constraint(x, spec if is_set else NamedSharding(mesh, spec))

    # Loops inside start from constants, alike everywhere: there is nothing to check.
    by_owners = jax.shard_map(
        function,
        mesh=None if is_set else mesh,
        in_specs=divided,
        out_specs=divided,
        check_vma=False,
    )
    given = jax.tree.map(lambda x: placed(padded(x, devices), divided), (batch, slots))
    directions, new = by_owners(*given)
    back = PartitionSpec(None, rows or None, columns or None)

    def returned(x: Array) -> Array:
        # Brought back while it is one stack: one message, not one for each leaf.
        like = not along_batch and x.shape == directions.shape
        return (placed(x, back) if like else x)[: batch.shape[0]]

    kept = {n: x if n in staying else returned(x) for n, x in new.items()}
    return returned(directions), kept


def _stack(
    function: Callable[[Array, Slots], tuple[Array, Slots]],
    batch: Array,
    slots: Slots,
    names: tuple[str, ...],
    devices: int,
    staying: Collection[str],
) -> Stack:
    each = -(-batch.shape[0] // devices)
    own = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((each, *x.shape[1:]), x.dtype), (batch, slots)
    )
    program: Any
    program, out = jax.make_jaxpr(function, return_shape=True)(*own)
    sides = [[x, *(slot for n, slot in held.items() if n not in staying)] for x, held in (own, out)]
    moved = [sum(x.size * x.dtype.itemsize for x in side) for side in sides]
    return Stack(
        batch.shape[0],
        batch.shape[1:],
        devices,
        names,
        (len(sides[0]), len(sides[1])),
        (moved[0], moved[1]),
        program,
    )


def _axes_along(place: NamedSharding, axis: int) -> tuple[str, ...]:
    """The axes of the mesh over which an axis of an array is divided."""
    spec = place.spec[axis] if axis < len(place.spec) else None
    return () if spec is None else (spec,) if isinstance(spec, str) else tuple(spec)
