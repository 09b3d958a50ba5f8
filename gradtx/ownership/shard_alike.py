"""An array that the compiler shards as another one, on axes where only the compiler knows how."""

import itertools
from typing import Any

import jax
from jax.interpreters import batching, mlir
from jaxlib.mlir.dialects import sdy

from gradtx.programs.opaque import opaque
from gradtx.types import Array

_groups = itertools.count()


def shard_alike(x: Array, like: Array) -> Array:
    """`x`, in the sharding of `like`, which has the same shape.

    ``jax.experimental.shard_alike`` did this until jax 0.11. Partitioners other than Shardy, which
    is JAX's own choice, shard `x` as they like.

    >>> import jax.numpy as jnp
    >>> shard_alike(jnp.arange(3), jnp.ones(3)).tolist()
    [0, 1, 2]
    """
    return _shard_alike_p.bind(x, like)[0]


def _lowered(ctx: Any, x: Any, like: Any) -> Any:
    if getattr(jax.config, "jax_use_shardy_partitioner", True):
        group = next(_groups)
        for value in (x, like):
            sdy.sharding_group(value, group)
    return [x]


def _batched(arrays: Any, axes: Any) -> Any:
    batched = jax.vmap(lambda *pair: pair, in_axes=tuple(axes))(*arrays)
    return _shard_alike_p.bind(*batched), [0]


_shard_alike_p = opaque("shard_alike", lambda x, like: [x])
batching.primitive_batchers[_shard_alike_p] = _batched
mlir.register_lowering(_shard_alike_p, _lowered, cacheable=False)
