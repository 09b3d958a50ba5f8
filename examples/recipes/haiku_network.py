"""Haiku.

Parameters are nested dictionaries, and path patterns name their leaves: ``*/w`` is every weight.

Search: haiku, hk.transform, dm-haiku
"""

import haiku as hk
import jax
import jax.numpy as jnp

import gradtx


def forward(x):
    return hk.nets.MLP([16, 1])(x)


network = hk.without_apply_rng(hk.transform(forward))
x = jax.random.normal(jax.random.key(0), (64, 4))
y = x.sum(axis=1, keepdims=True)
params = network.init(jax.random.key(1), x)


def loss(params, x, y):
    return jnp.mean((network.apply(params, x) - y) ** 2)


step = gradtx.make_step(loss, gradtx.adamw(1e-2, weight_decay=1e-3, mask="*/w"))
state = step.init(params)
values = []
for _ in range(100):
    params, state, value = step(params, state, x, y)
    values.append(float(value))
print(f"loss {values[0]:.2f} -> {values[-1]:.3f}")
assert values[-1] < 0.1 * values[0]
