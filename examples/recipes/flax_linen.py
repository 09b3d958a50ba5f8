"""Flax linen, with batch norm and dropout.

The loss returns the new batch statistics along with its value: ``has_aux=True``. Dropout takes a
new key at each step. All of these go into one checkpoint, from which the run goes on as if it had
never ended.

Search: flax, linen, TrainState, batch statistics, dropout key, linen checkpoint,
resume dropout in linen
"""

import tempfile

import jax
import jax.numpy as jnp
from flax import linen as nn

import gradtx


class Model(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Dense(16)(x)))
        return nn.Dense(1)(nn.Dropout(0.1, deterministic=not train)(x))


model = Model()
x = jax.random.normal(jax.random.key(0), (64, 4))
y = x.sum(axis=1, keepdims=True)
variables = model.init(jax.random.key(1), x, train=False)
params, statistics = variables["params"], variables["batch_stats"]


def loss(params, statistics, key, x, y):
    found, changed = model.apply(
        {"params": params, "batch_stats": statistics},
        x,
        train=True,
        rngs={"dropout": key},
        mutable=["batch_stats"],
    )
    return jnp.mean((found - y) ** 2), changed["batch_stats"]


tx = gradtx.adamw(1e-2)
step = gradtx.make_step(loss, tx, has_aux=True)
state = step.init(params)
path = f"{tempfile.mkdtemp()}/run.npz"
losses = []
key = jax.random.key(2)
for i in range(100):
    if i == 90:
        gradtx.save_checkpoint(path, params, state, tx, keys=key, model_state=statistics, step=i)
    key, dropout = jax.random.split(key)
    params, state, (value, statistics) = step(params, state, statistics, dropout, x, y)
    losses.append(float(value))
print(f"loss {losses[0]:.2f} -> {losses[-1]:.3f}")
assert losses[-1] < 0.3 * losses[0]

# Another process would begin here: its `init` has the structure of all that was saved.
variables = model.init(jax.random.key(0), x, train=False)
run = gradtx.load_checkpoint(
    path, params=variables["params"], keys=key, model_state=variables["batch_stats"]
)
params, state, statistics, key = run.params, run.state, run.model_state, run.keys
for i in range(run.step, 100):
    key, dropout = jax.random.split(key)
    params, state, (value, statistics) = step(params, state, statistics, dropout, x, y)
    assert float(value) == losses[i]
print(f"went on from step {run.step}, with the same losses")
