"""Haiku, with batch norm.

Parameters are nested dictionaries, and path patterns name their leaves: ``*/w`` is every weight.
The network's state is saved beside them, and the run goes on as if it had never ended.

Search: haiku, hk.transform, dm-haiku, transform_with_state, haiku checkpoint
"""

import tempfile

import haiku as hk
import jax
import jax.numpy as jnp

import gradtx


def forward(x):
    x = jax.nn.relu(hk.BatchNorm(True, True, 0.9)(hk.Linear(16)(x), is_training=True))
    return hk.Linear(1)(x)


network = hk.without_apply_rng(hk.transform_with_state(forward))
x = jax.random.normal(jax.random.key(0), (64, 4))
y = x.sum(axis=1, keepdims=True)
params, statistics = network.init(jax.random.key(1), x)


def loss(params, statistics, x, y):
    found, statistics = network.apply(params, statistics, x)
    return jnp.mean((found - y) ** 2), statistics


tx = gradtx.adamw(1e-2, weight_decay=1e-3, mask="*/w")
step = gradtx.make_step(loss, tx, has_aux=True)
state = step.init(params)
path = f"{tempfile.mkdtemp()}/run.npz"
losses = []
for i in range(100):
    if i == 90:
        gradtx.save_checkpoint(path, params, state, tx, model_state=statistics, step=i)
    params, state, (value, statistics) = step(params, state, statistics, x, y)
    losses.append(float(value))
print(f"loss {losses[0]:.2f} -> {losses[-1]:.3f}")
assert losses[-1] < 0.1 * losses[0]

# Another process would begin here: its `init` has the structure of all that was saved.
params, statistics = network.init(jax.random.key(0), x)
run = gradtx.load_checkpoint(path, params=params, model_state=statistics)
params, state, statistics = run.params, run.state, run.model_state
for i in range(run.step, 100):
    params, state, (value, statistics) = step(params, state, statistics, x, y)
    assert float(value) == losses[i]
print(f"went on from step {run.step}, with the same losses")
