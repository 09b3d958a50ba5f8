"""Random keys and entries for trees."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gradtx.leaves.paths import leaves_with_path, present_leaves
from gradtx.leaves.rows import Rows
from gradtx.tree.leaves import map_leaves
from gradtx.types import Array, DType, TreeT


def split_key_like(rng_key: Array, target_tree: TreeT) -> TreeT:
    """A random key for every leaf of a tree."""
    leaves, treedef = leaves_with_path(target_tree)
    keys = iter(jax.random.split(rng_key, len(present_leaves(target_tree))))
    return treedef.unflatten([leaf if leaf is None else next(keys) for _, leaf in leaves])


def random_like(
    rng_key: Array,
    target_tree: TreeT,
    sampler: Callable[..., Any] = jax.random.normal,
    dtype: DType | None = None,
) -> TreeT:
    """Random entries in the shapes, types and shardings of a tree.

    Args:
        rng_key: the key, which is split into one for each leaf.
        target_tree: the tree to imitate.
        sampler: ``(key, shape, dtype) -> array``; it gets ``out_sharding`` too if it takes it.
        dtype: the type of the entries; the leaf's by default.
    """
    sharded = "out_sharding" in inspect.signature(sampler).parameters

    def draw(leaf: Any, key: Array) -> Any:
        if isinstance(leaf, Rows):
            return leaf.with_values(draw(leaf.values, key))
        x = jnp.asarray(leaf)
        kwargs = {"out_sharding": jax.typeof(x).sharding} if sharded else {}
        return sampler(key, x.shape, x.dtype if dtype is None else dtype, **kwargs)

    return map_leaves(draw, target_tree, split_key_like(rng_key, target_tree))


def unwrap_random_key_data(input_tree: TreeT) -> TreeT:
    """The tree with typed random keys replaced by the integers behind them."""

    def unwrap(x: Any) -> Any:
        is_key = isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(x) if is_key else x

    return jax.tree.map(unwrap, input_tree)
