"""The line searches: their conditions, Optax's numbers, and what they leave for the next step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx

SCALES = np.array([1.0, 10.0, 100.0])


def loss(x):
    return 0.5 * jnp.sum(SCALES * x**2) + jnp.sum(jnp.cos(x))


def run(lib, tx, steps):
    x, path = jnp.array([1.0, 2.0, -1.0]), []
    state = tx.init(x)
    evaluate = lib.value_and_grad_from_state(loss)

    @jax.jit
    def step(x, state):
        value, grad = evaluate(x, state=state)
        updates, state = tx.update(grad, state, x, value=value, grad=grad, value_fn=loss)
        return x + updates, state, value, grad, updates

    for _ in range(steps):
        before = x
        x, state, value, grad, updates = step(x, state)
        path.append((before, updates, value, grad, state))
    return x, path


def test_backtracking_like_optax():
    def make(lib):
        return lib.chain(lib.sgd(1.0), lib.scale_by_backtracking_linesearch(30, store_grad=True))

    ours, theirs = run(gradtx, make(gradtx), 100), run(optax, make(optax), 100)
    for mine, other in zip(ours[1][:40], theirs[1][:40], strict=True):
        np.testing.assert_allclose(mine[1], other[1], rtol=1e-5, atol=1e-6)
        assert int(mine[4][1].info[0]) == int(other[4][1].info[0])


def test_backtracking_transcription():
    """Armijo's rule in float64."""
    with jax.enable_x64(True):

        def f(x):
            return 0.5 * np.sum(SCALES * x**2) + np.sum(np.cos(x))

        tx = gradtx.chain(gradtx.sgd(1.0), gradtx.scale_by_backtracking_linesearch(40))

        @jax.jit
        def step(y, state):
            value, grad = jax.value_and_grad(loss)(y)
            updates, state = tx.update(grad, state, y, value=value, grad=grad, value_fn=loss)
            return y + updates, state

        x, rate = np.array([1.0, 2.0, -1.0]), 1.0
        y, state = jnp.asarray(x), tx.init(jnp.asarray(x))
        for _ in range(50):
            g = SCALES * x - np.sin(x)
            rate = min(1.5 * rate, 1.0)
            while f(x - rate * g) > f(x) - 1e-4 * rate * g @ g:
                rate *= 0.8
            x = x - rate * g
            y, state = step(y, state)
            np.testing.assert_allclose(y, x, rtol=1e-5, atol=1e-9)
            if np.linalg.norm(g) < 1e-5:  # below, differences of the loss are rounding
                break


def test_zoom_meets_both_conditions():
    tx = gradtx.chain(gradtx.scale(-1.0), gradtx.scale_by_zoom_linesearch(20, curv_rtol=0.1))
    with jax.enable_x64(True):
        x, path = run(gradtx, tx, 25)
        for before, updates, value, grad, state in path:
            slope = float(grad @ updates)
            after, grad_after = jax.value_and_grad(loss)(before + updates)
            assert float(after) <= float(value) + 1e-4 * slope + 1e-6 * abs(float(value))
            assert abs(float(grad_after @ updates)) <= 0.1 * abs(slope) + 1e-12
            # What it keeps belongs to the point that it chose.
            np.testing.assert_allclose(state[1].value, after, rtol=1e-12)
            np.testing.assert_allclose(state[1].grad, grad_after, rtol=1e-8, atol=1e-10)
        assert float(loss(x)) < float(loss(jnp.array([1.0, 2.0, -1.0])))


@pytest.mark.parametrize("start", [0.001, 0.3, 40.0, 1e4])
def test_zoom_finds_the_valley_like_optax(start):
    """From any first rate, as Optax does, and with no more evaluations."""
    counts, values = [], []

    def f(x):
        return (x - 3.0) ** 4 + (x - 3.0) ** 2

    for lib in (gradtx, optax):
        tx = lib.chain(lib.scale(-start), lib.scale_by_zoom_linesearch(40, curv_rtol=0.01))
        x = jnp.float32(0.0)
        grad = jax.grad(f)(x)
        updates, state = tx.update(grad, tx.init(x), x, value=f(x), grad=grad, value_fn=f)
        counts.append(int(state[1].info.num_linesearch_steps))
        values.append(float(f(x + updates)))
    assert values[0] < 0.5
    assert counts[0] <= counts[1] + 1


@pytest.mark.parametrize(
    "search",
    [gradtx.scale_by_zoom_linesearch(30), gradtx.scale_by_backtracking_linesearch(30)],
    ids=["zoom", "backtracking"],
)
def test_outside_the_domain(search):
    """A loss that is infinite or NaN beyond a wall: the step stays inside."""

    def f(x):
        return -jnp.log(1 - x) - 5 * x

    tx = gradtx.chain(gradtx.scale(-100.0), search)
    result = gradtx.solve(f, jnp.float32(0.0), tx, max_steps=50)
    np.testing.assert_allclose(result.params, 0.8, rtol=2e-2)


def test_no_way_down_is_no_step():
    tx = gradtx.scale_by_zoom_linesearch(10)
    x = jnp.array([1.0, 2.0])
    grad = jax.grad(lambda x: jnp.sum(x**2))(x)
    extra = {"value": jnp.sum(x**2), "grad": grad, "value_fn": lambda x: jnp.sum(x**2)}
    updates, state = tx.update(grad, tx.init(x), x, **extra)
    assert updates.tolist() == [0.0, 0.0]
    assert int(state.info.num_linesearch_steps) == 0
    assert float(state.value) == 5.0


def test_the_rate_recovers_after_a_failure():
    tx = gradtx.scale_by_backtracking_linesearch(2, increase_factor=1.0)
    x = jnp.float32(1.0)
    extra = {"value": x, "grad": x}
    updates, state = tx.update(-x, tx.init(x), x, value_fn=lambda x: x * jnp.nan, **extra)
    assert float(updates) == 0.0
    assert float(state.value) == 1.0
    updates, _ = tx.update(-x, state, x, value_fn=lambda x: x, **extra)
    assert float(updates) == -1.0


def test_arguments_of_the_loss_are_passed_on():
    tx = gradtx.chain(gradtx.scale(-1.0), gradtx.scale_by_zoom_linesearch(10))

    def f(x, target):
        return (x - target) ** 2

    x = jnp.float32(0.0)
    grad = jax.grad(f)(x, 3.0)
    extra = {"value": f(x, 3.0), "grad": grad, "value_fn": f, "target": 3.0, "unrelated": 1}
    updates, _ = tx.update(grad, tx.init(x), x, **extra)
    np.testing.assert_allclose(updates, 3.0, rtol=1e-5)


def test_missing_extra_arguments_are_named():
    tx = gradtx.scale_by_zoom_linesearch(10)
    with pytest.raises(ValueError, match="value_fn"):
        tx.update(jnp.ones(2), tx.init(jnp.ones(2)), jnp.ones(2))
    with pytest.raises(ValueError, match="0 values"):
        gradtx.value_and_grad_from_state(loss)(jnp.ones(2), state=gradtx.adam(0.1).init(1.0))


def counted(function):
    calls = []

    def wrapped(x):
        jax.debug.callback(lambda x: calls.append(np.asarray(x).tobytes()), x)
        return function(x)

    return wrapped, calls


@pytest.mark.parametrize(
    "tx",
    [
        gradtx.sgd(0.02),
        gradtx.chain(gradtx.sgd(1.0), gradtx.scale_by_backtracking_linesearch(20, store_grad=True)),
        gradtx.lbfgs(),
    ],
    ids=["sgd", "backtracking", "lbfgs"],
)
@pytest.mark.parametrize("tol", [None, 1e-2])
def test_solve_evaluates_no_point_twice(tx, tol):
    f, calls = counted(lambda x: 0.5 * jnp.sum(SCALES[:2] * x**2))
    x = jnp.array([1.0, -2.0])
    result = gradtx.solve(f, x, tx, max_steps=8, tol=tol)
    jax.block_until_ready(result)
    jax.effects_barrier()
    assert len(calls) == len(set(calls))
    np.testing.assert_allclose(result.value, 0.5 * np.sum(SCALES[:2] * result.params**2), rtol=1e-5)


def test_solve_does_not_trust_a_search_that_is_not_last():
    """What follows the search moves the point, so its value is of another one."""
    search = gradtx.scale_by_zoom_linesearch(20)
    tx = gradtx.chain(gradtx.scale(-1.0), search, gradtx.scale(0.5))
    result = gradtx.solve(lambda x: jnp.sum(SCALES * x**2), jnp.ones(3), tx, max_steps=3)
    np.testing.assert_allclose(result.value, np.sum(SCALES * result.params**2), rtol=1e-5)


def test_solve_compiles_once():
    traces = []

    def f(x):
        traces.append(None)
        return jnp.sum(x**2)

    tx = gradtx.lbfgs()
    gradtx.solve(f, jnp.ones(2), tx)
    before = len(traces)
    gradtx.solve(f, 2 * jnp.ones(2), gradtx.lbfgs())
    assert len(traces) == before
