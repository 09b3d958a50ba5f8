"""Mathematics on trees of gradients: `None` leaves are skipped and `Rows` count as one leaf."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp

from gradtx.numerics import sum_sq
from gradtx.paths import is_leaf
from gradtx.rows import Rows, is_rows, take_rows
from gradtx.types import Array, PyTree


def map_updates(function: Callable[..., Any], updates: PyTree, *trees: PyTree) -> PyTree:
    """`function` on every leaf that has a gradient, with the parts of `trees` that belong to it.

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


def norm_sq(tree: PyTree) -> Array:
    """The sum of the squared absolute values of all entries, in at least float32."""

    def of(leaf: Any) -> Array:
        return sum_sq(leaf.coalesce().values if isinstance(leaf, Rows) else jnp.asarray(leaf))

    leaves = [leaf for leaf in jax.tree.leaves(tree, is_leaf=is_leaf) if leaf is not None]
    return reduce(jnp.add, map(of, leaves), jnp.zeros([], jnp.float32))


def global_norm(updates: PyTree) -> Array:
    """The Euclidean norm of all entries together, summed in at least float32.

    >>> float(global_norm({"a": jnp.array([3.0]), "b": jnp.array([4.0]), "c": None}))
    5.0
    """
    return jnp.sqrt(norm_sq(updates))
