"""A valley with steep and flat sides, and a run of a line search down it."""

import jax
import jax.numpy as jnp
import numpy as np

SCALES = np.array([1.0, 10.0, 100.0])


def loss(x):
    # A JAX trace that fails keeps the type of a NumPy array in it, whatever the next one's is.
    return 0.5 * jnp.sum(jnp.array(SCALES, x.dtype) * x**2) + jnp.sum(jnp.cos(x))


def run(lib, tx, steps):
    x, path = jnp.array([1.0, 2.0, -1.0]), []
    state = tx.init(x)
    evaluate = lib.value_and_grad_from_state(loss)

    @jax.jit
    def step(x, state):
        value, grad = evaluate(x, state=state)
        updates, state = tx.update(grad, state, x, value=value, grad=grad, value_fn=loss)
        return x + updates, state, value, grad, updates

    for _ in range(steps):
        before = x
        x, state, value, grad, updates = step(x, state)
        path.append((before, updates, value, grad, state))
    return x, path
