"""Updates let through at every k-th step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import gradtx
from tests.oracle import gradients, parameters

P = jnp.asarray(parameters(), jnp.float32)


GS = jnp.asarray(gradients(steps=24), jnp.float32)


def run(tx, gs, **stacked):
    def step(carry, xs):
        p, state = carry
        g, extra = xs
        updates, state = tx.update(g, state, p, **extra)
        return (p + updates, state), updates

    return jax.jit(lambda: jax.lax.scan(step, (P, tx.init(P)), (gs, stacked)))()


def test_apply_every():
    (_, _), updates = run(gradtx.apply_every(3), GS[:6].at[0, 0, 0].set(jnp.inf))
    (_, _), want = run(optax.apply_every(3), GS[:6])
    np.testing.assert_allclose(updates[5], want[5], rtol=1e-6)
    np.testing.assert_array_equal(updates[4], 0.0)
