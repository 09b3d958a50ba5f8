"""Dense quasi-Newton methods against their papers, SciPy, and published minima."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx

A = np.diag([1.0, 3.0, 10.0, 0.5]) + 0.2
START = np.array([1.0, -2.0, 3.0, 4.0])
MINIMA = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "minima.json").read_text())


def gradient(p):
    """Of a function that is not quadratic."""
    return A @ p + 0.1 * p**3


def weights(method, b, h, n):
    """Tau and phi: Nocedal and Wright; Al-Baali 1998; Urbán et al. 2024, equations 13 to 23."""
    if method == "bfgs":
        return 1.0, 1.0
    first = min(1.0, 1 / b)
    if method == "ssbfgs":
        return first, 1.0
    a = b * h - 1
    c = np.sqrt(a / (a + 1))
    rho = min(1.0, h * (1 - c))
    theta = max((rho - 1) / a, min(1 / rho, (1 - b) / b))
    sigma = 1 + a * theta
    root = sigma ** (-1 / (n - 1))
    tau = first * min(root, 1 / theta) if theta > 0 else min(first * root, sigma)
    return tau, (1 - theta) / (1 + a * theta)


def transcription(p, steps, method, rate, scaled):
    """The matrix as the papers write it, in float64."""
    n, h, fresh, before, path = len(p), np.eye(len(p)), True, None, []
    used = []
    for _ in range(steps):
        g = gradient(p)
        if before is not None:
            s, y = p - before[0], g - before[1]
            rho = 1 / (y @ s)
            tau, phi = 1.0, 1.0
            if fresh and scaled:
                h = h * (y @ s) / (y @ y)
            else:
                b = s @ np.linalg.solve(h, s) * rho
                tau, phi = weights(method, b, y @ h @ y * rho, n)
            used.append((tau, phi))
            v = s * rho - h @ y / (y @ h @ y)
            h = h - np.outer(h @ y, h @ y) / (y @ h @ y) + phi * (y @ h @ y) * np.outer(v, v)
            h = h / tau + np.outer(s, s) * rho
            fresh = False
        shorter = min(1.0, 1 / np.linalg.norm(g)) if fresh and scaled else 1.0
        before = p, g
        p = p - rate * shorter * h @ g
        path.append(p)
    return np.stack(path), h, used


def run(tx, p, steps):
    def step(carry, _):
        p, state = carry
        updates, state = tx.update(jnp.asarray(A) @ p + 0.1 * p**3, state, p)
        return (p + updates, state), p + updates

    (_, state), path = jax.lax.scan(step, (p, tx.init(p)), None, steps)
    return np.asarray(path), state[0]


MAKE = {
    "bfgs": gradtx.bfgs,
    "ssbfgs": lambda *a, **k: gradtx.bfgs(*a, self_scaled=True, **k),
    "ssbroyden": gradtx.ssbroyden,
}


@pytest.mark.quick(1)
@pytest.mark.paper("bfgs", "ssbroyden")
@pytest.mark.parametrize("method", MAKE)
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("size", [8.0, 3.0])
def test_the_matrix_is_the_papers(method, scaled, size):
    rate = 0.4 if scaled else 0.05
    tx = MAKE[method](rate, scale_init_precond=scaled, linesearch=None)
    with jax.enable_x64(True):
        p = START * size / np.linalg.norm(START)
        got, state = run(tx, p, 12)
        want, h, used = transcription(p, 12, method, rate, scaled)
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(state.inverse, h, rtol=1e-7, atol=1e-10)
    assert (len(set(used)) == 1) == (method == "bfgs")


@pytest.mark.parametrize(
    ("b", "h", "n"),
    [
        (0.3, 4.0, 4),
        (3.0, 0.4, 4),
        (3.0, 0.4, 2),
        (0.99, 1.02, 4),
        (20.0, 0.06, 4),
        (20.0, 0.5, 4),
        (0.02, 300.0, 4),
        (1.5, 0.9, 4),
    ],
)
def test_each_case_of_the_self_scaled_weights(b, h, n):
    """One step from a diagonal matrix with these two numbers, over theta on both sides of 0."""
    # A step along the first axis from H = I has b = s.s / y.s and h = y.y / y.s.
    size = 1 / b
    across = np.sqrt(max(h * b - 1, 0)) / b
    p = np.zeros(n)
    change = np.array([size, across, 0, 0])[:n]
    g = np.array([-1.0, 0.0, 0.0, 0.0])[:n]
    tx = gradtx.scale_by_ssbroyden(scale_init_precond=False)
    with jax.enable_x64(True):
        first, state = tx.update(jnp.asarray(g), tx.init(jnp.asarray(p)), jnp.asarray(p))
        step = -np.asarray(first)
        _, state = tx.update(jnp.asarray(g + change), state, jnp.asarray(p + step))
    tau, phi = weights("ssbroyden", b, h, n)
    v = step / (change @ step) - change / (change @ change)
    want = np.eye(n) - np.outer(change, change) / (change @ change)
    want = want + phi * (change @ change) * np.outer(v, v)
    want = want / tau + np.outer(step, step) / (change @ step)
    np.testing.assert_allclose(state.inverse, want, rtol=1e-10, atol=1e-12)


@pytest.mark.library("bfgs")
def test_the_inverse_is_scipy_s():
    """On SciPy's own path, its estimate of the inverse Hessian."""
    optimize = pytest.importorskip("scipy.optimize")
    tx = gradtx.scale_by_bfgs(scale_init_precond=False)
    path = [START]
    theirs = optimize.minimize(
        lambda x: (x @ A @ x / 2 + np.sum(x**4) / 40, gradient(x)),
        START,
        jac=True,
        method="BFGS",
        callback=lambda x: path.append(np.array(x)),
        options={"maxiter": 6},
    )
    with jax.enable_x64(True):
        state = tx.init(jnp.asarray(START))
        for x in path:
            _, state = tx.update(jnp.asarray(gradient(x)), state, jnp.asarray(x))
    assert len(path) == 7
    np.testing.assert_allclose(state.inverse, theirs.hess_inv, rtol=1e-8, atol=1e-12)


@pytest.mark.slow
def test_a_pair_without_curvature_changes_nothing_and_a_step_of_zero_starts_again():
    tx, p = gradtx.scale_by_bfgs(), jnp.array([1.0, 2.0])
    _, state = tx.update(-p, tx.init(p), p)
    direction, state = tx.update(-(p + 0.1), state, p + 0.1)
    np.testing.assert_array_equal(state.inverse, np.eye(2))
    assert bool(state.is_initial)
    _, state = tx.update(2 * (p + 0.4), state, p + 0.4)
    assert not bool(state.is_initial)
    assert not np.allclose(state.inverse, np.eye(2))
    direction, state = tx.update(jnp.array([3.0, 4.0]), state, p + 0.4)
    np.testing.assert_array_equal(state.inverse, np.eye(2))
    assert bool(state.is_initial)
    np.testing.assert_allclose(direction, [0.6, 0.8], rtol=1e-6)


@pytest.mark.parametrize("size", [1e-3, 1e3])
@pytest.mark.parametrize("cosine", [0.5, 2.0])
def test_a_pair_counts_from_a_cosine_of_the_last_place(cosine, size):
    """Whatever the lengths of the step and of the gradients' difference."""
    tx, eps = gradtx.scale_by_bfgs(), np.finfo(np.float32).eps
    p, g = np.zeros(2, np.float32), np.zeros(2, np.float32)
    state = tx.update(g, tx.init(p), p)[1]
    g, p = np.float32([cosine * eps * size, size]), np.float32([1 / size, 0.0])
    assert bool(tx.update(g, state, p)[1].is_initial) == (cosine < 1)


@pytest.mark.slow
def test_the_first_step_is_at_most_as_long_as_1():
    """If it is scaled, and otherwise the gradient."""
    p = np.zeros(2, np.float32)
    tx = gradtx.bfgs(linesearch=None)
    for g, want in ([0.3, -0.4], [-0.3, 0.4]), ([0.9, 1.2], [-0.6, -0.8]):
        got = tx.update(g := np.float32(g), tx.init(p), p)[0]
        np.testing.assert_allclose(got, want, rtol=1e-6)
    for make in MAKE.values():
        tx = make(scale_init_precond=False, linesearch=None)
        np.testing.assert_array_equal(tx.update(g, tx.init(p), p)[0], -g)


@pytest.mark.slow
def test_a_leaf_without_gradient_keeps_its_rows():
    tx, p = gradtx.scale_by_bfgs(), {"a": jnp.ones(2), "b": jnp.ones(3), "c": jnp.ones(1)}
    state = tx.init(p)
    for scale in (1.0, 0.5, 0.3):
        q = {"a": scale * p["a"], "b": p["b"], "c": scale * p["c"]}
        g = {"a": jnp.array([2.0, 5.0]) * q["a"], "b": None, "c": 3 * q["c"]}
        updates, state = tx.update(g, state, q)
        assert updates["b"] is None
    inverse = np.asarray(state.inverse)
    np.testing.assert_array_equal(inverse[2:5, :2], 0)
    np.testing.assert_array_equal(inverse[2:5, 5], 0)
    assert inverse[0, 5] != 0


@pytest.mark.slow
def test_complex_numbers_are_two_real_ones():
    target = np.array([1 + 2j, -1j])
    scales = np.array([1.0, 7.0])

    def loss(z):
        return jnp.sum(scales * jnp.abs(z - target) ** 2)

    def of_pair(x):
        return loss(x[:2] + 1j * x[2:])

    with jax.enable_x64(True):
        ours = gradtx.solve(loss, np.zeros(2, complex), gradtx.bfgs(), max_steps=4)
        theirs = gradtx.solve(of_pair, np.zeros(4), gradtx.bfgs(), max_steps=4)
        assert gradtx.scale_by_bfgs().init(np.zeros(2, complex)).inverse.shape == (4, 4)
    pair = np.asarray(theirs.params)
    np.testing.assert_allclose(ours.params, pair[:2] + 1j * pair[2:], rtol=1e-8, atol=1e-10)


SMALL = [name for name, found in MINIMA["unbounded"].items() if found[1:]]
# Self-scaled BFGS has one of the two numbers that change between the others.
PUBLISHED = [(m, name) for m in ("bfgs", "ssbroyden") for name in SMALL]
PUBLISHED += [("ssbfgs", name) for name in SMALL[::3]]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "name"), PUBLISHED)
def test_published_minima(method, name):
    """Of those with up to 100 parameters: the lowest that SciPy finds, or a lower one."""
    from benchmarks.problems import UNBOUNDED

    problem = UNBOUNDED[name]()
    with jax.enable_x64(True):
        result = gradtx.solve(problem.loss, problem.start, MAKE[method](), max_steps=3000, tol=1e-5)
    assert int(result.status) == gradtx.Status.CONVERGED
    want = min(MINIMA["unbounded"][name])
    assert float(result.value) <= want + 1e-6 * max(1, abs(want))
