"""Affine sets and sections of boxes: trees, sizes, degenerate cases and derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gradtx import projections as pr

few = settings(max_examples=20, derandomize=True, deadline=None, database=None)
N = 5
RNG = np.random.default_rng(0)
X, W = 2 * RNG.normal(size=N), np.array([1.0, -2.0, 0.0, 0.5, 1.5])
LOW, HIGH = np.array([-1.0, -np.inf, -1, -1, 0]), np.array([1.0, 1.0, 0.2, 0.5, np.inf])
section = jax.jit(pr.projection_box_section)


@pytest.mark.slow
def test_trees_are_one_vector():
    tree = {"a": jnp.asarray(X[:2]), "b": (jnp.asarray(X[2:]).reshape(3, 1), None)}

    def like(v):
        return {"a": v[..., :2], "b": (v[..., 2:].reshape(*v.shape[:-1], 3, 1), None)}

    equations = RNG.normal(size=(2, N))
    pairs = [
        (
            pr.projection_affine_set(tree, like(equations), np.ones(2)),
            pr.projection_affine_set(jnp.asarray(X), equations, np.ones(2)),
        ),
        (
            pr.projection_box_section(tree, like(LOW), like(HIGH), like(W), 0.7),
            pr.projection_box_section(jnp.asarray(X), LOW, HIGH, W, 0.7),
        ),
    ]
    for found, want in pairs:
        np.testing.assert_allclose(found["a"], want[:2], rtol=1e-5)
        np.testing.assert_allclose(found["b"][0][:, 0], want[2:], rtol=1e-5)


@pytest.mark.slow
def test_equations_of_any_size_that_repeat_each_other():
    rows = RNG.normal(size=(2, N)).astype(np.float32)
    want = pr.projection_affine_set(jnp.asarray(X), rows, np.ones(2))
    size = np.float32([1, 1e30, 1e-30, 1])
    many = np.stack([rows[0], rows[1], rows[1], 0 * rows[0]]) * size[:, None]
    found = pr.projection_affine_set(jnp.asarray(X), many, np.float32([1, 1, 1, 0]) * size)
    np.testing.assert_allclose(found, want, rtol=1e-5)


def test_sets_without_entries_and_without_equations():
    empty = jnp.zeros((0, 2))
    assert pr.projection_affine_set(empty, jnp.zeros((1, 0, 2)), jnp.zeros(1)) is empty
    assert pr.projection_affine_set(jnp.ones(2), jnp.zeros((0, 2)), jnp.zeros(0)).tolist() == [1, 1]
    assert pr.projection_box_section(empty, 0, 1, 1, 0) is empty


@pytest.mark.slow
@few
@given(
    x=st.lists(st.integers(-4, 4), min_size=N, max_size=N).map(np.array),
    w=st.lists(st.integers(-2, 2), min_size=N, max_size=N).map(np.array),
    part=st.floats(0, 1),
)
def test_section_certificate(x, w, part):
    """With integers many entries meet bounds at once."""
    low, high = -np.ones(N), np.arange(N) - 1.0
    least, most = (np.sum(f(w * low, w * high)) for f in (np.minimum, np.maximum))
    c = least + part * (most - least)
    with jax.enable_x64(True):
        y = np.asarray(section(*map(jnp.float64, (x, low, high, w, c))))
    assert (y >= low).all()
    assert (y <= high).all()
    np.testing.assert_allclose(w @ y, c, atol=1e-12)
    # x - y is normal to the set: a multiple of w, apart from what presses on a bound.
    step = divided = (y - x)[w != 0] / w[w != 0]
    np.testing.assert_allclose(y[w == 0], np.clip(x, low, high)[w == 0])
    start = np.where(w > 0, low, high)[w != 0]
    end = np.where(w > 0, high, low)[w != 0]
    floor = np.max(step[y[w != 0] != start], initial=-np.inf)
    ceiling = np.min(divided[y[w != 0] != end], initial=np.inf)
    assert floor <= ceiling + 1e-9


def test_a_traced_section_that_is_empty_gives_the_nearest_sum():
    x = jnp.arange(3.0)
    assert section(x, 0.0, 1.0, 1.0, 9.0).tolist() == [1, 1, 1]
    assert section(x, 0.0, 1.0, 1.0, -9.0).tolist() == [0, 0, 0]
    found = section(jnp.array([jnp.inf, -jnp.inf, 0.5]), 0.0, 1.0, 1.0, 1.25)
    assert found.tolist() == [1, 0, 0.25]


EQUATIONS = RNG.normal(size=(2, N))
CASES = {
    "affine_set": (pr.projection_affine_set, (X, EQUATIONS, np.ones(2)), (0, 1, 2)),
    "box_section": (pr.projection_box_section, (X, LOW, HIGH, W, 0.7), (0, 3, 4)),
    "section_bounds": (pr.projection_box_section, (X, LOW, HIGH, W, 0.7), (1, 2)),
    "sparse_simplex": (lambda x: pr.projection_sparse_simplex(x, 3), (X,), (0,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_derivatives_by_finite_differences(name):
    function, arguments, which = CASES[name]
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        arguments = [jnp.asarray(x, jnp.float64) for x in arguments]
        chosen = [arguments[i] for i in which]

        def of_chosen(*chosen):
            every = dict(zip(which, chosen, strict=True))
            return function(*[every.get(i, x) for i, x in enumerate(arguments)])

        tangents = [jnp.asarray(rng.normal(size=x.shape)) for x in chosen]

        def along(t):
            return of_chosen(*[x + t * v for x, v in zip(chosen, tangents, strict=True)])

        want = (along(1e-6) - along(-1e-6)) / 2e-6
        found = jax.jvp(of_chosen, chosen, tangents)[1]
        np.testing.assert_allclose(found, want, atol=1e-7)
        cotangent = rng.normal(size=N)
        back = jax.vjp(of_chosen, *chosen)[1](jnp.asarray(cotangent))
        inner = sum(np.sum(b * v) for b, v in zip(back, tangents, strict=True))
        np.testing.assert_allclose(inner, cotangent @ found, rtol=1e-9)


@pytest.mark.parametrize("name", ["hyperplane", "halfspace"])
def test_one_array_is_no_normal_of_a_tree(name):
    project = getattr(pr, f"projection_{name}")
    with pytest.raises(ValueError, match="must be a tree"):
        project({"u": jnp.zeros(2), "v": jnp.zeros(2)}, jnp.array([1.0, 0.0]), 1.0)


@pytest.mark.slow
def test_normals_of_integers_and_of_complex_numbers():
    x, a = jnp.array([1.0, 3.0]), jnp.array([2, 0])
    assert pr.projection_hyperplane(x, a, 0.0).tolist() == [0.0, 3.0]
    assert pr.projection_affine_set(x, a[None], jnp.zeros(1)).tolist() == [0.0, 3.0]
    for project in (pr.projection_hyperplane, pr.projection_halfspace):
        with pytest.raises(TypeError, match="at 'w' a is complex and x is real"):
            project({"w": x}, {"w": jnp.array([1j, 1.0])}, 0.0)


@pytest.mark.parametrize("size", [1e3, 1e6, 1e7, 1e8])
def test_entries_that_are_large_beside_the_box(size):
    """Their distances to its bounds are rounded as they are."""
    for width in (1.0, 1e-4):
        y = section(jnp.full(3, size), 0.0, width, 1.0, width)
        np.testing.assert_allclose(y, width / 3, rtol=1e-6)
