"""64 settings in one compiled program.

A hyperparameter that is an array is a leaf of the transformation, so a vector of them can be mapped
over: one program trains with all of them.

Search: hyperparameter sweep, grid search, vmap over learning rates, tuning
"""

import jax
import jax.numpy as jnp

import gradtx

x = jax.random.normal(jax.random.key(0), (64, 8))
y = x @ jnp.arange(8.0)


def loss(params):
    return jnp.mean((x @ params - y) ** 2)


@jax.jit
def train(rate, decay):
    tx = gradtx.adamw(rate, weight_decay=decay)
    result = gradtx.solve(loss, jnp.zeros(8), tx, max_steps=100)
    return loss(result.params)


rates, decays = jnp.logspace(-4, 1, 16), jnp.array([0.0, 1e-3, 1e-2, 1e-1])
grid = jax.vmap(jax.vmap(train, (None, 0)), (0, None))(rates, decays)
i, j = jnp.unravel_index(jnp.argmin(grid), grid.shape)
print(f"best of {grid.size}: rate {rates[i]:.3g}, decay {decays[j]:.3g}, loss {grid[i, j]:.3g}")
assert grid[i, j] < grid[0, 0]
