"""Complex leaves as two real ones."""

import jax.numpy as jnp
import numpy as np

import gradtx


def test_parts_are_clipped_apart():
    g = jnp.array([1 + 2j, -3 + 0.5j], jnp.complex64)
    tx = gradtx.split_real_and_imaginary(gradtx.clip(1.0))
    updates, _ = tx.update(g, tx.init(g), g)
    np.testing.assert_allclose(updates, [1 + 1j, -1 + 0.5j])
