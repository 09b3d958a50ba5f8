"""L-BFGS against Liu and Nocedal, Optax, and SciPy's count of evaluations."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx

A = np.diag([1.0, 3.0, 10.0, 0.5]) + 0.2


def transcription(p, steps, memory, rate, scaled=True):
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
        h = (gamma if scaled else 1.0) * np.eye(len(p))
        for s, y in pairs:
            v = np.eye(len(p)) - np.outer(y, s) / (y @ s)
            h = v.T @ h @ v + np.outer(s, s) / (y @ s)
        before = p, g
        p = p - rate * h @ g
        path.append(p)
    return np.stack(path)


@pytest.mark.quick(1)
@pytest.mark.paper("lbfgs")
@pytest.mark.parametrize("memory", [1, 3])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("size", [100.0, 1.5, 0.5])
def test_lbfgs_is_the_papers(memory, scaled, size):
    """From a point with a gradient of norm above 1, which shortens the first step, and below."""
    rate = 0.3 if scaled else 0.05
    with jax.enable_x64(True):
        p = np.array([1.0, -2.0, 3.0, 4.0])
        p *= size / np.linalg.norm(A @ p)
        got = run(gradtx.lbfgs(rate, memory, scaled, linesearch=None), p, 20)
    want = transcription(p, 20, memory, rate, scaled)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-12)


@pytest.mark.slow
def test_the_start_is_scaled_by_the_newest_pair_that_counts():
    """Of two steps with curvature and one without: with that, gamma is of the second."""
    points = np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [2, 1, 0.5]])
    gradients = np.array([[0.0, 1, 2], [2, 1, 3], [2.5, 5, 2], [1, 4, 3]])
    tx = gradtx.scale_by_lbfgs(memory_size=5)
    with jax.enable_x64(True):
        state = tx.init(jnp.asarray(points[0]))
        update = jax.jit(tx.update)
        for p, g in zip(points, gradients, strict=True):
            got, state = update(g, state, p)
    s, y = np.diff(points, axis=0)[:2], np.diff(gradients, axis=0)[:2]
    h = s[1] @ y[1] / (y[1] @ y[1]) * np.eye(3)
    for step, change in zip(s, y, strict=True):
        v = np.eye(3) - np.outer(change, step) / (change @ step)
        h = v.T @ h @ v + np.outer(step, step) / (change @ step)
    np.testing.assert_allclose(got, h @ gradients[-1], rtol=1e-12)
    assert np.sum(np.asarray(state.weights_memory) > 0) == 2


@pytest.mark.slow
def test_without_a_rate_the_first_step_is_as_long_as_the_gradient_but_at_most_1():
    tx = gradtx.lbfgs(linesearch=None)
    for g, length in (([3.0, 4.0], 1.0), ([0.3, 0.4], 0.5)):
        update, _ = tx.update(jnp.array(g), tx.init(jnp.zeros(2)), jnp.zeros(2))
        np.testing.assert_allclose(update, -length * np.array([0.6, 0.8]), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [1, 3])
def test_like_optax(memory):
    with jax.enable_x64(True):
        p = np.array([1.0, -2.0, 3.0, 4.0])
        got = run(gradtx.lbfgs(0.1, memory, linesearch=None), p, 100)
        theirs = run(optax.lbfgs(0.1, memory, linesearch=None), p, 100)
        np.testing.assert_allclose(got, theirs, rtol=1e-5, atol=1e-9)


def run(tx, p, steps, **extra):
    def step(carry, _):
        p, state = carry
        updates, state = tx.update(jnp.asarray(A) @ p, state, p, **extra)
        return (p + updates, state), p + updates

    return np.asarray(jax.lax.scan(step, (p, tx.init(p)), None, steps)[1])


def test_state_is_optax_s():
    p = jnp.ones(3)
    for ours, theirs in (
        (gradtx.lbfgs().init(p), optax.lbfgs().init(p)),
        (gradtx.scale_by_lbfgs(3).init(p), optax.scale_by_lbfgs(3).init(p)),
    ):
        mine = [x.shape for x in jax.tree.leaves(ours)]
        assert mine == [jnp.shape(x) for x in jax.tree.leaves(theirs)]
    assert gradtx.scale_by_lbfgs().init(p)._fields == optax.scale_by_lbfgs().init(p)._fields


@pytest.mark.slow
def test_no_pair_without_curvature():
    """On a concave function the direction still descends."""
    tx, p = gradtx.scale_by_lbfgs(), jnp.array([1.0, 2.0])
    _, state = tx.update(-p, tx.init(p), p)
    q = p + 0.1
    direction, state = tx.update(-q, state, q)
    assert state.weights_memory.tolist() == [0.0] * 10
    assert float(direction @ -q) > 0


@pytest.mark.slow
@pytest.mark.parametrize("scale_init_precond", [False, True])
def test_a_concave_start_without_a_line_search(scale_init_precond):
    """A pair with cosine 0.003 made the product 1e5 times as large: the parameters went to 117."""

    def loss(x):
        return jnp.sum(0.1 * x**4 - x**2)

    def step(carry, _):
        p, state = carry
        updates, state = tx.update(jax.grad(loss)(p), state, p)
        return (p + updates, state), loss(p)

    tx = gradtx.lbfgs(1e-3, scale_init_precond=scale_init_precond, linesearch=None)
    p = jnp.array([-1.446257, 1.539381, 0.38250625, 1.9707018])
    losses = jax.lax.scan(step, (p, tx.init(p)), None, 15)[1]
    assert (np.diff(losses) < 0).all()


@pytest.mark.slow
def test_a_leaf_without_gradient_keeps_its_memory():
    tx = gradtx.lbfgs()
    p = {"a": jnp.ones(2), "b": jnp.ones(3)}
    extra = {"value": jnp.float32(2.0), "value_fn": lambda p: jnp.sum(p["a"] ** 2)}
    g = {"a": 2 * p["a"], "b": None}
    state = tx.init(p)
    updates, new = tx.update(g, state, p, grad=g, **extra)
    assert updates["b"] is None
    assert jax.tree.structure(new) == jax.tree.structure(state)


@pytest.mark.slow
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


# As in benchmarks.search, which imports SciPy and scikit-learn.
PROBLEMS = [
    "Rosenbrock, 2 dimensions",
    "Rosenbrock, 10",
    "Rosenbrock, 100",
    "Rosenbrock, 1,000",
    "quadratic, 20, condition 1e3",
    "quadratic, 20, condition 1e4",
    "quadratic, 50, condition 1e3, turned",
    "logistic regression, breast cancer",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_evaluations_beside_scipy(name):
    """At most 1.2 times as many as L-BFGS-B to the same norm, each point evaluated once."""
    for package in ("scipy", "sklearn", "threadpoolctl"):
        pytest.importorskip(package)
    from benchmarks import search

    assert list(search.PROBLEMS) == PROBLEMS
    with jax.enable_x64(True):
        problem = search.PROBLEMS[name]()
        result, points = search.gradtx_s(problem)
        assert int(result.status) == gradtx.Status.CONVERGED
        grad = jax.grad(problem.loss)(result.params, *problem.args)
        assert float(jnp.linalg.norm(grad)) <= search.TOLERANCE * (1 + 1e-6)
        assert len(points) <= 1.2 * search.scipy_s(problem)
    assert len(points) == len(set(points))


def test_each_state_has_its_own_arrays():
    """One that is donated does not take another one's with it."""
    tx, p = gradtx.scale_by_lbfgs(2), jnp.ones(2)
    first, second = tx.init(p), tx.init(p)
    assert first.weights_memory is not second.weights_memory


@pytest.mark.parametrize("scale", [1e10, 1e-12])
def test_a_pair_counts_whatever_its_size(scale):
    """The squares of its norms, multiplied, are no number; the cosine between them is 1."""
    tx, x = gradtx.scale_by_lbfgs(), jnp.zeros(2)
    _, state = tx.update(-scale * jnp.ones(2), tx.init(x), x)
    x = jnp.full(2, scale)
    _, state = tx.update(scale * jnp.ones(2), state, x)
    np.testing.assert_allclose(state.weights_memory.max(), 0.25 / scale**2, rtol=1e-5)


NEWTONS = ["scale_by_lbfgs", "scale_by_lbfgsb", "scale_by_bfgs", "scale_by_ssbroyden"]


@pytest.mark.parametrize("size", [1e-33, 1e-19, 1e20, 1e30])
@pytest.mark.parametrize("name", NEWTONS)
def test_the_size_of_a_loss_does_not_count(name, size):
    """Where squares of gradients are beyond the range of float32: one pair has all curvature."""
    tx, x = getattr(gradtx, name)(), jnp.array([1.0, 2.0])
    first, state = tx.update(size * x, tx.init(x), x)
    np.testing.assert_allclose(gradtx.global_norm(first), min(1, size * 5**0.5), rtol=1e-6)
    x = x / 2
    np.testing.assert_allclose(tx.update(size * x, state, x)[0], x, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lbfgs", "lbfgsb", "bfgs", "ssbroyden"])
def test_a_loss_without_a_minimum_falls_until_nothing_is_left_of_it(name):
    """Logistic regression on classes that a line separates: gradients go to zero."""
    x = jax.random.normal(jax.random.key(0), (50, 5))
    labels = jnp.sign(x @ jnp.ones(5))

    def loss(p):
        return jnp.mean(jax.nn.softplus(-labels * (x @ p)))

    found = gradtx.solve(loss, jnp.zeros(5), getattr(gradtx, name)(), max_steps=300)
    assert found.value < 1e-30
    assert np.all(np.isfinite(found.params))
