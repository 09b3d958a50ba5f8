"""Learn the learning rate by gradient descent.

A rate given as an array is traced like any other value, so a `scan` over steps is a function of it
that can be differentiated.

Search: meta-learning, hypergradient, differentiate through the optimizer, learned learning rate
"""

import jax
import jax.numpy as jnp

import gradtx

scales = jnp.array([1.0, 0.3])


def loss(params):
    return jnp.sum((scales * (params - 1)) ** 2)


def after_training(log_rate):
    """The loss after ten steps, and so a function of the rate."""
    tx = gradtx.sgd(jnp.exp(log_rate), momentum=0.5)

    def step(carry, _):
        params, state, _ = gradtx.minimize(loss, tx, *carry)
        return (params, state), None

    params = jnp.zeros(2)
    (params, _), _ = jax.lax.scan(step, (params, tx.init(params)), length=10)
    return loss(params)


meta = gradtx.adam(0.2)
step = gradtx.make_step(after_training, meta)
log_rate = jnp.log(jnp.float32(0.01))
state = step.init(log_rate)
values = []
for _ in range(40):
    log_rate, state, value = step(log_rate, state)
    values.append(float(value))
print(f"rate {float(jnp.exp(log_rate)):.3f}, loss {values[0]:.3f} -> {values[-1]:.5f}")
assert values[-1] < 0.1 * values[0]
