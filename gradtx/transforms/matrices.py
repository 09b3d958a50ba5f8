"""Arrays as matrices: which axes are the rows, which the columns, which the batch."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from gradtx.engine.lift import gradient
from gradtx.paths import is_leaf, leaves_with_path, path_string
from gradtx.rows import is_rows
from gradtx.types import Array, PyTree


class _Matrices(NamedTuple):
    """An array of some shape seen as a batch of matrices of one shape.

    order: its axes, batch first, then rows, then columns; sizes: of the three; shape: its own.
    """

    order: tuple[int, ...]
    sizes: tuple[int, int, int]
    shape: tuple[int, ...]

    def stacked(self, count: int) -> "_Matrices":
        """The same for so many such arrays along a new first axis."""
        order = (0, *(axis + 1 for axis in self.order))
        batches, height, width = self.sizes
        return _Matrices(order, (count * batches, height, width), (count, *self.shape))

    def take(self, x: Array) -> Array:
        return x.transpose(self.order).reshape(self.sizes)

    def put(self, x: Array) -> Array:
        ordered = x.reshape([self.shape[axis] for axis in self.order])
        back = sorted(range(len(self.order)), key=lambda axis: self.order[axis])
        return ordered.transpose(back)


def _axes(axes: Any, ndim: int) -> tuple[int, ...]:
    given = (axes,) if isinstance(axes, int) else tuple(axes)
    if not all(-ndim <= axis < ndim for axis in given):
        raise ValueError(f"the axes {given} are not axes of an array with {ndim} dimensions")
    return tuple(axis % ndim for axis in given)


def _as_matrices(where: str, path: Any, x: Array, numbers: Any) -> _Matrices:
    """How `x` is a batch of matrices, by its dimension numbers.

    Raises:
        ValueError: the numbers name no axes of `x`, or one twice.
    """
    try:
        rows, columns = _axes(numbers.reduction_axis, x.ndim), _axes(numbers.output_axis, x.ndim)
        if len({*rows, *columns}) < len(rows) + len(columns):
            raise ValueError(f"an axis comes twice in {numbers}")
    except ValueError as error:
        raise ValueError(
            f"{where}: at {path_string(path)!r}, of shape {x.shape}: {error}; give dimension "
            "numbers, or None for a leaf that is no matrix"
        ) from None
    batch = tuple(axis for axis in range(x.ndim) if axis not in (*rows, *columns))
    batches, height, width = (
        math.prod(x.shape[axis] for axis in axes) for axes in (batch, rows, columns)
    )
    return _Matrices((*batch, *rows, *columns), (batches, height, width), x.shape)


def _dimension_numbers(where: str, numbers: Any, kind: type, tree: PyTree) -> list[Any]:
    """The dimension numbers of each leaf of `tree`, from a prefix tree of them or a function."""

    def stop(x: Any) -> bool:
        return x is None or isinstance(x, kind)

    if callable(numbers) and not isinstance(numbers, kind):
        numbers = numbers(tree)
    found: list[Any] = []

    def note(number: Any, below: PyTree) -> None:
        found.extend([number] * len(jax.tree.leaves(below, is_leaf=is_leaf)))

    try:
        jax.tree.map(note, numbers, tree, is_leaf=stop)
    except ValueError as error:
        raise ValueError(
            f"{where}: the dimension numbers are not a tree like the parameters or a prefix of it: "
            f"{error}"
        ) from None
    if not all(map(stop, found)):
        raise TypeError(f"{where}: the leaves of the dimension numbers must be {kind.__name__}")
    return found


def _checked(where: str, updates: PyTree) -> tuple[list[tuple[Any, Any]], Any]:
    """The leaves of some gradients with their paths, none of them rows of a table."""
    leaves, treedef = leaves_with_path(updates)
    for path, g in leaves:
        if is_rows(g):
            raise TypeError(
                f"{where}: the gradient at {path_string(path)!r} is Rows, and a matrix is "
                "transformed as a whole; use to_dense()"
            )
    return [(path, g if g is None else gradient(g, path)) for path, g in leaves], treedef


def _by_shape(matrices: list[Array], function: Callable[[Array], Array]) -> list[Array]:
    """`function` of batches of matrices, once for all batches of one shape and type."""
    groups: dict[Any, list[int]] = {}
    for i, x in enumerate(matrices):
        groups.setdefault((x.shape[1:], x.dtype), []).append(i)
    out: list[Any] = [None] * len(matrices)
    for members in groups.values():
        if len(members) == 1:
            out[members[0]] = function(matrices[members[0]])
            continue
        together = function(jax.numpy.concatenate([matrices[i] for i in members]))
        start = 0
        for i in members:
            stop = start + matrices[i].shape[0]
            out[i] = together[start:stop]
            start = stop
    return out
