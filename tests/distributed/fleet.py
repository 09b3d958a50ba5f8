"""A site that trains under DiLoCo, one of several processes: test_fleet.py starts it.

    python -m tests.distributed.fleet COORDINATOR SITES SITE STEPS CHECKPOINT [dies|sleeps STEP]

After each synchronization all state is saved, a row for each site. Another number of sites may go
on: one that joins starts from the row of another, one that left is missing. At the step given the
last site kills itself, or sleeps for longer than a site may be silent, while the others wait for
it.
"""

import os
import signal
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import gradtx

EVERY = 4
SILENCE = 10
"""Seconds after which a site that sends no sign of life is taken for dead."""


def loss(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2)


def batch(step, site):
    rng = np.random.default_rng((step, site))
    x = rng.normal(size=(16, 4)).astype(np.float32)
    return x, np.sin(x.sum(1, keepdims=True))


def start():
    rng = np.random.default_rng(0)
    p = {"v": rng.normal(size=(8, 1)), "w": rng.normal(size=(4, 8))}
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), p)


def make():
    outer = gradtx.sgd(0.7, momentum=0.9, nesterov=True)
    return gradtx.diloco(gradtx.adamw(0.02), outer, EVERY, "site")


def main(coordinator, sites, site, steps, path, fault="none", at=-1):
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        coordinator, sites, site, initialization_timeout=120, heartbeat_timeout_seconds=SILENCE
    )
    mesh = Mesh(np.array(jax.devices()), ("site",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("site"))
    tx = make()

    def put(x):
        return jax.make_array_from_callback(x.shape, rows, lambda index: x[index])

    first = jax.tree.map(lambda x: np.asarray(x)[None], (start(), tx.init(start())))
    done, saved, losses = 0, jax.tree.leaves(first), []
    if path.exists():
        with np.load(path) as file:
            done, losses = int(file["done"]), file["losses"].tolist()
            saved = [file[str(i)] for i in range(len(saved))]
    saved = [np.stack([x[i % len(x)] for i in range(sites)]) for x in saved]
    carry = jax.tree.unflatten(jax.tree.structure(first), list(map(put, saved)))

    def device_step(carry, x, y):
        params, state = jax.tree.map(lambda a: a[0], carry)
        params, state, value = gradtx.minimize(loss, tx, params, state, x, y)
        value = jax.lax.pmean(value, "site")
        return jax.tree.map(lambda a: a[None], (params, state)), value

    specs = {"in_specs": PartitionSpec("site"), "check_vma": False}
    specs["out_specs"] = PartitionSpec("site"), PartitionSpec()
    step = jax.jit(jax.shard_map(device_step, mesh=mesh, **specs))
    for t in range(done, steps):
        if t == at and site == sites - 1:
            if fault == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(SILENCE + 2)
        x, y = (np.concatenate(a) for a in zip(*(batch(t, i) for i in range(sites)), strict=True))
        carry, value = step(carry, put(x), put(y))
        losses.append(float(value))
        if (t + 1) % EVERY == 0:
            whole = multihost_utils.process_allgather(carry, tiled=True)
            if site == 0:
                arrays = {str(i): x for i, x in enumerate(jax.tree.leaves(whole))}
                partial = path.with_suffix(".partial.npz")
                np.savez(partial, done=t + 1, losses=losses, **arrays)
                partial.replace(path)


if __name__ == "__main__":
    coordinator, sites, site, steps, path, *fault = sys.argv[1:]
    fault = (fault[0], int(fault[1])) if fault else ()
    main(coordinator, int(sites), int(site), int(steps), Path(path), *fault)
