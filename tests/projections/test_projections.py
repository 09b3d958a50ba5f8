"""Projections: the nearest point, in double precision against SciPy and against live Optax."""

import inspect

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.linalg
import scipy.optimize
from hypothesis import given, settings, strategies as st

import gradtx
from gradtx import projections as pr
from tests.quick import quick

N = 6
A = np.array([1.0, -2.0, 0.5, 3.0, 0.0, -1.0])
LOW, HIGH = np.linspace(-1.0, 0.0, N), np.linspace(0.0, 2.0, N)

EQUATIONS = np.stack([A, np.ones(N), A - np.ones(N)])  # the third follows from the others
RIGHT = np.array([0.5, 1.0, -0.5])

# Each set: its projection, and SciPy's bounds and constraints for its points.
CONVEX = {
    "non_negative": (pr.projection_non_negative, [(0, None)] * N, ()),
    "box": (lambda x: pr.projection_box(x, LOW, HIGH), list(zip(LOW, HIGH, strict=True)), ()),
    "hypercube": (lambda x: pr.projection_hypercube(x, 1.5), [(0, 1.5)] * N, ()),
    "linf_ball": (lambda x: pr.projection_linf_ball(x, 0.7), [(-0.7, 0.7)] * N, ()),
    "simplex": (
        lambda x: pr.projection_simplex(x, 1.3),
        [(0, None)] * N,
        ({"type": "eq", "fun": lambda y: y.sum() - 1.3},),
    ),
    "l2_ball": (
        lambda x: pr.projection_l2_ball(x, 1.2),
        None,
        ({"type": "ineq", "fun": lambda y: 1.2**2 - y @ y, "jac": lambda y: -2 * y},),
    ),
    "hyperplane": (
        lambda x: pr.projection_hyperplane(x, jnp.asarray(A, x.dtype), 0.5),
        None,
        ({"type": "eq", "fun": lambda y: A @ y - 0.5},),
    ),
    "halfspace": (
        lambda x: pr.projection_halfspace(x, jnp.asarray(A, x.dtype), 0.5),
        None,
        ({"type": "ineq", "fun": lambda y: 0.5 - A @ y},),
    ),
    "vector": (
        lambda x: pr.projection_vector(x, jnp.asarray(A, x.dtype)),
        None,
        ({"type": "eq", "fun": lambda y: scipy.linalg.null_space(A[None]).T @ y},),
    ),
    "affine_set": (
        lambda x: pr.projection_affine_set(x, jnp.asarray(EQUATIONS, x.dtype), RIGHT),
        None,
        ({"type": "eq", "fun": lambda y: EQUATIONS[:2] @ y - RIGHT[:2]},),
    ),
    "box_section": (
        lambda x: pr.projection_box_section(x, LOW, HIGH, A, 1.2),
        list(zip(LOW, HIGH, strict=True)),
        ({"type": "eq", "fun": lambda y: A @ y - 1.2},),
    ),
    "l1_ball": (lambda x: pr.projection_l1_ball(x, 1.1), None, None),
    "max_norm": (lambda x: pr.projection_max_norm(x, 0.9), None, None),
}
CLOSED = {
    **{name: entry[0] for name, entry in CONVEX.items()},
    "l1_sphere": lambda x: pr.projection_l1_sphere(x, 1.1),
    "l2_sphere": lambda x: pr.projection_l2_sphere(x, 1.2),
    "min_max_norm": lambda x: pr.projection_min_max_norm(x, 0.5, 0.9),
    "sparse_simplex": lambda x: pr.projection_sparse_simplex(x, 3, 1.3),
    "unit_norm": pr.projection_unit_norm,
}
COMPILED = {name: jax.jit(function) for name, function in CLOSED.items()}

vectors = st.lists(st.floats(-5, 5, allow_subnormal=False), min_size=N, max_size=N).map(np.array)
few = settings(max_examples=20, derandomize=True, deadline=None, database=None)


def run(name, x):
    with jax.enable_x64(True):
        return np.asarray(COMPILED[name](jnp.asarray(x, jnp.float64)))


@pytest.mark.parametrize("name", [n for n, entry in CONVEX.items() if entry[2] is not None])
def test_nearest_point_by_scipy(name):
    _, bounds, constraints = CONVEX[name]
    rng = np.random.default_rng(0)
    for x in 2 * rng.normal(size=(4, N)):
        found = scipy.optimize.minimize(
            lambda y, x=x: 0.5 * np.sum((y - x) ** 2),
            np.clip(x, LOW, HIGH),
            jac=lambda y, x=x: y - x,
            bounds=bounds,
            constraints=constraints,
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        assert found.status in (0, 8), found.message  # 8: no better point was found
        np.testing.assert_allclose(run(name, x), found.x, atol=2e-6)


def l1_ball_by_bisection(x, radius):
    if np.abs(x).sum() <= radius:
        return x
    theta = scipy.optimize.brentq(
        lambda t: np.maximum(np.abs(x) - t, 0).sum() - radius, 0, np.abs(x).max(), xtol=1e-15
    )
    return np.sign(x) * np.maximum(np.abs(x) - theta, 0)


def test_l1_ball_by_bisection():
    xs = np.random.default_rng(1).normal(size=(5, N)) * np.array([[0.1], [0.5], [1], [3], [9]])
    for x in [*xs, np.full(N, -1.05 / N)]:
        np.testing.assert_allclose(run("l1_ball", x), l1_ball_by_bisection(x, 1.1), atol=1e-12)


@pytest.mark.parametrize(("name", "power"), [("l1_sphere", 1), ("l2_sphere", 2)])
def test_no_point_of_the_sphere_is_nearer(name, power):
    rng = np.random.default_rng(2)
    radius = {"l1_sphere": 1.1, "l2_sphere": 1.2}[name]
    for x in [*rng.normal(size=(4, N)), 0.1 * rng.normal(size=N), np.eye(N)[0], np.zeros(N)]:
        p = run(name, x)
        np.testing.assert_allclose(np.linalg.norm(p, power), radius, rtol=1e-12)
        others = np.concatenate([rng.normal(size=(5000, N)), p + 0.01 * rng.normal(size=(5000, N))])
        others *= radius / np.linalg.norm(others, power, axis=1, keepdims=True)
        nearest = np.linalg.norm(others - x, axis=1).min()
        assert np.linalg.norm(p - x) <= nearest + 1e-12


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", CLOSED)
@few
@given(x=vectors)
def test_idempotent(name, x):
    once = run(name, x)
    np.testing.assert_allclose(run(name, once), once, atol=1e-12)


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", CONVEX)
@few
@given(x=vectors, y=vectors)
def test_non_expansive(name, x, y):
    before, after = np.linalg.norm(x - y), np.linalg.norm(run(name, x) - run(name, y))
    assert after <= before + 1e-12


@few
@given(x=vectors)
def test_simplex_certificate(x):
    # p is nearest if and only if no vertex is on the far side: <x - p, v - p> <= 0.
    p = run("simplex", x)
    assert p.min() >= 0
    np.testing.assert_allclose(p.sum(), 1.3, rtol=1e-12)
    assert ((x - p) @ (1.3 * np.eye(N) - p[:, None])).max() <= 1e-11


TREE = {"a": jnp.array([[0.3, -2.0], [1.5, 0.2]]), "b": (jnp.array([-0.4, 0.9]), None)}
NORMAL = jax.tree.map(lambda x: x[::-1] + 0.1, TREE)
OPTAX = {
    "box": (-0.5, 0.7),
    "halfspace": (NORMAL, 0.3),
    "hypercube": (0.8,),
    "hyperplane": (NORMAL, 0.3),
    "l1_ball": (1.5,),
    "l1_sphere": (1.5,),
    "l2_ball": (1.5,),
    "l2_sphere": (1.5,),
    "linf_ball": (0.6,),
    "non_negative": (),
    "simplex": (1.5,),
    "vector": (NORMAL,),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(OPTAX, "l1_ball", "simplex"))
def test_trees_equal_optax(name):
    ours, theirs = (getattr(m, f"projection_{name}") for m in (pr, optax.projections))
    own, other = (
        [(p.name, p.default) for p in inspect.signature(f).parameters.values()]
        for f in (ours, theirs)
    )
    assert own[: len(other)] == other
    arguments = OPTAX[name]
    if name == "hypercube":  # on a tree Optax fails
        theirs = lambda tree, scale, f=theirs: jax.tree.map(lambda x: f(x, scale), tree)  # noqa: E731
    if name == "box":  # Optax wants bounds of the tree's structure
        arguments = tuple(jax.tree.map(lambda x, b=b: jnp.full_like(x, b), TREE) for b in arguments)
    chex.assert_trees_all_close(ours(TREE, *OPTAX[name]), theirs(TREE, *arguments), rtol=2e-6)
    grads = [
        jax.grad(lambda t, f=f, a=a: optax.tree.vdot(NORMAL, f(t, *a)))(TREE)
        for f, a in ((ours, OPTAX[name]), (theirs, arguments))
    ]
    chex.assert_trees_all_close(*grads, rtol=1e-5, atol=1e-6)


def test_optax_exports_no_projection_more():
    names = {n for n in vars(optax.projections) if n.startswith("projection_")}
    assert names == {f"projection_{n}" for n in OPTAX}
    assert names < set(pr.__all__)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", CLOSED)
def test_low_precision(name, dtype):
    x = jnp.asarray(np.linspace(-3, 3, N), dtype)
    got = CLOSED[name](x)
    assert got.dtype == dtype
    want = run(name, np.asarray(x, np.float64))
    tolerance = 2 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
def test_a_zero_of_one_entry_gets_the_least_norm():
    assert pr.projection_min_max_norm(jnp.zeros(1), 0.5, 0.9).tolist() == [0.5]


@pytest.mark.quick(1)
@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_norms_neither_overflow_nor_vanish(size):
    x = jnp.array([3.0, 4.0]) * size
    np.testing.assert_allclose(pr.projection_l2_sphere(x), [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(pr.projection_l2_ball(x, size), x / 5, rtol=1e-6)
    np.testing.assert_allclose(pr.projection_unit_norm(x), [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(pr.projection_vector(jnp.ones(2), x), [0.84, 1.12], rtol=1e-6)
    plane = pr.projection_hyperplane(jnp.zeros(2), x, 25 * size)
    np.testing.assert_allclose(plane, [3.0, 4.0], rtol=1e-6)


@pytest.mark.slow
def test_simplex_of_large_and_many_entries():
    x = jnp.array([1e8, 1e8, -1e8])
    np.testing.assert_allclose(pr.projection_simplex(x), [0.5, 0.5, 0.0])
    many = jnp.asarray(np.random.default_rng(0).normal(size=100_000), jnp.float32)
    np.testing.assert_allclose(jnp.sum(pr.projection_simplex(many, 10.0)), 10.0, rtol=1e-5)


@pytest.mark.slow
def test_what_optax_gets_wrong():
    zero = jnp.zeros(4)
    np.testing.assert_allclose(pr.projection_l1_sphere(zero), 0.25 * jnp.ones(4))
    np.testing.assert_allclose(pr.projection_l2_sphere(zero), 0.5 * jnp.ones(4))
    np.testing.assert_array_equal(pr.projection_vector(jnp.ones(4), zero), zero)
    for projection in (pr.projection_simplex, pr.projection_l1_ball, pr.projection_l2_ball):
        np.testing.assert_array_equal(projection(jnp.arange(4.0), 0), zero)
    assert bool(jnp.all(jnp.isnan(pr.projection_simplex(jnp.array([jnp.nan, 1.0])))))
    y = pr.projection_hyperplane(jnp.array([1j, 2.0]), jnp.array([1.0, 1j]), 0.5)
    np.testing.assert_allclose(jnp.vdot(jnp.array([1.0, 1j]), y), 0.5, atol=1e-6)
    moduli = jnp.abs(pr.projection_linf_ball(jnp.array([3 + 4j, 0.1j])))
    np.testing.assert_allclose(moduli, [1.0, 0.1], rtol=1e-6)


@pytest.mark.parametrize("projection", [pr.projection_l2_sphere, pr.projection_unit_norm])
def test_a_vector_with_a_nan_is_not_one_of_zeros(projection):
    """Whose nearest point has equal entries: a run that diverged would go on from there."""
    assert np.isnan(projection(jnp.array([jnp.nan, 1.0]))).all()


X = jnp.ones((2, 3))
EMPTY = [
    (pr.projection_box, (X, 1.0, 0.0), "empty"),
    (pr.projection_hypercube, (X, -1.0), "empty"),
    (pr.projection_simplex, (X, -1.0), "empty"),
    (pr.projection_simplex, ({},), "no entries"),
    (pr.projection_l1_ball, (X, -1.0), "empty"),
    (pr.projection_l1_sphere, (X, -1.0), "empty"),
    (pr.projection_l2_ball, (X, float("nan")), "empty"),
    (pr.projection_l2_sphere, (X, -1.0), "empty"),
    (pr.projection_linf_ball, (X, -1.0), "empty"),
    (pr.projection_hyperplane, (X, jnp.zeros((2, 3)), 1.0), "empty"),
    (pr.projection_halfspace, (X, jnp.zeros((2, 3)), -1.0), "empty"),
    (pr.projection_min_max_norm, (X, 2.0, 1.0), "no norm"),
    (pr.projection_min_max_norm, (X, -1.0, 1.0), "min_value must"),
    (pr.projection_min_max_norm, (X, 0.5, -1.0), "max_value must"),
    (lambda x: pr.projection_min_max_norm(x, rate=1.5), (X,), r"rate must be a number in \[0, 1\]"),
    (pr.projection_max_norm, (X, -1.0), "max_value"),
    (pr.projection_max_norm, (X, 1.0, 2), "axis=2"),
    (
        pr.projection_max_norm,
        ({"a": X, "b": jnp.ones(2)}, 1.0, 1),
        r"axis=1 does not fit 'b', \(2,\)",
    ),
    (pr.projection_box, ({"a": X, "b": X}, {"a": 0.0, "b": 2.0}, 1.0), "empty at 'b'"),
    (pr.projection_hyperplane, ({"a": X}, {"a": jnp.ones(3)}, 1.0), "at 'a' a has the shape"),
    (pr.projection_box, ({"a": X}, {"b": 0.0}, 1.0), "lower"),
    (pr.projection_box, ({"a": X}, 0.0, jnp.ones(4)), r"upper at 'a' is \(4,\)"),
    (pr.projection_hyperplane, (X, jnp.ones(3), 1.0), "shape"),
    (pr.projection_hyperplane, (X, X, jnp.ones(2)), "b must be a number"),
    (pr.projection_l2_ball, (X, jnp.ones(2)), "scale must be a number"),
    (pr.projection_sparse_simplex, (X, 0), "max_nz must be an integer of at least 1"),
    (pr.projection_sparse_simplex, (jnp.zeros(0), 2), "the tree has no entries"),
    (lambda x: pr.projection_simplex(x, axis=2), ({"a": X},), r"axis=2 does not fit 'a', \(2, 3\)"),
    (lambda x: pr.projection_simplex(x, axis=(1, 1)), (X,), "does not fit"),
    (lambda x: pr.projection_l1_sphere(x, axis=0), (jnp.zeros((0, 2)),), "along axis=0 has no ent"),
    (pr.projection_affine_set, ({"a": X}, {"b": X}, jnp.ones(1)), "a must be a tree like x"),
    (pr.projection_affine_set, (X, X, jnp.ones(2)), r"shape \(2, 3\); .* must be \(2, 2, 3\)"),
    (pr.projection_affine_set, (X, X[None], 1.0), "b must be a vector"),
    (pr.projection_affine_set, (X, jnp.ones((2, 2, 3)), jnp.arange(2.0)), "no point solves all 2"),
    (pr.projection_affine_set, ({}, {}, jnp.ones(1)), "empty"),
    (pr.projection_max_norm, (X, jnp.ones(3)), "max_value must be one number"),
    (lambda x: pr.projection_min_max_norm(x, rate=jnp.ones(3)), (X,), "rate must be one number"),
    (pr.projection_box_section, (X, 1.0, 0.0, 1.0, 1.0), "the box is empty"),
    (pr.projection_box_section, (X, 0.0, 1.0, X, 6.1), "empty for c=6.1: .* from 0 to 6"),
    (pr.projection_box_section, (X, 0.0, np.inf, -X, 0.1), "from -inf to 0"),
    (pr.projection_box_section, (X, 0.0, 1.0, 1.0, jnp.ones(2)), "c must be a number"),
    (pr.projection_box_section, (X, 0.0, 1.0, jnp.ones(4), 1.0), r"w at '' is \(4,\)"),
]


@pytest.mark.parametrize(("projection", "arguments", "message"), EMPTY)
def test_empty_sets_and_wrong_shapes_are_refused(projection, arguments, message):
    with pytest.raises(ValueError, match=message):
        projection(*arguments)


def test_wrong_types_are_refused():
    with pytest.raises(TypeError, match="'a' is int32"):
        pr.projection_l2_ball({"a": jnp.arange(3)})
    with pytest.raises(TypeError, match="real floating point"):
        pr.projection_simplex(jnp.ones(2) + 1j)
    with pytest.raises(TypeError, match="Rows"):
        pr.projection_simplex(gradtx.Rows(jnp.arange(2), jnp.ones((2, 1)), (3, 1)))


@pytest.mark.slow
def test_traced_sets_compile():
    got = jax.jit(pr.projection_simplex)(TREE, jnp.float32(1.5))
    chex.assert_trees_all_close(got, pr.projection_simplex(TREE, 1.5), rtol=1e-6)
    got = jax.jit(pr.projection_box)(jnp.ones(2), jnp.float32(2.0), jnp.float32(3.0))
    np.testing.assert_array_equal(got, [2.0, 2.0])


def test_complex_entries_keep_their_phase_in_a_ball_of_any_size():
    x = jnp.array([3 + 4j, 1 + 1j, 0])
    np.testing.assert_allclose(pr.projection_linf_ball(x, 2), [1.2 + 1.6j, 1 + 1j, 0], rtol=1e-6)
    for kind in (np.uint8, jnp.uint8):  # whose negative would be 254
        assert pr.projection_linf_ball(jnp.array([-3.0, 1.0]), kind(2)).tolist() == [-2, 1]


@pytest.mark.slow
def test_leaves_of_very_different_sizes():
    """All are divided by, or lowered by, the largest entry of the tree, not that of a leaf."""
    found = pr.projection_l2_ball({"a": jnp.array([1e-25]), "b": jnp.array([1e25])})
    chex.assert_trees_all_close(found, {"a": jnp.zeros(1), "b": jnp.ones(1)})
    found = pr.projection_simplex({"a": jnp.array([1e8]), "b": jnp.zeros(1)})
    chex.assert_trees_all_close(found, {"a": jnp.ones(1), "b": jnp.zeros(1)})


@pytest.mark.slow
@pytest.mark.parametrize("axis", [0, 1])
def test_norms_along_an_axis_go_a_part_of_the_way(axis):
    """A vector of zeros gets equal entries."""
    x = np.random.default_rng(0).normal(size=(4, 4)) * [[3], [1], [0.1], [1]]
    np.moveaxis(x, axis, 0)[:, 3] = 0
    norm = np.linalg.norm(x, axis=axis, keepdims=True)
    want = 0.7 * norm + 0.3 * np.clip(norm, 0.5, 0.9)
    unit = np.where(norm > 0, x / np.where(norm > 0, norm, 1), 0.5)
    found = pr.projection_min_max_norm(jnp.asarray(x), 0.5, 0.9, rate=0.3, axis=axis)
    np.testing.assert_allclose(found, want * unit, rtol=1e-5)
    found = pr.projection_max_norm(jnp.asarray(x), 0.9, axis=axis)
    np.testing.assert_allclose(found, np.minimum(norm, 0.9) * unit, rtol=1e-5)
    np.testing.assert_allclose(pr.projection_unit_norm(jnp.asarray(x), axis=axis), unit, rtol=1e-5)
