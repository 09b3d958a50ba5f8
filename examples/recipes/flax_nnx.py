"""Flax nnx, with batch norm and dropout.

`nnx.Optimizer` takes a gradtx transformation just as it takes one from Optax.

Search: flax, nnx, nnx.Optimizer
"""

import jax
import jax.numpy as jnp
from flax import nnx

import gradtx


class Model(nnx.Module):
    def __init__(self, rngs):
        self.inner = nnx.Linear(4, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.outer = nnx.Linear(16, 1, rngs=rngs)

    def __call__(self, x):
        return self.outer(self.dropout(nnx.relu(self.norm(self.inner(x)))))


model = Model(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, gradtx.adamw(1e-2), wrt=nnx.Param)
x = jax.random.normal(jax.random.key(0), (64, 4))
y = x.sum(axis=1, keepdims=True)


@nnx.jit
def step(model, optimizer, x, y):
    value, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
    optimizer.update(model, grads)
    return value


values = [float(step(model, optimizer, x, y)) for _ in range(100)]
print(f"loss {values[0]:.2f} -> {values[-1]:.3f}")
assert values[-1] < 0.3 * values[0]
