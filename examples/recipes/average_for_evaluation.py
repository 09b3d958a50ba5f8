"""Evaluate with an average of the parameters.

`ema_params`, last in a chain, keeps an exponential average of the parameters, and `eval_params`
finds it.

Search: EMA, exponential moving average, Polyak averaging, stochastic weight averaging, SWA
"""

import jax
import jax.numpy as jnp

import gradtx

target = jnp.arange(4.0)


def loss(params, noise):
    return jnp.sum((params - target - noise) ** 2)


tx = gradtx.chain(gradtx.sgd(0.1), gradtx.ema_params(0.98))
step = gradtx.make_step(loss, tx)
params = jnp.zeros(4)
state = step.init(params)
for noise in jax.random.normal(jax.random.key(0), (300, 4)):
    params, state, value = step(params, state, noise)

average = gradtx.eval_params(tx, state, params)
last, mean = (float(jnp.linalg.norm(p - target)) for p in (params, average))
print(f"distance to the target: {last:.3f}, of the average {mean:.3f}")
assert mean < last
