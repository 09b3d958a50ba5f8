"""Derivatives of projections where a point is already in the set, or at the end of its range."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradtx import projections as pr

ONE, TWO, ON_CIRCLE = ([1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1.0, 0.0])
# A point of each set, by the directions in which every point near it moves along the set alone.
ON_SETS = {
    "simplex": (pr.projection_simplex, ONE, [1, 1, 1]),
    "simplex, two entries": (pr.projection_simplex, TWO, [1, 1, 1]),
    "sparse simplex": (functools.partial(pr.projection_sparse_simplex, max_nz=3), TWO, [1, 1, 1]),
    "l1 sphere": (pr.projection_l1_sphere, TWO, [1, 1, 1]),
    "section": (
        lambda x: pr.projection_box_section(x, 0.0, 1.0, 1.0, 1.0),
        TWO,
        [1, 1, 1],
    ),
    "l2 sphere": (pr.projection_l2_sphere, ON_CIRCLE, ON_CIRCLE),
    "unit norm": (pr.projection_unit_norm, ON_CIRCLE, ON_CIRCLE),
    "equal bounds": (
        lambda x: pr.projection_min_max_norm(x, 1.0, 1.0),
        ON_CIRCLE,
        ON_CIRCLE,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_SETS)
def test_a_point_of_a_set_moves_along_it(name):
    """Whatever moves it, what all points of the set have in common stays."""
    project, point, normal = ON_SETS[name]
    point = jnp.array(point)
    np.testing.assert_array_equal(project(point), point)
    for mode in (jax.jacfwd, jax.jacrev):
        moves = jnp.array(normal) @ mode(project)(point)
        np.testing.assert_allclose(moves, 0, atol=1e-6)


@pytest.mark.slow
def test_more_is_divided_by_entries_that_are_not_zero():
    total = jax.grad(lambda s: jnp.sum(pr.projection_simplex(jnp.array(ONE), s)))(1.0)
    assert total == 1
    jacobian = jax.jacobian(pr.projection_simplex)(jnp.array(TWO))
    np.testing.assert_allclose(jacobian, [[0.5, -0.5, 0], [-0.5, 0.5, 0], [0, 0, 0]])


@pytest.mark.slow
def test_columns_that_were_normalized_have_no_gradient_along_them():
    rng = np.random.default_rng(0)
    w, v = jnp.asarray(rng.normal(size=(2, 16, 100)), jnp.float32)
    w = pr.projection_unit_norm(w)
    gradient = jax.grad(lambda w: jnp.sum(pr.projection_unit_norm(w) * v))(w)
    np.testing.assert_allclose(jnp.sum(gradient * w, 0), 0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("bounds", [(0.5, 1.0), (0.5, 2.0), (1.0, 2.0)])
def test_between_bounds_a_derivative_is_the_identity(bounds):
    def of_norms(x):
        return pr.projection_min_max_norm(x, *bounds)

    np.testing.assert_array_equal(jax.jacobian(of_norms)(jnp.array(ON_CIRCLE)), jnp.eye(2))


@pytest.mark.parametrize(
    "project", [pr.projection_l2_ball, pr.projection_l1_ball, pr.projection_linf_ball]
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.complex64])
def test_a_ball_without_an_end_has_a_derivative(project, dtype):
    x = jnp.array([1.0, -2.0], dtype)
    gradient = jax.grad(lambda x: jnp.sum(project(x, jnp.inf).real))(x)
    np.testing.assert_array_equal(gradient, jnp.ones(2, dtype))


@pytest.mark.slow
@pytest.mark.parametrize("project", [pr.projection_l1_ball, pr.projection_l1_sphere])
def test_complex_entries_turn(project):
    """By differences in the parts of each entry, with the sign of JAX's convention."""
    z, weights = np.array([1 + 2j, 0.5 - 1j]), np.array([1.0, 2.0])

    def total(z):
        return jnp.sum(weights * project(z).real)

    with jax.enable_x64(True):
        gradient = jax.grad(total)(jnp.asarray(z))
        for i, h in ((i, h) for i in range(2) for h in (1e-6, 1e-6j)):
            step = np.zeros(2, complex)
            step[i] = h
            slope = (total(z + step) - total(z - step)) / 2e-6
            part = gradient[i].real if h.imag == 0 else -gradient[i].imag
            np.testing.assert_allclose(part, slope, atol=1e-6)
