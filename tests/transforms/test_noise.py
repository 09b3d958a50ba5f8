"""Noise added to gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx


def test_noise_takes_keys_and_seeds():
    g = jnp.zeros(3)

    def first(**arguments):
        tx = gradtx.add_noise(0.1, 0.55, **arguments)
        return np.asarray(tx.update(g, tx.init(g))[0])

    np.testing.assert_array_equal(first(key=3), first(seed=3))
    np.testing.assert_array_equal(first(key=3), first(key=jax.random.key(3)))
    assert (first(key=3) != first()).all()
    with pytest.raises(ValueError, match="seed"):
        first(key=1, seed=2)
    with pytest.raises(TypeError, match="key"):
        first(key="x")
