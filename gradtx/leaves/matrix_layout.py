"""Which axes of an array are batch, rows and columns, as dimension numbers say it.

:class:`Matrices` is one such layout, by which an array becomes a batch of matrices and back.
"""

import math
from collections.abc import Container
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gradtx.leaves.paths import leaves_with_path, path_string, spread_leaves
from gradtx.leaves.whole import whole_of
from gradtx.types import Array, PyTree


class Matrices(NamedTuple):
    """An array of some shape seen as a batch of matrices of one shape.

    order: the axes, batch first, then rows, then columns; sizes: the sizes of these three; shape:
    the array's own; split: the same with heads as an axis of their own, to which `order` refers;
    axes: the array's own axes that are batch, rows and columns; one with heads is in two.
    """

    order: tuple[int, ...]
    sizes: tuple[int, int, int]
    shape: tuple[int, ...]
    split: tuple[int, ...]
    axes: tuple[tuple[int, ...], ...]

    @property
    def rows(self) -> int:
        """The number of rows of each matrix."""
        return self.sizes[1]

    @property
    def columns(self) -> int:
        """The number of columns of each matrix."""
        return self.sizes[2]

    def stacked(self, count: int) -> "Matrices":
        """The layout of matrices in `count` such arrays, stacked along a new first axis."""
        order = (0, *(axis + 1 for axis in self.order))
        batches, height, width = self.sizes
        sizes = count * batches, height, width
        batch, rows, columns = (tuple(axis + 1 for axis in axes) for axes in self.axes)
        axes = (0, *batch), rows, columns
        return Matrices(order, sizes, (count, *self.shape), (count, *self.split), axes)

    def of_shape(self, shape: tuple[int, ...]) -> "Matrices":
        """The layout of matrices in an array with axes of other lengths, if there are no heads."""
        if shape == self.shape:
            return self
        batches, height, width = (math.prod(shape[axis] for axis in axes) for axes in self.axes)
        return Matrices(self.order, (batches, height, width), shape, shape, self.axes)

    def take(self, x: Array) -> Array:
        """The array as a batch ``(n, rows, columns)``."""
        return x.reshape(self.split).transpose(self.order).reshape(self.sizes)

    def put(self, x: Array) -> Array:
        """A batch as an array of the original shape."""
        ordered = x.reshape([self.split[axis] for axis in self.order])
        return ordered.transpose(np.argsort(self.order)).reshape(self.shape)


@dataclass(frozen=True)
class MatrixDimensions:
    """Which axes of each leaf are the rows and the columns of matrices.

    Attributes:
        given: dimension numbers with ``reduction_axis`` (rows), ``output_axis`` (columns) and
            perhaps ``heads``, an axis and how many matrices lie side by side along it; a tree of
            them or a prefix of it, or a function from the updates to such a tree. None for a leaf
            means that it is not a matrix.
        kind: a class of such numbers; its defaults are those of leaves with two dimensions if
            nothing is given, and then there may be no others. Numbers of another class that name
            the same axes will do too.
    """

    given: Any
    kind: type

    def of(self, label: str, tree: PyTree, matrices: Container[int] | None = None) -> list[Any]:
        """The dimension numbers of each leaf of `tree`.

        Args:
            label: the transformation's, for errors.
            tree: the leaves.
            matrices: the indices of leaves that are matrices if nothing is given; None for all.

        Raises:
            ValueError: they are not a tree like it or a prefix of it, or a rule matches no leaf; or
                nothing is given, and a matrix has not two dimensions.
            TypeError: a leaf of them names no axes.
        """
        tree = whole_of(tree)
        numbers = self._of_two(label, tree, matrices) if self.given is None else self.given
        if callable(numbers) and not names_axes(numbers):
            if hasattr(numbers, "check"):  # it is made of rules, each of which must match a leaf
                numbers.check(tree)
            numbers = numbers(tree)

        def stop(x: Any) -> bool:
            return x is None or names_axes(x)

        leaf_numbers = spread_leaves(f"{label}: the dimension numbers are", numbers, tree, stop)
        if not all(map(stop, leaf_numbers)):
            raise TypeError(
                f"{label}: the leaves of the dimension numbers must be {self.kind.__name__}"
            )
        return leaf_numbers

    def _of_two(self, label: str, tree: PyTree, matrices: Container[int] | None) -> Any:
        for i, (path, leaf) in enumerate(leaves_with_path(tree)[0]):
            is_matrix = leaf is not None and (matrices is None or i in matrices)
            if is_matrix and np.ndim(leaf) != 2:
                raise ValueError(
                    f"{label}: at {path_string(path)!r}, of shape {np.shape(leaf)}: which axes are "
                    "rows and which columns is not known; give dimension numbers, or None for a "
                    "leaf that is not a matrix"
                )
        return self.kind()


def names_axes(x: Any) -> bool:
    """Whether this is dimension numbers: it names the axes of rows and those of columns."""
    return hasattr(x, "reduction_axis") and hasattr(x, "output_axis")


def as_matrices(label: str, path: Any, shape: tuple[int, ...], numbers: Any) -> Matrices:
    """The layout by which an array of some shape is a batch of matrices, by dimension numbers.

    Raises:
        ValueError: the numbers name axes that it does not have, or one axis twice.
    """
    try:
        rows = axes_of(numbers.reduction_axis, len(shape))
        columns = axes_of(numbers.output_axis, len(shape))
        if len({*rows, *columns}) < len(rows) + len(columns):
            raise ValueError(f"an axis occurs twice in {numbers}")
        split, places = _apart(tuple(shape), getattr(numbers, "heads", None), (*rows, *columns))
    except ValueError as error:
        raise ValueError(
            f"{label}: at {path_string(path)!r}, of shape {tuple(shape)}: {error}; give dimension "
            "numbers, or None for a leaf that is not a matrix"
        ) from None
    rows, columns = (tuple(places[axis] for axis in axes) for axes in (rows, columns))
    batch = tuple(axis for axis in range(len(split)) if axis not in (*rows, *columns))
    batches, height, width = (
        math.prod(split[axis] for axis in axes) for axes in (batch, rows, columns)
    )
    # An array's own axis has its number of matrices, if there are heads, just before it.
    original_axes = [sum(place < axis for place in places) for axis in range(len(split))]
    axes = tuple(tuple(original_axes[axis] for axis in axes) for axes in (batch, rows, columns))
    order, sizes = (*batch, *rows, *columns), (batches, height, width)
    return Matrices(order, sizes, tuple(shape), split, axes)


def _apart(
    shape: tuple[int, ...], heads: tuple[int, int] | None, of_matrices: tuple[int, ...]
) -> tuple[tuple[int, ...], list[int]]:
    """The shape with the axis of heads cut in two, and the index of each old axis in it."""
    if heads is None:
        return shape, list(range(len(shape)))
    (axis,), count = axes_of(heads[0], len(shape)), heads[1]
    if axis not in of_matrices or count < 1 or shape[axis] % count:
        raise ValueError(f"axis {axis} is not rows or columns of {count} heads of equal size")
    split = (*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :])
    return split, [i + (i >= axis) for i in range(len(shape))]


def axes_of(axes: Any, ndim: int) -> tuple[int, ...]:
    """One axis or several as a tuple of indices, of which none is negative."""
    indices = (axes,) if isinstance(axes, int | np.integer) else tuple(axes)
    if not all(-ndim <= axis < ndim for axis in indices):
        raise ValueError(f"the axes {indices} are not axes of an array with {ndim} dimensions")
    return tuple(axis % ndim for axis in indices)
