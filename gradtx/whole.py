"""Whole leaves: the parameters of which masks, labels, roles and dimension numbers are asked.

A step may see a part of the parameters: one layer of a stack, or the leaves that have a gradient.
What chooses leaves by their shapes, or by which leaves there are, would choose others there. It is
asked of the whole parameters instead, so that each part of a step chooses as the whole step does.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import jax

from gradtx.rows import is_rows
from gradtx.types import Params, PyTree

_whole: ContextVar[PyTree | None] = ContextVar("whole leaves", default=None)


@contextlib.contextmanager
def whole_leaves(params: Params | None) -> Iterator[None]:
    """Inside, the whole parameters are known, for what a step sees of them.

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
    """Inside, only a part of the whole leaves is known, where these are.

    Args:
        part: makes it, as it makes the part of the parameters that is handed on.
    """
    whole = _whole.get()
    with whole_leaves(None if whole is None else part(whole)):
        yield


def whole_of(tree: PyTree) -> PyTree:
    """The whole leaves for what a step sees of them, in its types; else the tree as it is.

    Args:
        tree: parameters, gradients or slots; None stands for a leaf that the step does not see.
    """
    whole = _whole.get()
    if whole is None:
        return tree
    structure: Any
    leaves, structure = jax.tree.flatten(tree, is_leaf=_is_leaf)
    each, other = jax.tree.flatten(whole, is_leaf=_is_leaf)
    if structure != other:
        return tree
    return structure.unflatten(map(_typed, each, leaves))


def whole_form() -> Any:
    """The shapes and types of the whole leaves, which can be compared; None if not known."""
    whole = _whole.get()
    if whole is None:
        return None
    leaves, structure = jax.tree.flatten(whole, is_leaf=_is_leaf)
    return structure, tuple(None if x is None else (x.shape, x.dtype) for x in leaves)


def of_form(form: Any) -> PyTree | None:
    """The whole leaves of a :func:`whole_form`, without numbers."""
    if form is None:
        return None
    structure, leaves = form
    return structure.unflatten([None if x is None else jax.ShapeDtypeStruct(*x) for x in leaves])


def _is_leaf(x: Any) -> bool:
    return x is None or is_rows(x)


def _typed(whole: Any, x: Any) -> Any:
    """A whole leaf in the type in which a step sees it, such as that of a master copy."""
    dtype, own = getattr(x, "dtype", None), getattr(whole, "dtype", None)
    if dtype is None or own is None or own == dtype:
        return whole
    if isinstance(whole, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(whole.shape, dtype)
    return whole.astype(dtype)
