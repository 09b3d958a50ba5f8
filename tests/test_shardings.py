"""Where the arrays of a tree lie."""

import jax
import jax.numpy as jnp

from gradtx.leaves.shardings import committed


def test_arrays_are_bound_to_the_one_device_to_which_some_are():
    loose, there = jnp.ones(2), [jax.device_put(jnp.ones(2), d) for d in jax.devices()[:2]]
    found, are_bound = committed((loose, there[1]))
    assert are_bound
    assert [x.sharding for x in found] == [there[1].sharding] * 2
    for given in ([loose], [loose, *there]):
        assert committed(given) == (given, False)
