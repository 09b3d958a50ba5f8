"""Whole leaves: the parameters on which masks, labels, roles and dimension numbers are evaluated.

A step may see a part of the parameters: one layer of a stack, or the leaves that have a gradient.
A mask that goes by shapes, or by which leaves there are, would choose other leaves of that part.
It is evaluated on the whole parameters instead, so that each part of a step chooses as the whole
step does.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import jax

from gradtx.leaves.rows import is_rows
from gradtx.types import Params, PyTree

_whole: ContextVar[PyTree | None] = ContextVar("whole leaves", default=None)


@contextlib.contextmanager
def whole_leaves(params: Params | None) -> Iterator[None]:
    """A context in which the whole parameters are known, besides the part that a step sees.

    Args:
        params: the parameters, or None if they are not known.
    """
    token = _whole.set(params)
    try:
        yield
    finally:
        _whole.reset(token)


@contextlib.contextmanager
def part_of_whole(part: Callable[[PyTree], PyTree]) -> Iterator[None]:
    """A context in which a part stands for the whole leaves, if these are known.

    Args:
        part: takes this part of a tree, as it takes the parameters that are handed on.
    """
    whole_tree = _whole.get()
    if whole_tree is not None:
        is_form = any(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(whole_tree))
        whole_tree = jax.eval_shape(part, whole_tree) if is_form else part(whole_tree)
    with whole_leaves(whole_tree):
        yield


def whole_of(tree: PyTree) -> PyTree:
    """The whole leaves in the types of `tree`; if they are not known, the tree itself.

    Args:
        tree: parameters, gradients or slots; None stands for a leaf that the step does not see.
            `Rows` of which the table is not known become the shape and type of the table.
    """
    whole_tree = _whole.get()
    structure: Any
    leaves, structure = jax.tree.flatten(tree, is_leaf=_is_leaf)
    each, other = jax.tree.flatten(whole_tree, is_leaf=_is_leaf)
    if whole_tree is None or structure != other:
        return structure.unflatten(map(_as_leaf, leaves)) if any(map(is_rows, leaves)) else tree
    return structure.unflatten(map(_typed, each, leaves))


def whole_form() -> Any:
    """The shapes and types of the whole leaves, which can be compared; None if not known."""
    whole_tree = _whole.get()
    if whole_tree is None:
        return None
    leaves, structure = jax.tree.flatten(whole_tree, is_leaf=_is_leaf)
    return structure, tuple(None if x is None else (x.shape, x.dtype) for x in leaves)


def of_form(form: Any) -> PyTree | None:
    """The whole leaves of a :func:`whole_form`, without numbers."""
    if form is None:
        return None
    structure, leaves = form
    return structure.unflatten([None if x is None else jax.ShapeDtypeStruct(*x) for x in leaves])


def _is_leaf(x: Any) -> bool:
    return x is None or is_rows(x)


def _as_leaf(x: Any) -> Any:
    """The shape and type of a table for `Rows`, which a user's function would take apart."""
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if is_rows(x) else x


def _typed(whole_leaf: Any, x: Any) -> Any:
    """A whole leaf in the type in which a step sees it, such as that of a master copy."""
    dtype, whole_dtype = getattr(x, "dtype", None), getattr(whole_leaf, "dtype", None)
    if dtype is None or whole_dtype is None or whole_dtype == dtype:
        return whole_leaf
    if isinstance(whole_leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(whole_leaf.shape, dtype)
    return whole_leaf.astype(dtype)
