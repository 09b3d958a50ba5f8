"""Transport and Birkhoff polytopes: the nearest matrix, by linear programs; its derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings, strategies as st

from gradtx import projections as pr

few = settings(max_examples=20, derandomize=True, deadline=None, database=None)
M, N = 3, 4
transport = jax.jit(pr.projection_transport)
SUMS = np.array([0.5, 0.2, 0.3]), np.array([0.1, 0.3, 0.0, 0.6])


def certify(x, p, a, b, atol):
    """`p` is nearest to `x` if and only if no vertex of the polytope is on the far side."""
    assert p.min() >= 0
    np.testing.assert_allclose(p.sum(1), a, atol=atol)
    np.testing.assert_allclose(p.sum(0), b, atol=atol)
    m, n = p.shape
    sums = np.vstack([np.kron(np.eye(m), np.ones(n)), np.kron(np.ones(m), np.eye(n))])
    best = scipy.optimize.linprog((p - x).ravel(), A_eq=sums, b_eq=np.r_[a, b])
    assert best.status == 0
    assert np.sum((p - x) * p) <= best.fun + 1e-7 * (1 + np.abs(x).max())  # HiGHS is off by 1e-7


@pytest.mark.slow
@few
@given(x=st.lists(st.integers(-3, 3), min_size=M * N, max_size=M * N), size=st.floats(0.01, 100))
def test_nearest_by_a_linear_program(x, size):
    x = size * np.array(x, float).reshape(M, N)
    with jax.enable_x64(True):
        p = np.asarray(transport(jnp.asarray(x), tuple(map(jnp.asarray, SUMS))))
    certify(x, p, *SUMS, 1e-13 * (1 + size))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-3, 1.0, 100.0, 1e4])
@pytest.mark.parametrize("shape", [(20, 20), (30, 12)])
def test_skewed_sums_and_all_sizes(shape, size):
    rng = np.random.default_rng(0)
    x = size * rng.normal(size=shape)
    a, b = (rng.dirichlet(0.1 * np.ones(n)) for n in shape)
    with jax.enable_x64(True):
        p = np.asarray(transport(jnp.asarray(x), (jnp.asarray(a), jnp.asarray(b))))
    certify(x, p, a, b, 1e-14 * (1 + 10 * size))
    low = transport(jnp.asarray(x, jnp.float32), (jnp.float32(a), jnp.float32(b)))
    np.testing.assert_allclose(low, p, atol=2e-5 + 1e-5 * size)


@pytest.mark.slow
def test_stacks_trees_and_types():
    x = np.random.default_rng(0).normal(size=(2, 3, 3))
    found = jax.jit(pr.projection_birkhoff)({"a": jnp.asarray(x, jnp.bfloat16), "b": None})["a"]
    assert found.dtype == jnp.bfloat16
    for matrix, got in zip(np.asarray(jnp.asarray(x, jnp.bfloat16), float), found, strict=True):
        p = np.asarray(transport(jnp.asarray(matrix, jnp.float32), (1.0, 1.0)), float)
        certify(matrix, p, np.ones(3), np.ones(3), 1e-5)
        np.testing.assert_allclose(np.asarray(got, float), p, atol=4e-3)


@pytest.mark.slow
def test_a_permutation_stays_and_a_forbidden_entry_is_zero():
    p = np.eye(3, dtype=np.float32)[[2, 0, 1]]
    np.testing.assert_array_equal(pr.projection_birkhoff(jnp.asarray(50 * p)), p)
    x = jnp.array([[1.0, -jnp.inf], [0.0, 5.0]])
    np.testing.assert_allclose(pr.projection_birkhoff(x), np.eye(2), atol=1e-6)
    assert bool(jnp.all(jnp.isnan(pr.projection_birkhoff(jnp.full((2, 2), jnp.nan)))))


@pytest.mark.slow
def test_matrices_without_entries_or_sums():
    assert pr.projection_birkhoff(jnp.zeros((0, 2, 2))).shape == (0, 2, 2)
    assert pr.projection_birkhoff(jnp.zeros((0, 0))).shape == (0, 0)
    x = jnp.array([[1.0, 2.0, 4.0], [3.0, -5.0, 0.0]])
    np.testing.assert_array_equal(pr.projection_transport(x, (0.0, 0.0)), 0)


@pytest.mark.slow
@pytest.mark.parametrize("turned", [False, True])
def test_a_row_that_has_no_entry_has_no_sum(turned):
    x, sums = jnp.array([[-jnp.inf, -jnp.inf], [3.0, 5.0]]), (np.array([0.0, 1.0]), 0.5)
    if turned:
        x, sums = x.T, sums[::-1]
    want = np.array([[0.0, 0.0], [0.5, 0.5]])
    np.testing.assert_array_equal(transport(x, sums), want.T if turned else want)
    assert bool(jnp.any(jnp.isnan(transport(x, (0.5, 0.5)))))  # the set is empty


@pytest.mark.slow
def test_what_forbidden_entries_leave_empty_is_nan():
    """Two rows have the first column alone, which cannot be the sum of both."""
    x = jnp.full((3, 3), -jnp.inf).at[:, 0].set(0.0).at[2].set(0.0)
    assert bool(jnp.all(jnp.isnan(pr.projection_birkhoff(x))))
    want = np.array([[1, 0, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]])
    got = pr.projection_birkhoff(x.at[1].set(0.0))
    np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.slow
def test_a_tolerance_and_too_few_steps():
    x = jnp.asarray(10 * np.random.default_rng(1).normal(size=(24, 36)), jnp.float32)
    loose = pr.projection_transport(x, (1.5, 1.0), tol=0.1)
    assert 1e-5 < abs(loose.sum(1) - 1.5).max() <= 0.15
    np.testing.assert_allclose(loose.sum(0), 1.0, rtol=1e-5)
    assert bool(jnp.all(jnp.isnan(pr.projection_transport(x, (1.5, 1.0), max_steps=1))))


@pytest.mark.slow
@pytest.mark.parametrize("turned", [False, True])
def test_derivatives_by_finite_differences(turned):
    rng = np.random.default_rng(3)
    x, marginals = rng.normal(size=(M, N)), (SUMS[0], np.array([0.13, 0.31, 0.19, 0.37]))
    if turned:
        x, marginals = x.T, marginals[::-1]
    with jax.enable_x64(True):
        x, marginals = jnp.asarray(x), tuple(map(jnp.asarray, marginals))
        dx = jnp.asarray(rng.normal(size=x.shape))
        # Totals that differ are made equal, by a factor of the second.
        moved = tuple(jnp.asarray(rng.normal(size=s.shape)) for s in marginals)

        def along(t):
            return transport(
                x + t * dx, tuple(s + t * d for s, d in zip(marginals, moved, strict=True))
            )

        want = (along(1e-6) - along(-1e-6)) / 2e-6
        found = jax.jvp(transport, (x, marginals), (dx, moved))[1]
        np.testing.assert_allclose(found, want, atol=1e-7)
        cotangent = jnp.asarray(rng.normal(size=x.shape))
        gx, sums = jax.vjp(transport, x, marginals)[1](cotangent)
        inner = jnp.vdot(gx, dx) + sum(jnp.vdot(g, d) for g, d in zip(sums, moved, strict=True))
        np.testing.assert_allclose(inner, jnp.vdot(cotangent, found), rtol=1e-9)


BAD = [
    ((jnp.zeros(3), (1.0, 1.0)), "is no matrix"),
    (({"w": jnp.zeros((2, 3))}, (1.0, 1.0)), "empty at 'w': .* total 2 and columns .* total 3"),
    (({"w": jnp.zeros((2, 3))}, (np.ones(3), 1.0)), "at 'w' has 2 rows, and their sums the shape"),
    ((jnp.zeros((2, 2)), (np.array([-1.0, 2.0]), 0.5)), "a sum is negative"),
    ((jnp.zeros((2, 2)), 1.0), "marginals must be a pair"),
    ((jnp.zeros((2, 2)), (1.0, 1.0), -1.0), "tol must be"),
    ((jnp.zeros((2, 2)), (1.0, 1.0), None, 0), "max_steps must be an integer of at least 1"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_empty_polytopes_are_refused(arguments, message):
    names = ("tree", "marginals", "tol", "max_steps")
    with pytest.raises(ValueError, match=message):
        pr.projection_transport(**dict(zip(names, arguments, strict=False)))


def test_a_matrix_that_is_not_square_is_not_doubly_stochastic():
    with pytest.raises(ValueError, match="empty at 'w'"):
        pr.projection_birkhoff({"w": jnp.zeros((2, 3))})
