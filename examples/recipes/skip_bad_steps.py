"""Skip bad steps, and log norms.

`guard` wraps an optimizer and skips a step whose gradient or loss is not finite, or far above
recent ones. With ``report=True`` the step also returns what it saw.

Search: NaN, loss spike, gradient norm, logging, skip step, robust training
"""

import jax
import jax.numpy as jnp

import gradtx


def loss(params, x):
    return jnp.mean((x @ params) ** 2)


tx = gradtx.guard(gradtx.adam(1e-2), window=16, warmup=8)
step = gradtx.make_step(loss, tx, report=True)
params = jnp.ones(4)
state = step.init(params)
for i, x in enumerate(jax.random.normal(jax.random.key(0), (30, 8, 4))):
    x = {20: jnp.nan * x, 25: 1000 * x}.get(i, x)
    params, state, value, report = step(params, state, x)
    if i % 5 == 0:
        norm, ratio = float(report.gradient_norm), float(report.update_ratio)
        print(f"step {i}: loss {value:.3g}, gradient {norm:.3g}, update / parameters {ratio:.2g}")
print(report)
assert jnp.isfinite(params).all()
