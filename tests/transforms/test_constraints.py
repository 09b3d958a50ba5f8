"""Parameters that stay in a set."""

import jax.numpy as jnp

import gradtx


def test_parameters_stay_nonnegative():
    p = jnp.array([1.0, 0.1])
    tx = gradtx.keep_params_nonnegative()
    updates, _ = tx.update(jnp.array([-2.0, 0.1]), tx.init(p), p)
    assert float(jnp.min(p + updates)) == 0.0
