"""Warm-up, cosine decay, and reading the learning rate.

A schedule takes the place of a number. `hyperparams` gives the values that the next step will use.

Search: learning rate schedule, warmup, log the learning rate, get current lr
"""

import jax.numpy as jnp

import gradtx

schedule = gradtx.warmup_cosine_decay_schedule(
    init_value=0.0, peak_value=0.1, warmup_steps=10, decay_steps=100
)
tx = gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.adamw(schedule))
params = {"w": jnp.ones(3)}
step = gradtx.make_step(lambda p: jnp.sum(p["w"] ** 2), tx)
state = step.init(params)
rates = []
for _ in range(100):
    rates.append(float(gradtx.hyperparams(tx, state)["1.learning_rate"]))
    params, state, value = step(params, state)
print([round(rate, 3) for rate in rates[::10]])
assert max(rates) == rates[10]
assert rates[0] == 0 < rates[99] < 0.001
