"""Vectors along an axis are projected as each of them alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx import projections as pr

X = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 2)), jnp.float32)
ALONG = {
    "l1_ball": lambda x, **axis: pr.projection_l1_ball(x, 0.8, **axis),
    "l1_sphere": lambda x, **axis: pr.projection_l1_sphere(x, 0.8, **axis),
    "simplex": lambda x, **axis: pr.projection_simplex(x, 0.8, **axis),
    "sparse_simplex": lambda x, **axis: pr.projection_sparse_simplex(x, 2, 0.8, **axis),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONG)
def test_each_vector_along_an_axis_is_projected_alone(name):
    def alone(vectors):
        return jnp.stack([ALONG[name](v) for v in vectors])

    found = ALONG[name]({"a": X, "b": None}, axis=1)["a"]
    vectors = jnp.moveaxis(X, 1, -1).reshape(6, 4)
    np.testing.assert_allclose(jnp.moveaxis(found, 1, -1).reshape(6, 4), alone(vectors), rtol=1e-6)
    found = ALONG[name](X, axis=(0, -1))
    vectors = X.transpose(1, 0, 2).reshape(4, 6)
    np.testing.assert_allclose(found.transpose(1, 0, 2).reshape(4, 6), alone(vectors), rtol=1e-6)
    assert ALONG[name](jnp.zeros((0, 3)), axis=1).shape == (0, 3)


def test_a_ball_has_a_vector_without_entries():
    assert pr.projection_l1_ball(jnp.zeros((2, 0)), axis=1).shape == (2, 0)


@pytest.mark.slow
def test_rows_of_a_table_are_projected_where_each_is_a_vector():
    """All others are refused."""
    table, rows = jnp.ones((4, 2)), gradtx.Rows(jnp.array([2]), jnp.array([[2.0, 1.0]]), (4, 2))
    tx = gradtx.project("simplex", arguments={"axis": -1})
    updates, _ = tx.update(rows, tx.init(table), table)
    np.testing.assert_allclose(updates.to_dense()[2], [0.0, -1.0])
    for axis in (None, 0):
        tx = gradtx.project("simplex", arguments={"axis": axis})
        with pytest.raises(TypeError, match="the whole table"):
            tx.update(rows, tx.init(table), table)


@pytest.mark.slow
def test_an_infinite_entry_is_left_out_of_the_simplex():
    x = jnp.array([-jnp.inf, 1.0, 1.5])
    for projection in (pr.projection_simplex, lambda x: pr.projection_sparse_simplex(x, 2)):
        assert projection(x).tolist() == [0.0, 0.25, 0.75]
        np.testing.assert_array_equal(jax.jacrev(projection)(x)[0], 0)


@pytest.mark.slow
def test_the_first_of_equal_entries_stay_in_the_sparse_simplex():
    found = pr.projection_sparse_simplex({"a": jnp.ones(2), "b": jnp.ones((2, 1))}, 3)
    np.testing.assert_allclose(found["a"], 1 / 3, rtol=1e-6)
    np.testing.assert_allclose(found["b"][:, 0], [1 / 3, 0], rtol=1e-6)
    assert pr.projection_sparse_simplex(jnp.ones(2), 9).tolist() == [0.5, 0.5]


def test_a_simplex_in_a_program_that_rounds_its_largest_entry_twice():
    """A sum far below the rounding of the entries: no entry may be above the threshold then."""
    x, y = jnp.asarray(np.random.default_rng(0).normal(size=(2, 64, 8)), jnp.float32)
    found = jax.jit(lambda x, y: pr.projection_simplex(0.3 * x + y, 1e-20, axis=1))(x, y)
    assert bool(jnp.all(jnp.isfinite(found) & (found >= 0)))


@pytest.mark.slow
def test_axes_and_bounds_that_are_arrays():
    x = jnp.array([[3.0, 0.0], [4.0, 1.0]])
    np.testing.assert_array_equal(
        pr.projection_max_norm(x, 1.0, np.int64(0)), pr.projection_max_norm(x, 1.0, 0)
    )
    with pytest.raises(ValueError, match="max_value must be one number"):
        pr.projection_min_max_norm(x, 0.0, jnp.ones(2))
    assert np.isnan(pr.projection_l2_ball(jnp.array([jnp.inf, 1.0]))[0])
