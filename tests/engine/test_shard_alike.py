"""The sharding of another array."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

from gradtx.ownership.shard_alike import shard_alike
from tests.distributed.meshes import mesh


@pytest.mark.parametrize("axes", [None, (0, 0), (None, 0), (0, None), (1, 0)])
def test_an_array_is_sharded_as_another(axes):
    """Also where both are batched, or one is."""
    x = np.arange(16.0, dtype=np.float32).reshape(4, 4)
    like = jax.device_put(2 * x, NamedSharding(mesh(d=2), P(None, "d")))
    pair = shard_alike if axes is None else jax.vmap(shard_alike, axes)
    if axes is not None and None in axes:
        x, like = (a if axis is not None else a[0] for a, axis in zip((x, like), axes, strict=True))
    found = jax.jit(lambda like: pair(jnp.asarray(x), like))(like)
    want = x.T if axes == (1, 0) else np.broadcast_to(x, found.shape)
    np.testing.assert_array_equal(found, want)
    if np.ndim(like) == 2:
        assert found.sharding.is_equivalent_to(like.sharding, 2)


def test_its_derivative_is_that_of_the_array():
    pairs = [tuple(map(jnp.float32, pair)) for pair in ((1, 2), (3, 4))]
    change = jax.jvp(shard_alike, *pairs)[1]
    assert change == 3.0
