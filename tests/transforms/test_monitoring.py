"""Measurements kept in the state."""

import jax.numpy as jnp
import numpy as np
import optax

import gradtx
from tests.oracle import gradients, parameters

P = jnp.asarray(parameters(), jnp.float32)


GS = jnp.asarray(gradients(), jnp.float32)


def test_monitor_averages():
    tx = gradtx.monitor({"m": gradtx.measure_with_ema(jnp.mean, 0.5), "now": jnp.max})
    theirs = optax.monitor({"m": optax.measure_with_ema(jnp.mean, 0.5), "now": jnp.max})
    state, state_optax = tx.init(P), theirs.init(P)
    for g in GS[:4]:
        _, state = tx.update(g, state, P)
        _, state_optax = theirs.update(g, state_optax, P)
    for name in ("m", "now"):
        np.testing.assert_allclose(
            state.measurements[name], state_optax.measurements[name], rtol=1e-5
        )
