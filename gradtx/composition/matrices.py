"""Leaves that are matrices, and those that are not: which axes are what, and a group for each."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.composition.groups import partition
from gradtx.composition.without_state import without_state
from gradtx.core.pair import GradientTransformation
from gradtx.engine.lift import needed, refused_rows
from gradtx.leaves.matrix_layout import MatrixDimensions, as_matrices
from gradtx.leaves.paths import aligned, is_leaf, leaves_with_path
from gradtx.leaves.rows import is_rows
from gradtx.numerics import cast, widen
from gradtx.types import Array, Params, PyTree, Updates


class MuonDimensionNumbers(NamedTuple):
    """Which axes of an array are the rows and the columns of a matrix `W` in :math:`x W`.

    reduction_axis: the rows, one axis or several; output_axis: the columns. All other axes are
    batch axes, each of whose entries is a matrix of its own, such as an expert or a scanned layer.
    heads: an axis of rows or columns and the number of matrices of equal size that lie side by side
    along it, if it is more than one: ``(1, 3)`` for queries, keys and values in one array of shape
    ``(width, 3 * width)``, ``(1, 3 * 12)`` for each of their twelve heads.

    >>> import gradtx, jax.numpy as jnp
    >>> numbers = MuonDimensionNumbers(0, 1, heads=(1, 3))
    >>> tx = gradtx.scale_by_muon(weight_dimension_numbers=numbers)
    >>> qkv = jnp.concatenate([jnp.eye(2), 5 * jnp.eye(2), 9 * jnp.eye(2)], axis=1)
    >>> u = tx.update(qkv, tx.init(qkv))[0]
    >>> bool(jnp.allclose(u[:, :2], u[:, 4:]))
    True
    """

    reduction_axis: Sequence[int] | int = 0
    output_axis: Sequence[int] | int = 1
    heads: tuple[int, int] | None = None


def dimension_numbers(weight_dimension_numbers: Any) -> Callable[[PyTree], PyTree]:
    """A function from a tree to its dimension numbers; by default for leaves of two dimensions."""

    def of_leaf(p: Any) -> MuonDimensionNumbers | None:
        return MuonDimensionNumbers() if p is not None and p.ndim == 2 else None

    def numbers(tree: PyTree) -> PyTree:
        if weight_dimension_numbers is not None:
            return weight_dimension_numbers
        return jax.tree.map(of_leaf, tree, is_leaf=is_leaf)

    return weight_dimension_numbers if callable(weight_dimension_numbers) else numbers


def each_matrix(
    name: str,
    function: Callable[..., Array],
    weight_dimension_numbers: Any,
    updates: Updates,
    params: Params,
    *others: PyTree,
) -> Updates:
    """New updates of the leaves that are matrices; the other leaves stay as they are.

    Args:
        name: the transformation's, for errors.
        function: ``(updates, matrices, *others) -> updates``, batches ``(n, rows, columns)``.
        weight_dimension_numbers: which leaves are matrices, as in :func:`matrices_and_others`.
        updates: the updates.
        params: the matrices.
        others: trees like them, of the function's further arguments.

    Raises:
        TypeError: the update of a matrix is `Rows`.
    """
    leaves, treedef = leaves_with_path(updates)
    problem = f"{name}: updates and parameters are different trees"
    columns = [aligned(problem, updates, treedef, tree) for tree in (params, *others)]
    numbers = MatrixDimensions(
        dimension_numbers(weight_dimension_numbers), MuonDimensionNumbers
    ).of(name, params)
    out = []
    for (path, u), number, p, *rest in zip(leaves, numbers, *columns, strict=True):
        if u is None or number is None or not p.size:
            out.append(u)
            continue
        if is_rows(u):
            raise refused_rows(name, path)
        how = as_matrices(name, path, p.shape, number)
        new = function(how.take(widen(u)), how.take(widen(jnp.asarray(p))), *rest)
        out.append(cast(how.put(new), u.dtype))
    return treedef.unflatten(out)


def on_each_matrix(
    name: str, weight_dimension_numbers: Any, function: Callable[[Array, Array], Array]
) -> GradientTransformation:
    """A transformation without state: new updates of matrices by ``function(updates, matrices)``.

    Args:
        name: the transformation's, for errors.
        weight_dimension_numbers: which leaves are matrices, as in :func:`matrices_and_others`.
        function: of batches ``(n, rows, columns)``.
    """

    def moved(updates: Updates, params: Params | None, **extra_args: Any) -> Updates:
        return each_matrix(
            name, function, weight_dimension_numbers, updates, needed(name, updates, params)
        )

    return without_state(moved)


def matrices_and_others(
    name: str,
    matrices: Callable[[Callable[[PyTree], PyTree]], GradientTransformation],
    others: GradientTransformation,
    weight_dimension_numbers: Any,
    labels: tuple[str, str] = ("matrices", "others"),
) -> GradientTransformation:
    """One transformation for the leaves that are matrices, another for all others.

    Args:
        name: the optimizer's, for errors.
        matrices: makes the first from a function that maps a tree to its dimension numbers.
        others: the second.
        weight_dimension_numbers: `MuonDimensionNumbers`, a tree of them or a prefix of it, or a
            function from the parameters to such a tree; a leaf whose numbers are None goes to
            `others`. None for the leaves with two dimensions.
        labels: of the two groups.
    """
    numbers = dimension_numbers(weight_dimension_numbers)

    def groups(params: Params) -> PyTree:
        leaf_numbers = MatrixDimensions(numbers, MuonDimensionNumbers).of(name, params)
        names = [labels[number is None] for number in leaf_numbers]
        return leaves_with_path(params)[1].unflatten(names)

    both = dict(zip(labels, (matrices(numbers), others), strict=True))
    return partition(dict(sorted(both.items())), groups)
