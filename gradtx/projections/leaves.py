"""Common to all projections: leaves converted to at least float32, and checks."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.leaves.paths import aligned, leaves_with_path, path_string
from gradtx.leaves.rows import is_rows
from gradtx.numerics import widen
from gradtx.programs.tracing import is_tracer
from gradtx.types import Array, DType, PyTree, TreeT

# One axis of a leaf, several, or all.
Axis: TypeAlias = int | Sequence[int] | None


def arrays(name: str, tree: PyTree, *, real: bool = False) -> list[Array]:
    """The leaves other than None, in the types in which they are computed.

    Raises:
        TypeError: a leaf is not a floating-point array, or is complex where an order is needed.
    """
    wide = []
    for path, leaf in leaves_with_path(tree)[0]:
        if leaf is None:
            continue
        if is_rows(leaf):
            raise TypeError(
                f"{name}: the leaf at {path_string(path)!r} is Rows; a projection needs the whole "
                "table: use to_dense()"
            )
        x = jnp.asarray(leaf, float) if isinstance(leaf, int | float) else jnp.asarray(leaf)
        if not jnp.issubdtype(x.dtype, jnp.floating if real else jnp.inexact):
            wanted = "real floating point" if real else "floating point"
            raise TypeError(f"{name}: the leaf at {path_string(path)!r} is {x.dtype}, not {wanted}")
        wide.append(widen(x))
    return wide


def paths(tree: PyTree) -> list[str]:
    """The paths of the leaves other than None, for error messages."""
    return [path_string(path) for path, leaf in leaves_with_path(tree)[0] if leaf is not None]


def rebuild(tree: TreeT, leaves: Sequence[Any]) -> TreeT:
    """A tree like `tree` with new leaves, in the types of the old ones."""
    keyed, treedef = leaves_with_path(tree)
    new = iter(leaves)

    def as_before(old: Any) -> Any:
        if old is None:
            return None
        x = next(new)
        return x.astype(old.dtype) if hasattr(old, "dtype") else x

    return treedef.unflatten([as_before(leaf) for _, leaf in keyed])


def each(name: str, function: Callable[[Array], Array], tree: TreeT, *, real: bool) -> TreeT:
    """`function` on every leaf."""
    return rebuild(tree, [function(x) for x in arrays(name, tree, real=real)])


def joined(xs: Sequence[Array]) -> Array:
    """The entries of all leaves as one vector."""
    return jnp.concatenate([x.ravel() for x in xs]) if xs else jnp.zeros(0)


def divided(vector: Array, xs: Sequence[Array]) -> list[Array]:
    """The inverse of :func:`joined`: parts of a vector in the shapes of `xs`."""
    ends = list(itertools.accumulate(x.size for x in xs))[:-1]
    parts = jnp.split(vector, ends)
    return [part.reshape(x.shape) for part, x in zip(parts, xs, strict=True)]


def along(
    name: str,
    tree: TreeT,
    xs: Sequence[Array],
    axis: int | Sequence[int],
    function: Callable[[Array], Array],
) -> TreeT:
    """`function` on every vector along `axis` of the leaves `xs` of a tree.

    Raises:
        ValueError: a leaf has no such axis.
    """

    def on_leaf(path: str, x: Array) -> Array:
        axes = tuple(axis) if isinstance(axis, Sequence) else (axis,)
        ends = range(-len(axes), 0)
        try:
            last = jnp.moveaxis(x, axes, ends)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{name}: axis={axis} does not fit {path!r}, {x.shape}: {error}"
            ) from None
        shape = last.shape[: x.ndim - len(axes)]
        if 0 in shape:
            return x
        vectors = last.reshape(math.prod(shape), -1)
        return jnp.moveaxis(jax.vmap(function)(vectors).reshape(last.shape), ends, axes)

    return rebuild(tree, [on_leaf(path, x) for path, x in zip(paths(tree), xs, strict=True)])


def parts_like(name: str, argument: str, value: Any, tree: PyTree) -> list[Any]:
    """The parts of an argument that is a tree like `tree`, for each leaf of it; integers as floats.

    Raises:
        ValueError: it is a different tree.
    """

    def as_floats(part: Any) -> Any:
        is_integer = jnp.issubdtype(getattr(part, "dtype", float), jnp.integer)
        return jnp.asarray(part, float) if is_integer else part

    keyed, treedef = leaves_with_path(tree)
    parts = aligned(f"{name}: {argument} must be a tree like x", tree, treedef, value)
    return [as_floats(part) for (_, x), part in zip(keyed, parts, strict=True) if x is not None]


def beside(name: str, argument: str, value: Any, tree: PyTree) -> list[Any]:
    """An argument that is a number, an array or a tree like `tree`, for each leaf of it.

    Raises:
        ValueError: it is a different tree, or a part of it does not fit its leaf.
    """
    keyed, treedef = leaves_with_path(tree)
    if jax.tree_util.all_leaves([value]):
        parts = [value] * len(keyed)
    else:
        problem = f"{name}: {argument} must be a number or a tree like the one to project"
        parts = aligned(problem, tree, treedef, value)
    leaf_parts = [
        (path, x, part) for (path, x), part in zip(keyed, parts, strict=True) if x is not None
    ]
    for path, x, part in leaf_parts:
        shape = jnp.shape(x)
        try:
            fits = part is not None and jnp.broadcast_shapes(jnp.shape(part), shape) == shape
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(
                f"{name}: {argument} at {path_string(path)!r} is "
                f"{None if part is None else jnp.shape(part)}, which does not fit {shape}"
            )
    return [part for _, _, part in leaf_parts]


def known(*values: Any) -> bool:
    """Whether all values are known now, and not traced."""
    return not any(is_tracer(leaf) for leaf in jax.tree.leaves(values))


def check_scale(name: str, scale: Any) -> None:
    """Raise ValueError if no point has the norm `scale`, or a smaller one."""
    if np.ndim(scale) != 0:
        raise ValueError(f"{name}: scale must be a number, not an array of {np.shape(scale)}")
    if known(scale) and not scale >= 0:
        raise ValueError(f"{name}: the set is empty for scale={scale}, which must be at least 0")


def finite(scale: Any, dtype: DType) -> Array:
    """A radius that is finite in a type: a derivative may multiply an infinite one by 0."""
    return jnp.minimum(scale, jnp.finfo(dtype).max)


def highest(leaves: Sequence[Array]) -> Array:
    """The largest entry, as a constant."""
    tops = [jax.lax.stop_gradient(jnp.max(x)) for x in leaves if x.size]
    return jnp.max(jnp.stack(tops))


def largest(leaves: Sequence[Array]) -> Array:
    """The largest absolute value, or 0: entries divided by it have squares without overflow."""
    tops = [jax.lax.stop_gradient(jnp.max(jnp.abs(x))) for x in leaves if x.size]
    return jnp.max(jnp.stack(tops)) if tops else jnp.zeros([])
