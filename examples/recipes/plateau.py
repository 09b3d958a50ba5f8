"""Lower the rate when a validation metric stalls.

The metric is the extra argument ``value``: pass the validation loss instead of the training loss.
Each step is given one, and by default judges it. Keras's and PyTorch's ``ReduceLROnPlateau`` judge
once an epoch: ``accumulation_size=steps_per_epoch`` does the same, with the mean of an epoch's
values. ``hyperparams`` shows the rate in force. In a program for each device or host, put the link
inside ``share_value``.

Search: ReduceLROnPlateau, reduce on plateau, adaptive learning rate
"""

import jax.numpy as jnp

import gradtx


def loss(params):
    return jnp.sum(jnp.abs(params))


epochs, steps_per_epoch = 30, 2
plateau = gradtx.reduce_on_plateau(factor=0.5, patience=2, accumulation_size=steps_per_epoch)
tx = gradtx.chain(gradtx.sgd(0.3), plateau)
step = gradtx.make_step(loss, tx)
params = jnp.array([1.0, -2.0])
state = step.init(params)
losses = []
for _ in range(epochs):
    validation = loss(params)  # in practice on other data
    for _ in range(steps_per_epoch):
        params, state, value = step(params, state, extra_args={"value": validation})
        losses.append(float(value))
rate = float(gradtx.hyperparams(tx, state)["learning_rate"])
print(f"loss {losses[0]:.2f} -> {losses[-1]:.1e}, rate 0.3 -> {rate:.1e}")
assert rate < 0.3
