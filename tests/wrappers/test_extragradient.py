"""Extragradient steps against their papers, in games that gradient descent loses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx

RIVAL = gradtx.masked(gradtx.scale(-1.0), "y")
START = {"x": jnp.array([1.0, -0.5]), "y": jnp.array([0.5, 2.0, 1.0])}
PAYOFF = np.array([[1.0, -2.0, 0.5], [0.3, 1.0, -1.0]])


def game(p):
    return p["x"] @ PAYOFF @ p["y"] + 0.05 * jnp.sum(p["x"] ** 2)


def field(x, y):
    """The gradients, of `y` with the sign of ascent."""
    return PAYOFF @ y + 0.1 * x, -x @ PAYOFF


@pytest.mark.slow
@pytest.mark.paper("extragradient")
def test_extragradient_is_the_papers():
    """Korpelevich 1976: two evaluations of the field, both steps from the same point."""
    tx = gradtx.extragradient(gradtx.chain(RIVAL, gradtx.sgd(0.2)))
    x, y = (np.asarray(START[k], float) for k in "xy")
    with jax.enable_x64(True):
        params = jax.tree.map(lambda a: jnp.asarray(a, float), START)
        state = tx.init(params)
        for _ in range(20):
            f, g = field(x, y)
            f, g = field(x - 0.2 * f, y - 0.2 * g)
            x, y = x - 0.2 * f, y - 0.2 * g
            params, state, _ = gradtx.minimize(game, tx, params, state)
    np.testing.assert_allclose(params["x"], x, rtol=1e-9)
    np.testing.assert_allclose(params["y"], y, rtol=1e-9)


def test_with_adam_both_steps_change_the_moments():
    """Gidel et al. 2019, algorithm 4, with one state for both steps."""
    adam = gradtx.adam(0.1, b1=0.5)
    tx, p = gradtx.extragradient(adam), jnp.array([1.0, -2.0])
    gradient = jax.grad(lambda x: jnp.sum(x**4))
    updates, state = tx.update(gradient(p), tx.init(p), p, value_fn=lambda x: jnp.sum(x**4))
    first, between = adam.update(gradient(p), adam.init(p), p)
    want, after = adam.update(gradient(p + first), between, p)
    np.testing.assert_allclose(updates, want, rtol=1e-6)
    for a, b in zip(jax.tree.leaves(state.inner_state), jax.tree.leaves(after), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def distance(tx, steps=200):
    """From the solution of x * y, which is zero, by `make_step`."""
    step = gradtx.make_step(lambda p: p["x"] * p["y"], tx)
    params = {"x": jnp.array(1.0), "y": jnp.array(1.0)}
    state = step.init(params)
    for _ in range(steps):
        params, state, _ = step(params, state)
    return float(jnp.hypot(params["x"], params["y"]))


@pytest.mark.slow
def test_gradient_descent_loses_the_bilinear_game_and_both_others_win_it():
    """Each step of descent is a turn that lengthens by sqrt(1 + eta^2)."""
    lost = distance(gradtx.chain(RIVAL, gradtx.sgd(0.3)))
    np.testing.assert_allclose(lost, 2**0.5 * (1 + 0.09) ** 100, rtol=1e-3)
    won = distance(gradtx.extragradient(gradtx.chain(RIVAL, gradtx.sgd(0.3))))
    np.testing.assert_allclose(won, 2**0.5 * (1 - 0.09 + 0.0081) ** 100, rtol=1e-3)
    assert distance(gradtx.chain(RIVAL, gradtx.optimistic_gradient_descent(0.3))) < 1e-2


@pytest.mark.slow
def test_a_matrix_game_on_simplices():
    """Rock, paper, scissors with other stakes: the value and the strategies are known."""
    stakes = jnp.array([[0.0, -1.0, 2.0], [1.0, 0.0, -1.0], [-2.0, 1.0, 0.0]])
    inside = gradtx.chain(gradtx.project("simplex", "x"), gradtx.project("simplex", "y"))
    plain = gradtx.chain(RIVAL, gradtx.sgd(0.2), inside)
    start = {"x": jnp.array([1.0, 0.0, 0.0]), "y": jnp.array([0.0, 1.0, 0.0])}

    def loss(p):
        return p["x"] @ stakes @ p["y"]

    won = gradtx.solve(loss, start, gradtx.extragradient(plain), max_steps=400).params
    for player in won.values():
        np.testing.assert_allclose(player, [0.25, 0.5, 0.25], atol=1e-3)
    lost = gradtx.solve(loss, start, plain, max_steps=400).params
    assert np.abs(lost["x"] - np.array([0.25, 0.5, 0.25])).max() > 0.1


def test_a_game_in_which_each_player_has_a_loss():
    def gradients(p):
        return {"x": 2 * p["x"] + p["y"], "y": 4 * p["y"] - p["x"] - 1}

    tx = gradtx.extragradient(gradtx.sgd(0.2))
    params = {"x": jnp.array(1.0), "y": jnp.array(1.0)}
    state = tx.init(params)
    for _ in range(100):
        updates, state = tx.update(gradients(params), state, params, grad_fn=gradients)
        params = gradtx.apply_updates(params, updates)
    np.testing.assert_allclose([params["x"], params["y"]], [-1 / 9, 2 / 9], rtol=1e-5)


def test_what_is_not_trained_has_no_second_gradient():
    tx = gradtx.extragradient(gradtx.sgd(0.1))
    params = {"x": jnp.array(1.0), "y": jnp.array(2.0)}
    state = tx.init(gradtx.select(params, "x"))
    new, _, _ = gradtx.minimize(lambda p: p["x"] * p["y"], tx, params, state, trainable="x")
    assert {k: round(float(v), 5) for k, v in new.items()} == {"x": 0.8, "y": 2.0}


def test_without_a_function_it_says_what_to_pass():
    tx, p = gradtx.extragradient(gradtx.sgd(0.1)), jnp.ones(2)
    with pytest.raises(ValueError, match="value_fn"):
        tx.update(p, tx.init(p), p)
