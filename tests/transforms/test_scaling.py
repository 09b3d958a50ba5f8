"""Scaling, forward and on the way back."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests import oracle

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


@pytest.mark.paper("scale")
def test_scale_gradient_multiplies_on_the_way_back():
    """By 0 also what is infinite, as the derivative of a root is there."""

    def derivative(x, scale):
        return jax.grad(lambda x: jnp.sqrt(gradtx.scale_gradient(x, scale)))(x)

    np.testing.assert_allclose([derivative(4.0, 0.3), derivative(0.0, 0)], [0.075, 0], rtol=1e-6)


def test_scale_gradient_of_a_tree_with_integers():
    def loss(x):
        tree = gradtx.scale_gradient({"x": x, "i": jnp.int32(2)}, 0.5)
        return tree["x"] * tree["i"]

    assert jax.grad(loss)(3.0) == 1.0


@pytest.mark.slow
@pytest.mark.paper("scale", "scale_by_schedule", "scale_by_learning_rate")
def test_factors():
    oracle.check(gradtx.scale(-0.3), lambda g, s, t, p: -0.3 * g)
    oracle.check(
        gradtx.scale_by_schedule(lambda count: -0.05 / (1 + count)),
        lambda g, s, t, p: -0.05 / t * g,
    )
    rate = gradtx.linear_schedule(0.05, 0.0, 50)
    tx = gradtx.scale_by_learning_rate(rate)
    oracle.check(tx, lambda g, s, t, p: -0.05 * (1 - (t - 1) / 50) * g)
    oracle.check(gradtx.scale_by_learning_rate(0.05, flip_sign=False), lambda g, s, t, p: 0.05 * g)
    oracle.check(gradtx.scale_by_learning_rate(None), lambda g, s, t, p: -g)
