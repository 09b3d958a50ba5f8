"""Clipping the gradients of single examples."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests.oracle import gradients

GS = jnp.asarray(gradients(), jnp.float32)


@pytest.mark.parametrize("clip", [0.0, 0.7, 1e9])
def test_per_example_clips_like_optax(clip):
    grads = [GS[:5], GS[:5, 0]]
    for ours, theirs in (
        (gradtx.per_example_global_norm_clip, optax.per_example_global_norm_clip),
        (gradtx.per_example_layer_norm_clip, optax.per_example_layer_norm_clip),
    ):
        (total, count), (want, want_count) = ours(grads, clip), theirs(grads, clip)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), total, want
        )
        jax.tree.map(np.testing.assert_array_equal, count, want_count)
    with pytest.raises(ValueError, match="first"):
        gradtx.per_example_global_norm_clip([jnp.ones((2, 3)), jnp.ones((3, 3))], 1.0)
