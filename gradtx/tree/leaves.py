"""Trees leaf by leaf: `None` is skipped, and `Rows` are one leaf."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gradtx.leaves.paths import first_difference, is_leaf, leaves_with_path
from gradtx.leaves.rows import Rows, is_rows, take_rows
from gradtx.types import Array, PyTree


def map_updates(function: Callable[..., Any], updates: PyTree, *trees: PyTree) -> PyTree:
    """`function` on every leaf that has a gradient, with the subtrees of `trees` at its path.

    On `Rows` the function sees the values, each row once, and those rows of the other trees.
    """

    def on_leaf(g: Any, *others: Any) -> Any:
        if g is None:
            return None
        if is_rows(g):
            g = g.coalesce()
            rows = [o if o is None else take_rows(jnp.asarray(o), g.indices) for o in others]
            return g.with_values(function(g.values, *rows))
        return function(g, *others)

    return jax.tree.map(on_leaf, updates, *trees, is_leaf=is_leaf)


def together(*trees: PyTree) -> tuple[list[tuple[Any, ...]], Any]:
    """The leaves of trees of the same structure, side by side, and their structure."""
    keyed, treedef = leaves_with_path(trees[0])
    columns = [[leaf for _, leaf in keyed]]
    for tree in trees[1:]:
        # A leaf may be None in one tree only, which for JAX is another structure.
        leaves, other = jax.tree.flatten(tree, is_leaf=is_leaf)
        if other != treedef:
            raise ValueError(f"the trees are different: {first_difference(trees[0], tree)}")
        columns.append(leaves)
    return list(zip(*columns, strict=True)), treedef


def map_leaves(function: Callable[..., Any], *trees: PyTree) -> PyTree:
    """`function` on the leaves side by side; None where one of them is None."""
    leaves, treedef = together(*trees)
    return treedef.unflatten([function(*x) if present(*x) else None for x in leaves])


def present(*leaves: Any) -> bool:
    """Whether none of the leaves is None."""
    return all(leaf is not None for leaf in leaves)


def dense(leaf: Any) -> Array:
    """A leaf as an array; `Rows` as the whole table."""
    return leaf.to_dense() if isinstance(leaf, Rows) else jnp.asarray(leaf)


def each(function: Callable[..., Any], *trees: PyTree) -> PyTree:
    """`function` of each leaf; for `Rows` in the first tree, of these rows of the other trees."""

    def on_leaf(x: Any, *others: Any) -> Any:
        if not isinstance(x, Rows):
            return function(x, *(o.to_dense() if isinstance(o, Rows) else o for o in others))
        x = x.coalesce()
        rows = [take_rows(d, x.indices) if (d := dense(o)).ndim else d for o in others]
        return x.with_values(function(x.values, *rows))

    return map_leaves(on_leaf, *trees)
