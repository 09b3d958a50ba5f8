"""Lookahead against Optax, around pairs of parameters and plain ones."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests.oracle import gradients, parameters

P = jnp.asarray(parameters(), jnp.float32)


GS = jnp.asarray(gradients(), jnp.float32)


@pytest.mark.quick(1)
@pytest.mark.parametrize("reset", [False, True])
def test_lookahead_like_optax_and_with_plain_parameters(reset):
    ours = gradtx.lookahead(gradtx.adam(0.1), 3, 0.5, reset)
    theirs = optax.lookahead(optax.adam(0.1), 3, 0.5, reset)
    pair, pair_optax = gradtx.LookaheadParams.init_synced(P), optax.LookaheadParams.init_synced(P)
    p, plain = P, ours.init(P)
    state, state_optax = ours.init(pair), theirs.init(pair_optax)
    step, step_optax = jax.jit(ours.update), jax.jit(theirs.update)
    for g in GS[:10]:
        u, state = step(g, state, pair)
        pair = gradtx.apply_updates(pair, u)
        u, state_optax = step_optax(g, state_optax, pair_optax)
        pair_optax = optax.apply_updates(pair_optax, u)
        u, plain = step(g, plain, p)
        p = p + u
    np.testing.assert_allclose(pair.slow, pair_optax.slow, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(pair.fast, pair_optax.fast, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(p, pair.fast, rtol=1e-5, atol=1e-6)
    slow = gradtx.eval_params(ours, plain, p)
    np.testing.assert_allclose(slow, gradtx.eval_params(ours, state, pair), rtol=1e-5, atol=1e-6)


def test_a_restart_is_where_training_goes_on():
    inner = gradtx.schedule_free(gradtx.sgd(0.1), 0.1, b1=0.5)
    tx = gradtx.lookahead(inner, 2, 0.5, reset_state=True)
    params = jnp.array([4.0])
    state = tx.init(params)
    for _ in range(2):
        updates, state = tx.update(params, state, params)
        params = gradtx.apply_updates(params, updates)
    assert state.fast_state.z.tolist() == params.tolist()
    assert tx.update(jnp.zeros(1), state, params)[0].tolist() == [0.0]


def test_a_restart_where_a_leaf_has_no_gradient():
    tx = gradtx.lookahead(gradtx.adam(0.1), 2, 0.5, reset_state=True)
    params = {"a": jnp.ones(2), "b": jnp.full(3, 2.0)}
    grads = {"a": jnp.ones(2), "b": None}
    state = before = tx.init(params)
    for _ in range(2):
        params, state = gradtx.apply_gradients(tx, grads, params, state)
    assert jax.tree.structure(state) == jax.tree.structure(before)
    np.testing.assert_allclose(params["a"], 0.9, rtol=1e-5)
    np.testing.assert_array_equal(params["b"], 2.0)
    np.testing.assert_array_equal(gradtx.get_slot(state, "mu")["a"], 0)
