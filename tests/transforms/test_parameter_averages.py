"""Averages of the parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests.oracle import gradients, parameters, run

P = jnp.asarray(parameters(), jnp.float32)


GS = jnp.asarray(gradients(), jnp.float32)


def final_state(tx):
    def step(carry, g):
        p, state = carry
        updates, state = tx.update(g, state, p)
        return (p + updates, state), None

    return jax.jit(lambda: jax.lax.scan(step, (P, tx.init(P)), GS)[0])()


def test_averages_of_parameters():
    path = np.asarray(run(gradtx.sgd(0.1), P, GS), np.float64)
    tx = gradtx.chain(gradtx.sgd(0.1), gradtx.ema_params(0.9))
    want = np.asarray(P, np.float64)
    for p in path:
        want = 0.9 * want + 0.1 * p
    p, state = final_state(tx)
    np.testing.assert_allclose(gradtx.eval_params(tx, state, p), want, rtol=1e-5, atol=1e-6)
    tx = gradtx.chain(gradtx.sgd(0.1), gradtx.swa_params(start=5, every=7))
    p, state = final_state(tx)
    want = path[5 + 7 - 1 :: 7].mean(0)
    np.testing.assert_allclose(gradtx.eval_params(tx, state, p), want, rtol=1e-5, atol=1e-6)


def test_average_of_some_leaves_and_of_none():
    params = {"a": jnp.ones(1), "b": jnp.ones(1, jnp.bfloat16)}
    tx = gradtx.masked(gradtx.ema_params(0.5), "b")
    _, state = tx.update(params, tx.init(params), params)
    found = gradtx.eval_params(tx, state, params)
    assert float(found["b"][0]) == 1.5
    assert found["b"].dtype == jnp.bfloat16
    assert float(found["a"][0]) == 1.0
    with pytest.raises(ValueError, match="no average"):
        gradtx.eval_params(gradtx.sgd(1.0), gradtx.sgd(1.0).init(params), params)
