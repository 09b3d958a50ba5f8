"""Does a transformer learn as well where little is sent? Losses after training on several devices.

    python -m benchmarks.low_communication [--devices 4] [--steps 1200] [--every 20] [--seeds 3]
        [--first 1] [--only NAME] [--rate RATE]

The character transformer of `benchmarks.storage`, with a rate that rises for a twentieth of the
steps and then falls along a cosine. Each of the devices, which are virtual, has its own batches of
four. Prints the loss on held-out text, the difference from DiLoCo with the same batches,
as a mean over the seeds with its standard error, and the bytes that a device sends when it sends
most. The outer rates are the best of three with seed 0, which is not among the seeds from 1 on.
"""

import argparse
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import gradtx
from benchmarks.storage import batches, loss, start, text
from benchmarks.tables import markdown, size


def nesterov(rate: float) -> Any:
    return gradtx.sgd(rate, momentum=0.9, nesterov=True)


def rising_and_falling(peak: float, steps: int) -> Any:
    return gradtx.warmup_cosine_decay_schedule(0.0, peak, steps // 20, steps, 0.1 * peak)


def forms(every: int, steps: int, rate: float | None) -> dict[str, Callable[[], Any]]:
    """Each by its name; `rate` is in place of the outer rate of each."""
    inner = gradtx.adamw(rising_and_falling(3e-3, steps))
    outer = nesterov(rate or 0.7)
    return {
        "DiLoCo": lambda: gradtx.diloco(inner, outer, every, "data"),
        "in every step": lambda: gradtx.chain(gradtx.aggregate("data"), inner),
        "DiLoCo in int8": lambda: gradtx.diloco(
            inner, gradtx.chain(gradtx.aggregate_int8("data"), outer), every, "data"
        ),
        "Streaming DiLoCo, 4 fragments, delay 1": lambda: gradtx.streaming_diloco(
            inner, outer, every, "data", 4, 1, 0.5
        ),
        "SparseLoCo, 1/32": lambda: gradtx.sparse_loco(inner, every, "data", rate or 1.4),
        "SparseLoCo, 1/64": lambda: gradtx.sparse_loco(
            inner, every, "data", rate or 1.4, fraction=1 / 64
        ),
        "MuLoCo": lambda: gradtx.muloco(rising_and_falling(1e-2, steps), every, "data"),
        "DeMo": lambda: gradtx.demo(rising_and_falling(1e-3, steps), "data"),
    }


def trained(tx: Any, devices: int, steps: int, seeds: Iterable[int]) -> list[float]:
    """The loss on held-out text, of the mean of the parameters, for each seed."""
    train, test = text()
    held = jnp.asarray(batches(test, 1, 256, 0)[0])
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def device(own: Any, key: Any) -> Any:
        def body(carry: Any, batch: Any) -> Any:
            params, state = carry
            updates, state = tx.update(jax.grad(loss)(params, batch), state, params)
            return (gradtx.apply_updates(params, updates), state), None

        params = start(key)
        params = jax.lax.scan(body, (params, tx.init(params)), own[:, 0])[0][0]
        return jax.lax.pmean(params, "data")

    # A real mesh, not `vmap`: there every step would do what only a synchronization needs.
    each = {"in_specs": (P(None, "data"), P()), "out_specs": P(), "check_vma": False}

    @jax.jit
    def run(data: Any, key: Any) -> Any:
        return loss(jax.shard_map(device, mesh=mesh, **each)(data, key), held)

    found = []
    for seed in seeds:
        data = batches(train, steps, 4 * devices, seed + 1).reshape(steps, devices, 4, -1)
        found.append(float(run(jnp.asarray(data), jax.random.key(seed))))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Losses of training that sends little.")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=1, help="of the seeds")
    parser.add_argument("--only", default="", help="the forms with this in their names, and DiLoCo")
    parser.add_argument("--rate", type=float, help="of the outer optimizer")
    given = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", given.devices)
    rows: list[list[object]] = []
    base: list[float] = []
    for name, make in forms(given.every, given.steps, given.rate).items():
        if given.only not in name and name != "DiLoCo":
            continue
        tx = make()
        losses = trained(
            tx, given.devices, given.steps, range(given.first, given.first + given.seeds)
        )
        base = base or losses
        apart = [100 * (a / b - 1) for a, b in zip(losses, base, strict=True)]
        error = np.std(apart, ddof=1) / np.sqrt(len(apart)) if len(apart) > 1 else np.nan
        params = jax.eval_shape(start, jax.random.key(0))
        sent = gradtx.describe(tx, params).peak_message_bytes
        cells = " ".join(f"{x:.3f}" for x in losses), f"{np.mean(apart):+.2f} ± {error:.2f} %"
        rows.append([name, *cells, size(sent)])
        print(*rows[-1], flush=True)
    title = f"{given.devices} devices, {given.steps} steps, synchronized every {given.every}"
    print(markdown(title, ["", "losses", "beside DiLoCo", "sent at most"], rows))
