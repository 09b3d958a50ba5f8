"""L-BFGS against Liu and Nocedal, Optax, and SciPy's count of evaluations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx

A = np.diag([1.0, 3.0, 10.0, 0.5]) + 0.2


def rosenbrock(x):
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def transcription(p, steps, memory, rate):
    """Liu and Nocedal 1989, algorithm 2.1 with fixed rates: the matrix itself, in float64."""
    pairs, path, before = [], [], None
    for _ in range(steps):
        g = A @ p
        if before is not None:
            pairs = [*pairs, (p - before[0], g - before[1])][-memory:]
        gamma = min(1.0, 1 / np.linalg.norm(g))
        if pairs:
            s, y = pairs[-1]
            gamma = (s @ y) / (y @ y)
        h = gamma * np.eye(len(p))
        for s, y in pairs:
            v = np.eye(len(p)) - np.outer(y, s) / (y @ s)
            h = v.T @ h @ v + np.outer(s, s) / (y @ s)
        before = p, g
        p = p - rate * h @ g
        path.append(p)
    return np.stack(path)


def run(tx, p, steps, **extra):
    def step(carry, _):
        p, state = carry
        updates, state = tx.update(jnp.asarray(A) @ p, state, p, **extra)
        return (p + updates, state), p + updates

    return np.asarray(jax.lax.scan(step, (p, tx.init(p)), None, steps)[1])


@pytest.mark.parametrize("memory", [1, 3])
def test_the_paper_and_optax(memory):
    with jax.enable_x64(True):
        p = np.array([1.0, -2.0, 3.0, 4.0])
        got = run(gradtx.lbfgs(0.3, memory, linesearch=None), p, 50)
        np.testing.assert_allclose(got, transcription(p, 50, memory, 0.3), rtol=1e-5, atol=1e-9)
        got = run(gradtx.lbfgs(0.1, memory, linesearch=None), p, 100)
        theirs = run(optax.lbfgs(0.1, memory, linesearch=None), p, 100)
        np.testing.assert_allclose(got, theirs, rtol=1e-5, atol=1e-9)


def test_state_is_optax_s():
    p = jnp.ones(3)
    for ours, theirs in (
        (gradtx.lbfgs().init(p), optax.lbfgs().init(p)),
        (gradtx.scale_by_lbfgs().init(p), optax.scale_by_lbfgs().init(p)),
    ):
        mine = [x.shape for x in jax.tree.leaves(ours)]
        assert mine == [jnp.shape(x) for x in jax.tree.leaves(theirs)]
    assert gradtx.scale_by_lbfgs().init(p)._fields == optax.scale_by_lbfgs().init(p)._fields


def test_no_pair_without_curvature():
    """On a concave function the direction still descends."""
    tx, p = gradtx.scale_by_lbfgs(), jnp.array([1.0, 2.0])
    _, state = tx.update(-p, tx.init(p), p)
    q = p + 0.1
    direction, state = tx.update(-q, state, q)
    assert state.weights_memory.tolist() == [0.0] * 10
    assert float(direction @ -q) > 0


def test_a_leaf_without_gradient_keeps_its_memory():
    tx = gradtx.lbfgs()
    p = {"a": jnp.ones(2), "b": jnp.ones(3)}
    extra = {"value": jnp.float32(2.0), "value_fn": lambda p: jnp.sum(p["a"] ** 2)}
    g = {"a": 2 * p["a"], "b": None}
    state = tx.init(p)
    updates, new = tx.update(g, state, p, grad=g, **extra)
    assert updates["b"] is None
    assert jax.tree.structure(new) == jax.tree.structure(state)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.complex64])
def test_other_types(dtype):
    target = jnp.asarray([1.0, -2.0, 3.0], dtype)
    if dtype == jnp.complex64:
        target = target * (1 + 1j)

    def loss(x):
        return jnp.sum(jnp.abs((x - target).astype(jnp.promote_types(dtype, "f4"))) ** 2)

    result = gradtx.solve(loss, jnp.full_like(target, 4.0), gradtx.lbfgs(), max_steps=30)
    assert result.params.dtype == dtype
    np.testing.assert_allclose(
        np.asarray(result.params, np.complex128), np.asarray(target, np.complex128), atol=1e-2
    )


def quadratic(x, scales):
    return 0.5 * jnp.sum(scales * x**2)


def turned(condition, n):
    """A quadratic whose axes are not those of the coordinates."""
    rng = np.random.default_rng(n)
    axes, _ = np.linalg.qr(rng.normal(size=(n, n)))
    matrix = (axes * np.geomspace(1, condition, n)) @ axes.T
    return lambda x, a, b: 0.5 * x @ a @ x - b @ x, np.zeros(n), (matrix, rng.normal(size=n))


def logistic(w, x, y):
    return jnp.mean(jnp.logaddexp(0, -y * (x @ w))) + 0.005 * w @ w


def breast_cancer():
    datasets = pytest.importorskip("sklearn.datasets")
    x, y = datasets.load_breast_cancer(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    return logistic, np.zeros(31), (np.c_[x, np.ones(len(x))], 2.0 * y - 1)


PROBLEMS = {
    "rosenbrock 2": lambda: (rosenbrock, np.array([-1.2, 1.0]), ()),
    "rosenbrock 10": lambda: (rosenbrock, np.tile([-1.2, 1.0], 5), ()),
    "rosenbrock 100": lambda: (rosenbrock, np.zeros(100), ()),
    "rosenbrock 1000": lambda: (rosenbrock, np.tile([-1.2, 1.0], 500), ()),
    "quadratic, condition 1e3": lambda: (quadratic, np.ones(20), (np.logspace(0, 3, 20),)),
    "quadratic, condition 1e4": lambda: (quadratic, np.ones(20), (np.logspace(0, 4, 20),)),
    "quadratic, condition 1e3, turned": lambda: turned(1e3, 50),
    "logistic": breast_cancer,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_evaluations_beside_scipy(name):
    """At most 1.2 times as many as L-BFGS-B to the same norm, each point evaluated once."""
    optimize = pytest.importorskip("scipy.optimize")
    threads = pytest.importorskip("threadpoolctl")  # comes with scikit-learn
    tol = 1e-5
    with jax.enable_x64(True):
        loss, start, args = PROBLEMS[name]()
        both = jax.jit(jax.value_and_grad(functools.partial(_call, loss)))
        norms = []

        def scipy_s(x):
            value, grad = map(np.asarray, both(x, args))
            norms.append(np.linalg.norm(grad))
            return value, grad

        # Its gtol bounds the largest entry: small enough that the norm is within `tol`.
        gtol = tol / len(start) ** 0.5
        options = {"ftol": 0, "gtol": gtol, "maxiter": 10_000, "maxfun": 10_000}
        # Threads that wait for each other over vectors of a thousand numbers take 15 times as long.
        with threads.threadpool_limits(1):
            optimize.minimize(scipy_s, start, jac=True, method="L-BFGS-B", options=options)
        theirs = 1 + next(i for i, norm in enumerate(norms) if norm <= tol)

        points = []

        def counted(x, *args):
            jax.debug.callback(lambda x: points.append(np.asarray(x).tobytes()), x)
            return loss(x, *args)

        result = gradtx.solve(counted, start, gradtx.lbfgs(), *args, max_steps=10_000, tol=tol)
        jax.block_until_ready(result)
        jax.effects_barrier()
        assert int(result.status) == gradtx.Status.CONVERGED
        assert float(jnp.linalg.norm(both(result.params, args)[1])) <= tol * (1 + 1e-6)
    assert len(points) <= 1.2 * theirs
    assert len(points) == len(set(points))


def _call(loss, x, args):
    return loss(x, *args)
