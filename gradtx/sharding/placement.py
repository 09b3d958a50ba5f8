"""Placement: the mesh axes over which an array's dimensions are sharded."""

import math
from dataclasses import dataclass, replace
from typing import Any

from jax.sharding import Mesh, NamedSharding, PartitionSpec

Dims = tuple[tuple[str, ...], ...]
"""The mesh axes that divide each dimension of an array."""


SMALL = "small, left alone"
"""The reason for an array that has fewer than `min_size` entries."""


def dims_of(spec: PartitionSpec, ndim: int) -> Dims:
    """A specification as one tuple of axes for each dimension."""
    divided = [() if a is None else a if isinstance(a, tuple) else (a,) for a in spec]
    return (*map(tuple, divided), *[()] * (ndim - len(divided)))


def sharding_of(mesh: Mesh, dims: Dims) -> NamedSharding:
    """The sharding of an array, given the mesh axes that divide each of its dimensions."""
    entries = [None if not a else a[0] if len(a) == 1 else a for a in dims]
    while entries and entries[-1] is None:
        entries.pop()
    return NamedSharding(mesh, PartitionSpec(*entries))


def parts(mesh: Mesh, axes: tuple[str, ...]) -> int:
    """The number of shards into which mesh axes divide a dimension."""
    return math.prod(mesh.shape[axis] for axis in axes)


def divides(mesh: Mesh, shape: tuple[int, ...], dims: Dims) -> bool:
    """Whether all shards of an array are equal."""
    return all(n % parts(mesh, axes) == 0 for n, axes in zip(shape, dims, strict=True))


@dataclass(frozen=True)
class Placement:
    """The sharding of one array, its padded shape, and the reason for them."""

    dims: Dims
    shape: tuple[int, ...]
    note: str


def spread(
    where: Placement, mesh: Mesh, axes: tuple[str, ...], min_size: int, pad: bool
) -> Placement:
    """Divide an array further over more axes, each along the largest dimension that allows it.

    Args:
        where: the array's placement so far.
        mesh: the mesh.
        axes: the axes to use, one after the other.
        min_size: arrays with fewer entries stay unchanged.
        pad: whether the array may be padded if nothing divides it.
    """
    notes = []
    if math.prod(where.shape) < min_size:
        return replace(where, note=SMALL)
    for axis in axes:
        where = _spread_over_one(where.shape, where.dims, mesh, axis, pad)
        notes.append(where.note)
    return replace(where, note="; ".join(notes))


def _spread_over_one(
    shape: tuple[int, ...], dims: Dims, mesh: Mesh, axis: str, pad: bool
) -> Placement:
    by = mesh.shape[axis]
    if by == 1 or any(axis in axes for axes in dims):
        return Placement(dims, shape, f"over {axis!r} already")

    def order(i: int) -> Any:
        # A dimension of its own first: two axes on one dimension make small pieces.
        return bool(dims[i]), -shape[i] // parts(mesh, dims[i])

    def over(i: int) -> Dims:
        return (*dims[:i], (*dims[i], axis), *dims[i + 1 :])

    candidates = sorted(range(len(shape)), key=order)
    for i in candidates:
        if shape[i] % (parts(mesh, dims[i]) * by) == 0:
            return Placement(over(i), shape, f"dimension {i} over {axis!r}")
    if not pad or not candidates:
        return Placement(dims, shape, f"not divided by the {by} of {axis!r}")

    def padded(i: int) -> tuple[int, ...]:
        unit = parts(mesh, dims[i]) * by
        return (*shape[:i], -(-shape[i] // unit) * unit, *shape[i + 1 :])

    best = min(candidates, key=lambda i: math.prod(padded(i)))
    return Placement(over(best), padded(best), f"padded, dimension {best} over {axis!r}")


def inherited(
    shape: tuple[int, ...],
    probe: tuple[int, ...],
    of: tuple[int, ...],
    of_probe: tuple[int, ...],
    dims: Dims,
    mesh: Mesh,
) -> Placement | None:
    """The sharding of a slot, taken over from its parameter dimension by dimension.

    A dimension of the slot is sharded like the parameter's dimension that it comes from. Which one
    that is follows from the shapes for a probe, a parameter whose dimensions all differ in size.

    Args:
        shape: the slot's shape.
        probe: the slot's shape for the probe.
        of: the parameter's shape.
        of_probe: the probe's shape.
        dims: the axes of the parameter's dimensions.
        mesh: the mesh.

    Returns:
        The placement, or None if no dimension comes from the parameter.
    """
    if shape == of:
        return Placement(dims, shape, "as the parameter")
    if len(shape) == len(of) and all(a in (1, b) for a, b in zip(shape, of, strict=True)):
        # Reduced over some dimensions, which are kept with length 1.
        dimensions = zip(shape, of, dims, strict=True)
        return Placement(
            tuple(() if a != b else axes for a, b, axes in dimensions), shape, "reduced"
        )
    placed: list[tuple[str, ...]] = []
    free = dict(enumerate(of_probe))
    for n, size in zip(shape, probe, strict=True):
        i = next((i for i, m in free.items() if m == size and of[i] == n), None)
        placed.append(() if i is None else dims[i])
        if i is not None:
            del free[i]
    if len(free) == len(of):
        return None
    return Placement(tuple(placed), shape, "by dimensions of the parameter")
