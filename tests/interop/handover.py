"""Both sides of a run that is handed over in its middle: the gradients, and going on here."""

import jax
import jax.numpy as jnp
import numpy as np

import gradtx
from tests import oracle


def gradients(shapes, steps):
    """Gradients for each step, as lists over the parameters."""
    columns = [oracle.gradients(i + 9, s, steps) for i, s in enumerate(shapes)]
    return [[np.asarray(c[i], np.float32) for c in columns] for i in range(steps)]


def go_on(tx, state, params, gs):
    """Parameters and state after the steps that are left."""

    def step(carry, g):
        return gradtx.apply_gradients(tx, g, *carry), None

    carry = [jnp.asarray(p) for p in params], state
    stacked = [jnp.stack(column) for column in zip(*gs, strict=True)]
    return jax.jit(lambda c, g: jax.lax.scan(step, c, g))(carry, stacked)[0]
