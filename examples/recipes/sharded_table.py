"""A table of embeddings over eight devices.

Each device holds a part of the rows, and their slots. A look-up brings the rows that a batch asks
for to the devices that ask; their gradient goes back as `Rows`, and each device updates the rows
that it owns. `exact_rows` lets a row take the steps that it missed before it is looked up again,
where it lies. Eight simulated devices stand for real ones here.

Search: sharded embedding, embedding table, recommender, sparse rows on several devices
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

import gradtx
from gradtx import sparse

WORDS, WIDTH, BATCH = 4096, 16, 64  # the rows must be a multiple of the devices: pad the table
mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
by_row, everywhere = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
key = jax.random.key(0)
start = {
    "words": 0.1 * jax.random.normal(key, (WORDS, WIDTH)),
    "out": 0.1 * jnp.ones((WIDTH, 1)),
}
places = {"words": by_row, "out": everywhere}


def loss(params, ids, y):
    x = sparse.take(params["words"], ids)  # the gradient of the table is its rows
    return jnp.mean((x @ params["out"] - y) ** 2)


def train(tx, params):
    step = gradtx.make_step(loss, tx, donate=False)
    state = step.init(params)  # slots lie where their rows lie
    for i in range(12):
        ids = jax.random.randint(jax.random.fold_in(key, i), (BATCH,), 0, WORDS // 8)
        batch = ids, jnp.sin(ids[:, None].astype(jnp.float32))
        params, state, value = step(params, state, *jax.device_put(batch, by_row))
        jax.block_until_ready(value)  # simulated devices share the threads of a CPU
    return params, state, value


tx = gradtx.exact_rows(gradtx.adamw(1e-2, weight_decay=0.1))
params, state, value = train(tx, jax.device_put(start, places))
# Before evaluating or saving, all rows take the steps that they missed, each on its device.
params, state = sparse.catch_up(tx, params, state)
for array in (params["words"], gradtx.get_slot(state, "mu", "words")):
    assert array.sharding.is_equivalent_to(by_row, 2)
part = params["words"].addressable_shards[0].data.shape[0]
print(f"a device has {part} of {WORDS} rows, and as many of each slot")

# The same as a dense run in which every row takes every step.
dense, _, _ = train(gradtx.dense_rows(gradtx.adamw(1e-2, weight_decay=0.1)), start)
difference = float(jnp.max(jnp.abs(params["words"] - dense["words"])))
print(f"loss {value:.3f}, the largest difference to the dense run {difference:.0e}")
assert difference < 1e-5

# What is sent in a step is as large as what is looked up, and not as the table.
step = gradtx.make_step(loss, tx)
ids = jax.device_put(jnp.arange(BATCH), by_row)
text = step.lower(params, state, ids, jnp.ones((BATCH, 1))).compile().as_text()
assert "all-reduce" in text
assert f"f32[{WORDS},{WIDTH}]" not in text
