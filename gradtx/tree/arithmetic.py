"""Arithmetic on trees, and trees made like others."""

import operator
from functools import reduce
from typing import Any

import jax.numpy as jnp

from gradtx.leaves.paths import leaves_with_path, path_string
from gradtx.leaves.rows import Rows, is_rows
from gradtx.tree.leaves import dense, each, map_leaves
from gradtx.types import DType, PyTree, TreeT


def add(tree_x: TreeT, tree_y: PyTree, *other_trees: PyTree) -> TreeT:
    """The sum of two or more trees.

    >>> add({"a": 1.0, "b": None}, {"a": 2.0, "b": 5.0})
    {'a': 3.0, 'b': None}
    """
    return map_leaves(lambda *leaves: reduce(operator.add, leaves), tree_x, tree_y, *other_trees)


def sub(tree_x: TreeT, tree_y: PyTree) -> TreeT:
    """The difference of two trees."""
    return map_leaves(operator.sub, tree_x, tree_y)


def mul(tree_x: TreeT, tree_y: PyTree) -> TreeT:
    """The entrywise product of two trees."""
    return each(operator.mul, tree_x, tree_y)


def div(tree_x: TreeT, tree_y: PyTree) -> TreeT:
    """The entrywise quotient of two trees."""
    return each(operator.truediv, tree_x, tree_y)


def scale(scalar: Any, tree: TreeT) -> TreeT:
    """A number times a tree.

    >>> scale(2.0, {"a": 1.0})
    {'a': 2.0}
    """
    return map_leaves(lambda x: scalar * x, tree)


def add_scale(tree_x: TreeT, scalar: Any, tree_y: PyTree) -> TreeT:
    r"""A tree plus a number times another: :math:`x + s y`."""
    return map_leaves(lambda x, y: x + scalar * y, tree_x, tree_y)


def conj(tree: TreeT) -> TreeT:
    """The complex conjugate of every entry."""
    return each(jnp.conj, tree)


def real(tree: TreeT) -> TreeT:
    """The real part of every entry."""
    return each(jnp.real, tree)


def clip(tree: TreeT, min_value: Any = None, max_value: Any = None) -> TreeT:
    """Every entry clipped to an interval; None for no bound."""
    return each(lambda x: jnp.clip(x, min_value, max_value), tree)


def where(condition: Any, tree_x: TreeT, tree_y: PyTree) -> TreeT:
    """The entries of one tree where a condition holds, and of another elsewhere.

    Args:
        condition: a boolean, or an array of them that fits every leaf.
        tree_x: the values where it is true.
        tree_y: the values where it is false.
    """

    def choose(x: Any, y: Any) -> Any:
        if isinstance(x, Rows) and isinstance(y, Rows) and jnp.ndim(condition) == 0:
            x = x.with_values(jnp.where(condition, x.values, 0))
            return x + y.with_values(jnp.where(condition, 0, y.values))
        return jnp.where(condition, *(a.to_dense() if is_rows(a) else a for a in (x, y)))

    return map_leaves(choose, tree_x, tree_y)


def zeros_like(tree: TreeT, dtype: DType | None = None) -> TreeT:
    """A tree of zeros, of another type if one is given."""
    return each(lambda x: jnp.zeros_like(x, dtype=dtype), tree)


def ones_like(tree: TreeT, dtype: DType | None = None) -> TreeT:
    """A tree of ones, of another type if one is given."""
    return each(lambda x: jnp.ones_like(x, dtype=dtype), tree)


def full_like(tree: TreeT, fill_value: Any, dtype: DType | None = None) -> TreeT:
    """A tree filled with one value, of another type if one is given."""
    return each(lambda x: jnp.full_like(x, fill_value, dtype=dtype), tree)


def batch_shape(tree: TreeT, shape: tuple[int, ...] = ()) -> TreeT:
    """Every leaf repeated along new leading dimensions of the given lengths.

    >>> batch_shape({"a": jnp.zeros(3)}, (2,))["a"].shape
    (2, 3)
    """
    return map_leaves(lambda x: jnp.broadcast_to(dense(x), (*shape, *jnp.shape(dense(x)))), tree)


def cast(tree: TreeT, dtype: DType | None) -> TreeT:
    """Every leaf converted to one type; for None the tree itself."""
    return tree if dtype is None else each(lambda x: jnp.asarray(x).astype(dtype), tree)


def cast_like(tree: TreeT, other_tree: PyTree) -> TreeT:
    """Every leaf converted to the type of the same leaf of another tree, where that has a type."""

    def on_leaf(x: Any, other: Any) -> Any:
        if not hasattr(other, "dtype"):
            return x
        to = other.dtype
        return x.with_values(x.values.astype(to)) if is_rows(x) else jnp.asarray(x).astype(to)

    return map_leaves(on_leaf, tree, other_tree)


def dtype(tree: PyTree, mixed_dtype_handler: str | None = None) -> DType:
    """The type of the leaves; JAX's default type if there are none.

    Args:
        tree: a tree of numbers or arrays.
        mixed_dtype_handler: what to do if types differ: None to refuse, ``"promote"`` for the type
            to which all promote, ``"highest"`` or ``"lowest"`` for one of theirs, where a type is
            higher than those that promote to it.

    Raises:
        ValueError: types differ and `mixed_dtype_handler` is None, or two types have no order.

    >>> str(dtype({"a": jnp.zeros(1, jnp.bfloat16), "b": jnp.zeros(1)}, "lowest"))
    'bfloat16'
    """
    if mixed_dtype_handler not in (None, "promote", "highest", "lowest"):
        raise ValueError(
            f"dtype: mixed_dtype_handler must be None, 'promote', 'highest' or 'lowest', not "
            f"{mixed_dtype_handler!r}"
        )
    keyed = [(path, leaf) for path, leaf in leaves_with_path(tree)[0] if leaf is not None]
    dtypes = [jnp.asarray(x.values if is_rows(x) else x).dtype for _, x in keyed]
    if not dtypes:
        return jnp.asarray([]).dtype
    if mixed_dtype_handler is None:
        for (path, _), kind in zip(keyed, dtypes, strict=True):
            if kind != dtypes[0]:
                raise ValueError(
                    f"dtype: {path_string(path)!r} is {kind} and {path_string(keyed[0][0])!r} is "
                    f"{dtypes[0]}; say how to settle it with mixed_dtype_handler"
                )
        return dtypes[0]
    if mixed_dtype_handler == "promote":
        return reduce(jnp.promote_types, dtypes)

    def pick(a: Any, b: Any) -> Any:
        above = jnp.promote_types(a, b)
        if above not in (a, b):
            raise ValueError(f"dtype: neither of {a} and {b} promotes to the other")
        low = b if above == a else a
        return above if mixed_dtype_handler == "highest" else low

    return reduce(pick, dtypes)
