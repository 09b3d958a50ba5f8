"""Both line searches: what they refuse, and what they leave for the next step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx

SCALES = np.array([1.0, 10.0, 100.0])


def loss(x):
    return 0.5 * jnp.sum(SCALES * x**2) + jnp.sum(jnp.cos(x))


@pytest.mark.slow
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


def test_the_rate_recovers_after_a_failure():
    tx = gradtx.scale_by_backtracking_linesearch(2, increase_factor=1.0)
    x = jnp.float32(1.0)
    extra = {"value": x, "grad": x}
    updates, state = tx.update(-x, tx.init(x), x, value_fn=lambda x: x * jnp.nan, **extra)
    assert float(updates) == 0.0
    assert float(state.value) == 1.0
    updates, _ = tx.update(-x, state, x, value_fn=lambda x: x, **extra)
    assert float(updates) == -1.0


@pytest.mark.slow
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


@pytest.mark.parametrize("lib", [gradtx, optax])
@pytest.mark.parametrize("store_grad", [False, True])
def test_no_one_line_search_of_several_is_chosen(lib, store_grad):
    search = lib.scale_by_backtracking_linesearch(10, store_grad=store_grad)
    state = lib.chain(search, search).init(jnp.ones(2))
    with pytest.raises(KeyError):
        lib.value_and_grad_from_state(loss)(jnp.ones(2), state=state)


def counted(function):
    calls = []

    def wrapped(x):
        jax.debug.callback(lambda x: calls.append(np.asarray(x).tobytes()), x)
        return function(x)

    return wrapped, calls


@pytest.mark.quick(1)
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


@pytest.mark.slow
def test_solve_does_not_trust_a_search_that_is_not_last():
    """What follows the search moves the point, so its value is of another one."""
    search = gradtx.scale_by_zoom_linesearch(20)
    tx = gradtx.chain(gradtx.scale(-1.0), search, gradtx.scale(0.5))
    result = gradtx.solve(lambda x: jnp.sum(SCALES * x**2), jnp.ones(3), tx, max_steps=3)
    np.testing.assert_allclose(result.value, np.sum(SCALES * result.params**2), rtol=1e-5)


@pytest.mark.slow
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


SEARCHES = {
    "backtracking": lambda: gradtx.scale_by_backtracking_linesearch(10, store_grad=True),
    "zoom": lambda: gradtx.scale_by_zoom_linesearch(10),
    "lbfgs": lambda: gradtx.lbfgs(),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("constant", [False, True])
def test_numbers_of_python(name, constant):
    """Values, gradients and parameters that are not arrays, and a loss that does not return one."""

    def squares(p):
        return 3.0 if constant else (p["a"] - 1.0) ** 2 + (p["b"] - 2.0) ** 2

    tx, p, g = SEARCHES[name](), {"a": 0.0, "b": 0.0}, {"a": -2.0, "b": -4.0}
    found = []
    for params, grads, value in (
        (p, g, 5.0),
        *[[jax.tree.map(jnp.asarray, x) for x in (p, g, 5.0)]],
    ):
        updates, state = tx.update(
            grads, tx.init(params), params, value=value, grad=grads, value_fn=squares
        )
        moved = gradtx.apply_updates(params, updates)
        found.append((updates, gradtx.value_and_grad_from_state(squares)(moved, state=state)))
    jax.tree.map(np.testing.assert_array_equal, *found)


@pytest.mark.slow
@pytest.mark.parametrize("lib", [gradtx, optax])
def test_values_in_states_of_optax_and_inside_others(lib):
    def nested(tx):
        return lib.apply_if_finite(lib.named_chain(("a", lib.sgd(1.0)), ("b", tx)), 2)

    x = jnp.array([1.0, 2.0, -1.0])
    for tx in (lib.lbfgs(), nested(lib.scale_by_backtracking_linesearch(10, store_grad=True))):
        evaluate = gradtx.value_and_grad_from_state(loss)
        value, grad = evaluate(x, state=tx.init(x))
        want = jax.value_and_grad(loss)(x)
        np.testing.assert_allclose(value, want[0], rtol=1e-6)
        np.testing.assert_allclose(grad, want[1], rtol=1e-6)
        updates, state = tx.update(grad, tx.init(x), x, value=value, grad=grad, value_fn=loss)
        stored = evaluate(jnp.full(3, np.nan), state=state)  # from the state
        np.testing.assert_allclose(stored[0], loss(x + updates), rtol=1e-5)


@pytest.mark.parametrize("lib", [gradtx, optax])
def test_a_search_that_sees_some_parameters_has_no_gradient_of_all(lib):
    p = {"a": jnp.ones(2), "b": jnp.ones(2)}
    tx = lib.masked(lib.scale_by_zoom_linesearch(5), {"a": True, "b": False})
    with pytest.raises(ValueError, match="does not cover all the parameters"):
        gradtx.value_and_grad_from_state(lambda p: jnp.sum(p["a"]))(p, state=tx.init(p))


@pytest.mark.slow
@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("make", [gradtx.lbfgs, gradtx.lbfgsb, gradtx.bfgs])
def test_a_jitted_step_compiles_once_and_traces_its_loss_twice(make, x64):
    """Once for the gradient and once for the search: types of the state that changed would add."""
    traced = []
    with jax.enable_x64(x64):
        tx, x = make(), jnp.array([3.0, -2.0])

        def loss(x):
            traced.append(x.dtype)
            return jnp.sum((x - 1) ** 4)

        @jax.jit
        def step(x, state):
            return gradtx.minimize(loss, tx, x, state)

        state, values = tx.init(x), []
        for _ in range(4):
            x, state, value = step(x, state)
            values.append(float(value))
        assert x.dtype == (jnp.float64 if x64 else jnp.float32)
    assert step._cache_size() == 1
    assert len(traced) == 2
    assert values[-1] < values[0] / 10


@pytest.mark.slow
def test_outside_of_jit_later_searches_compile_nothing(caplog):
    tx, x = gradtx.lbfgs(), jnp.array([3.0, -2.0])

    def loss(x):
        return jnp.sum((x - 1) ** 4)

    state, seen = tx.init(x), []
    for i in range(5):
        caplog.clear()
        with jax.log_compiles(i > 0):
            x, state, _ = gradtx.minimize(loss, tx, x, state)
        seen.append(sum("Compiling" in record.getMessage() for record in caplog.records))
    assert seen[2:] == [0, 0, 0]
    jax.clear_caches()
    with jax.log_compiles():
        gradtx.minimize(loss, tx, x, state)
    assert any("Compiling" in record.getMessage() for record in caplog.records)


@pytest.mark.slow
def test_an_argument_of_the_loss_named_value_keeps_its_default():
    def loss(x, value=2.0):
        return jnp.sum((x - value) ** 2)

    tx = gradtx.chain(gradtx.sgd(1.0), gradtx.scale_by_backtracking_linesearch(15))
    x = jnp.zeros(1)
    value, grad = jax.value_and_grad(loss)(x)
    updates, _ = tx.update(grad, tx.init(x), x, value=value, grad=grad, value_fn=loss)
    assert loss(x + updates) < value
