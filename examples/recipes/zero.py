"""State divided over eight devices (ZeRO).

`state_sharding` says where each slot goes, and `make_step` moves gradients to their slots. Here the
devices are eight simulated ones on a CPU. They share its threads, and where many steps wait for
them XLA may end the process ("Termination timeout for all reduce"): wait for each step. Devices
that are real need no waiting.

Search: ZeRO, FSDP, sharding, several simulated devices, virtual devices, TPU pod
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

import gradtx

mesh = jax.make_mesh((8,), ("data",))
everywhere, divided = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))


def loss(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["in"]) @ params["out"] - y) ** 2)


params = {"in": 0.1 * jnp.ones((64, 512)), "out": 0.1 * jnp.ones((512, 64))}
params = jax.device_put(params, everywhere)
tx = gradtx.adamw(1e-3)
sharding = gradtx.state_sharding(tx, params, zero="data")
print(sharding)
step = gradtx.make_step(loss, tx, sharding=sharding)
state = step.init(params)
x = jax.device_put(jax.random.normal(jax.random.key(0), (32, 64)), divided)
for _ in range(3):
    params, state, value = step(params, state, x, x)
    jax.block_until_ready(value)
mu = gradtx.get_slot(state, "mu", path="in")
print(f"a device has {mu.addressable_shards[0].data.size} of {mu.size} entries of mu")
assert 8 * mu.addressable_shards[0].data.size == mu.size
