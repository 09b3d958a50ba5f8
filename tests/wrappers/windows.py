"""A compiled run over gradients of which several belong to one window."""

import jax
import jax.numpy as jnp

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
