"""Random directions: their moments, and their parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradtx.estimators.directions import Directions

DISTRIBUTIONS = ["rademacher", "normal", "sphere"]
MANY = 4000


def leaves():
    return [jnp.zeros((3, 2)), jnp.zeros(()), jnp.zeros((2,), jnp.complex64), jnp.zeros((0, 4))]


@pytest.mark.slow
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_entries_have_the_variance_one_and_are_not_correlated(distribution):
    def drawn(k):
        z = [directions.leaf(i, k) for i in range(4)]
        real = [z[0].ravel(), z[1].ravel(), z[2].real, z[2].imag, z[3].ravel()]
        return jnp.concatenate(real)

    directions = Directions(jax.random.key(0), leaves(), distribution, MANY)
    z = np.asarray(jax.jit(jax.vmap(drawn))(jnp.arange(MANY)), np.float64)
    assert z.shape == (MANY, 11)
    error = 5 / np.sqrt(MANY)
    np.testing.assert_allclose(z.mean(0), 0.0, atol=error)
    np.testing.assert_allclose(z.T @ z / MANY, np.eye(11), atol=2 * error)
    if distribution == "rademacher":
        assert set(np.unique(z)) == {-1.0, 1.0}
    if distribution == "sphere":
        np.testing.assert_allclose((z**2).sum(1), 11.0, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_layer_that_is_drawn_alone_has_the_bits_that_it_has_in_the_leaf(distribution):
    shapes = [jnp.zeros((3, 2, 128, 64)), jnp.zeros((5,)), jnp.zeros((2, 3), jnp.bfloat16)]
    directions = Directions(jax.random.key(1), shapes, distribution, 2)
    for i, shape in enumerate(shapes):
        whole = directions.leaf(i, 1)
        assert whole.shape == shape.shape
        assert whole.dtype == jnp.float32
        each = [directions.layer(i, j, 1) for j in range(len(shape))]
        np.testing.assert_array_equal(np.stack(each), whole)
        assert not np.array_equal(whole, directions.leaf(i, 0))


@pytest.mark.slow
def test_leaves_of_equal_shapes_have_directions_of_their_own():
    directions = Directions(jax.random.key(0), [jnp.zeros((4, 4))] * 2, "normal")
    assert not np.any(np.asarray(directions.leaf(0, 0)) == np.asarray(directions.leaf(1, 0)))
