"""Continue a run that began in Keras.

`from_keras` reads the optimizer and returns the same transformation with the same state, so the
next step here is what it would have been there. `order` lists the names in the order of the
model's variables.

Search: Keras, TensorFlow, migrate, convert optimizer, continue training, KERAS_BACKEND
"""

import os

os.environ["KERAS_BACKEND"] = "jax"  # before Keras is imported

import jax
import jax.numpy as jnp
import keras
import numpy as np

import gradtx

keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.AdamW(1e-2), loss="mse")
x, y = np.random.default_rng(0).normal(size=(2, 16, 3)).astype(np.float32)
y = y[:, :1]
for _ in range(5):
    model.train_on_batch(x, y)

names = ["kernel", "bias"]
params = {
    name: jnp.array(v.value) for name, v in zip(names, model.trainable_variables, strict=True)
}
tx, state = gradtx.interop.from_keras(model.optimizer, params, order=names)


def loss(params, x, y):
    return jnp.mean((x @ params["kernel"] + params["bias"] - y) ** 2)


step = jax.jit(lambda params, state: gradtx.minimize(loss, tx, params, state, x, y))
params, state, value = step(params, state)
model.train_on_batch(x, y)
print(tx)
np.testing.assert_allclose(params["kernel"], model.trainable_variables[0], rtol=1e-5, atol=1e-6)
