"""Penalties around a gradient step: the rate that their maps get, acceleration, what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 12)) * 10.0 ** -np.linspace(0, 1, 12), RNG.normal(size=40)


def squares(w):
    return jnp.mean((X @ w - Y) ** 2) / 2


def soft(x, most):
    return np.sign(x) * np.maximum(np.abs(x) - most, 0)


@pytest.mark.paper("proximal")
def test_fista_with_restarts_in_float64():
    """Beck and Teboulle's (4.1) to (4.3), with the gradient scheme of O'Donoghue and Candès."""
    curvature = np.array([1.0, 0.05])
    rates = 0.9 * np.arange(1.0, 41) ** -0.125
    x, y, w, restarts = np.ones(2), np.ones(2), 1.0, 0
    with jax.enable_x64(True):
        tx = gradtx.proximal(
            gradtx.sgd(lambda count: 0.9 * (count + 1.0) ** -0.125),
            "l1",
            None,
            {"strength": 0.002},
            True,
        )
        params = jnp.ones(2)
        state = tx.init(params)
        step = jax.jit(tx.update)
        for rate in rates:
            updates, state = step(curvature * params, state, params)
            params = gradtx.apply_updates(params, updates)
            new = soft(y - rate * curvature * y, rate * 0.002)
            if (y - new) @ (new - x) > 0:
                w, restarts = 1.0, restarts + 1
            following = (1 + np.sqrt(1 + 4 * w**2)) / 2
            y = new + (w - 1) / following * (new - x)
            x, w = new, following
            np.testing.assert_allclose(params, y, atol=1e-6)
        np.testing.assert_allclose(gradtx.eval_params(tx, state, params), x, atol=1e-6)
    assert 0 < restarts < 40


@pytest.mark.parametrize(
    ("inner", "rate"),
    [
        (gradtx.sgd(0.5), 0.5),
        (gradtx.sgd(gradtx.linear_schedule(0.25, 1.0, 10)), 0.25),
        (gradtx.chain(gradtx.clip_by_global_norm(2.5), gradtx.scale(-0.5)), 0.25),
    ],
)
def test_the_map_gets_the_rate_of_the_step(inner, rate):
    """Also where there is no gradient to tell it by, if it does not depend on one."""
    tx = gradtx.proximal(inner, "l1", "w", {"strength": 0.4})
    params = {"w": jnp.array([1.0, -2.0]), "b": jnp.array([1.0])}
    grads = {"w": jnp.array([3.0, 0.0]), "b": jnp.array([4.0])}
    updates, _ = tx.update(grads, tx.init(params), params)
    new = gradtx.apply_updates(params, updates)
    np.testing.assert_allclose(new["w"], soft(params["w"] - rate * grads["w"], rate * 0.4), 1e-6)
    np.testing.assert_allclose(new["b"], 1 - 4 * rate, 1e-6)


def test_a_gradient_of_zero_leaves_the_penalty():
    tx = gradtx.proximal(gradtx.sgd(0.5), "l1", arguments={"strength": 0.4})
    params = jnp.array([1.0, 0.1])
    updates, _ = tx.update(jnp.zeros(2), tx.init(params), params)
    np.testing.assert_allclose(params + updates, [0.8, 0.0])


@pytest.mark.slow
def test_acceleration_takes_fewer_steps_to_the_same_point():
    def solved(accelerated):
        tx = gradtx.proximal(gradtx.sgd(0.7), "l1", None, {"strength": 0.01}, accelerated)
        return gradtx.solve(squares, jnp.zeros(12), tx, tol=1e-9, max_steps=50_000)

    with jax.enable_x64(True):
        fast, slow = solved(True), solved(False)
    assert int(fast.status) == int(slow.status) == gradtx.Status.CONVERGED
    np.testing.assert_allclose(fast.params, slow.params, atol=1e-5)
    assert 0 < np.count_nonzero(np.asarray(fast.params)) < 12
    assert int(fast.steps) < int(slow.steps) / 4


@pytest.mark.slow
def test_points_stay_in_a_set_when_they_are_extrapolated():
    def loss(x):
        return jnp.sum((x - jnp.array([2.0, -1.0])) ** 2 * jnp.array([1.0, 0.01]))

    box = {"lower": 0.0, "upper": 1.0}
    tx = gradtx.proximal(gradtx.sgd(0.4), "box", None, box, True)
    result = gradtx.solve(loss, jnp.full(2, 0.5), tx, record=True)
    path = np.asarray(result.path.params)
    assert path.min() >= 0
    assert path.max() <= 1
    np.testing.assert_array_equal(result.params, [1.0, 0.0])


@pytest.mark.slow
@pytest.mark.parametrize("penalty", ["group_lasso", "nuclear_norm", "total_variation"])
def test_the_solution_is_differentiated_by_the_strength(penalty):
    target = jnp.asarray(RNG.normal(size=(3, 4)))

    def solution(strength):
        tx = gradtx.proximal(gradtx.sgd(0.5), penalty, arguments={"strength": strength})
        result = gradtx.solve(
            lambda x, t: jnp.sum((x - t) ** 2) / 2,
            jnp.zeros((3, 4)),
            tx,
            target,
            max_steps=200,
            implicit=True,
        )
        return result.params

    with jax.enable_x64(True):
        exact = (solution(jnp.array(0.3 + 1e-5)) - solution(jnp.array(0.3 - 1e-5))) / 2e-5
        by_strength = jax.jacrev(solution)(jnp.array(0.3))
    np.testing.assert_allclose(by_strength, exact, atol=1e-6)


def test_a_function_of_ones_own():
    def half(tree, rate, by):
        return jax.tree.map(lambda x: x - rate * by, tree)

    tx = gradtx.proximal(gradtx.sgd(0.5), half, arguments={"by": 2.0})
    assert float(tx.update(jnp.array(1.0), tx.init(0.0), jnp.array(3.0))[0]) == -1.5


@pytest.mark.parametrize(
    ("inner", "words"),
    [
        (gradtx.adam(0.1), "scale_by_adam does not multiply the gradient by one number"),
        (gradtx.sgd(0.1, momentum=0.9), "trace .* pass accelerated=True for momentum"),
        (gradtx.partition({"a": gradtx.sgd(0.1)}, "a"), "partition does not multiply"),
    ],
)
def test_a_preconditioner_is_refused_with_the_reason(inner, words):
    with pytest.raises(ValueError, match=words):
        gradtx.proximal(inner, "l1", arguments={"strength": 1.0})


def test_a_penalty_that_is_none_or_lacks_an_argument():
    with pytest.raises(ValueError, match=r"no penalty 'huber'; there are l1, l2, .*box"):
        gradtx.proximal(gradtx.sgd(0.1), "huber")
    with pytest.raises(TypeError, match="strength"):
        gradtx.proximal(gradtx.sgd(0.1), "l1")


@pytest.mark.parametrize("clip", [1.0, 0.01])
def test_a_clip_does_not_shorten_the_rate_of_a_zero_gradient(clip):
    inner = gradtx.chain(gradtx.clip_by_global_norm(clip), gradtx.sgd(0.1))
    tx = gradtx.proximal(inner, "l1", arguments={"strength": 1.0})
    params = jnp.full(100, 5.0)
    updates, _ = tx.update(jnp.zeros(100), tx.init(params), params)
    np.testing.assert_allclose(updates, -0.1, rtol=1e-6)


def test_accelerated_a_leaf_without_a_gradient_does_not_move():
    tx = gradtx.proximal(gradtx.sgd(0.1), "l1", arguments={"strength": 0.1}, accelerated=True)
    params = {"a": jnp.ones(1), "b": jnp.ones(1)}
    updates, state = tx.update({"a": jnp.ones(1), "b": None}, tx.init(params), params)
    assert updates["b"] is None
    assert state.previous["b"].tolist() == [1.0]
    np.testing.assert_allclose(updates["a"], -0.11, rtol=1e-6)
