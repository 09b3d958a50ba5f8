"""Micro-batches: a large batch in parts.

`accumulate` runs the optimizer once per window of micro-batches, with their mean gradient. In
between, the parameters stay as they are.

Search: gradient accumulation, grad accumulation, large batch, out of memory, MultiSteps
"""

import jax
import jax.numpy as jnp

import gradtx


def loss(params, x, y):
    return jnp.mean((x @ params - y) ** 2)


x = jax.random.normal(jax.random.key(0), (32, 4))
y = x @ jnp.arange(4.0)
start = jnp.zeros(4)

whole = gradtx.make_step(loss, gradtx.adam(0.1), donate=False)
expected, _, _ = whole(start, whole.init(start), x, y)

parts = gradtx.make_step(loss, gradtx.accumulate(gradtx.adam(0.1), every=4), donate=False)
params, state = start, parts.init(start)
for xs, ys in zip(x.reshape(4, 8, 4), y.reshape(4, 8), strict=True):
    params, state, value = parts(params, state, xs, ys)
    print(bool(gradtx.has_updated(state)), [round(float(p), 3) for p in params])
assert jnp.allclose(params, expected, atol=1e-6)
