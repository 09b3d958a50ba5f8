"""Scaling on the way back."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx

TREE = {"a": jnp.array([1.0, -2.0]), "b": jnp.float32(3.0)}


@pytest.mark.parametrize("scale", [0.0, 1.0, -1.0, 0.25, jnp.float32(0.5)])
def test_gradients_are_scaled_as_in_optax(scale):
    def grads(function):
        def loss(tree):
            out = function(tree, scale)
            return jnp.sum(out["a"] ** 2) + out["b"] ** 3

        return jax.value_and_grad(loss)(TREE)

    jax.tree.map(
        np.testing.assert_array_equal, grads(gradtx.scale_gradient), grads(optax.scale_gradient)
    )


def test_infinite_values_have_gradients_and_types_stay():
    x = jnp.array([jnp.inf, 1.0], jnp.bfloat16)
    grads = jax.grad(lambda x: jnp.sum(gradtx.scale_gradient(x, 0.5)))(x)
    assert grads.dtype == jnp.bfloat16
    np.testing.assert_array_equal(grads.astype(jnp.float32), 0.5)
