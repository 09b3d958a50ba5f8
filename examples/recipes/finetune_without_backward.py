"""Fine-tune a network without a backward pass.

SPSA estimates the gradient from two values of the loss (MeZO, where it fine-tunes). With
`inside=True` the direction is drawn, and the layers are updated, one layer at a time, so that
a step takes hardly more memory than the loss. It takes many more steps than a backward pass.

Search: MeZO, SPSA, zeroth-order, gradient-free, forward only, memory of inference, fine-tuning
"""

import jax
import jax.numpy as jnp

import gradtx

width, layers = 16, 4
keys = jax.random.split(jax.random.key(0), 4)
params = {
    "embed": jax.random.normal(keys[0], (1, width)),
    "layers": {
        "w": jax.random.normal(keys[1], (layers, width, width)) / width**0.5,
        "b": jnp.zeros((layers, width)),
    },
    "head": jax.random.normal(keys[2], (width, 1)) / width**0.5,
}


def loss(params, x, y):
    def layer(h, w):
        return h + jnp.tanh(h @ w["w"] + w["b"]), None

    h, _ = jax.lax.scan(layer, x @ params["embed"], params["layers"])
    return jnp.mean((h @ params["head"] - y) ** 2)


x = jax.random.uniform(keys[3], (64, 1), minval=-2.0, maxval=2.0)
pretrain = gradtx.make_step(loss, gradtx.adam(3e-3), steps=300)
first = jnp.broadcast_to(x, (300, *x.shape))
state = pretrain.init(params)
params, state, values = pretrain(params, state, first, jnp.sin(2.0 * first))
print(f"pretrained by a backward pass: {values[0]:.2f} -> {values[-1]:.4f} in 300 steps")

other = jnp.sin(2.0 * x) + 0.5 * x  # another task
estimator = gradtx.spsa(scale=1e-3, samples=4, distribution="normal")
finetune = gradtx.make_step(loss, gradtx.sgd(3e-4), gradients=estimator, inside=True, steps=1000)
many = jnp.broadcast_to(x, (1000, *x.shape)), jnp.broadcast_to(other, (1000, *x.shape))
state = finetune.init(params)
params, state, values = finetune(params, state, *many)
print(f"fine-tuned without one: {values[0]:.2f} -> {values[-1]:.4f} in 1000 steps")
losses = [float(value) for value in values]
assert losses[-1] < 0.2 * losses[0]
