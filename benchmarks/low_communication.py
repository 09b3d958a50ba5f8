"""Does a transformer learn as well where little is sent? Losses after training on several devices.

    python -m benchmarks.low_communication [--devices 4] [--steps 600] [--every 20] [--seeds 2]

The character transformer of `benchmarks.storage`. Each device has its own batches of four; all run
on this machine, by `vmap`. Prints the loss on held-out text, beside that of DiLoCo, and the most
bytes that a device sends in a step.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gradtx
from benchmarks.storage import batches, loss, start, text
from benchmarks.tables import markdown, size


def nesterov() -> Any:
    return gradtx.sgd(0.7, momentum=0.9, nesterov=True)


def inner() -> Any:
    return gradtx.adamw(3e-3)


FORMS: dict[str, Callable[[int], Any]] = {
    "DiLoCo": lambda every: gradtx.diloco(inner(), nesterov(), every, "data"),
    "in every step": lambda every: gradtx.chain(gradtx.aggregate("data"), inner()),
    "DiLoCo in int8": lambda every: gradtx.diloco(
        inner(), gradtx.chain(gradtx.aggregate_int8("data"), nesterov()), every, "data"
    ),
    "Streaming DiLoCo, 4 fragments, delay 1": lambda every: gradtx.streaming_diloco(
        inner(), nesterov(), every, "data", 4, 1, 0.5
    ),
    "SparseLoCo, 1/32": lambda every: gradtx.sparse_loco(inner(), every, "data"),
    "SparseLoCo, 1/64": lambda every: gradtx.sparse_loco(inner(), every, "data", fraction=1 / 64),
    "MuLoCo": lambda every: gradtx.muloco(1e-2, every, "data"),
    "DeMo": lambda every: gradtx.demo(1e-3, "data"),
}


def trained(tx: Any, devices: int, steps: int, seed: int) -> float:
    """The loss on held-out text of the mean of the devices' parameters."""
    train, test = text()
    held = jnp.asarray(batches(test, 1, 64, 0)[0])
    data = jnp.asarray(batches(train, steps, 4 * devices, seed + 1))
    data = data.reshape(steps, devices, 4, -1)

    def device(own: Any) -> Any:
        def body(carry: Any, batch: Any) -> Any:
            params, state = carry
            updates, state = tx.update(jax.grad(loss)(params, batch), state, params)
            return (gradtx.apply_updates(params, updates), state), None

        params = start(jax.random.key(seed))
        return jax.lax.scan(body, (params, tx.init(params)), own)[0][0]

    @jax.jit
    def run(data: Any) -> Any:
        params = jax.vmap(device, in_axes=1, axis_name="data")(data)
        return loss(jax.tree.map(lambda p: jnp.mean(p, axis=0), params), held)

    return float(run(data))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Losses of training that sends little.")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", default="", help="the forms with this in their names")
    given = parser.parse_args()
    rows: list[list[object]] = []
    base = None
    for name, make in FORMS.items():
        if given.only not in name and name != "DiLoCo":
            continue
        tx = make(given.every)
        losses = [trained(tx, given.devices, given.steps, s) for s in range(given.seeds)]
        mean = float(np.mean(losses))
        base = base or mean
        params = jax.eval_shape(start, jax.random.key(0))
        sent = gradtx.describe(tx, params).peak_message_bytes
        rows.append([name, f"{mean:.3f}", f"{100 * (mean / base - 1):+.2f} %", size(sent)])
        print(*rows[-1], flush=True)
    title = f"{given.devices} devices, {given.steps} steps, synchronized every {given.every}"
    print(markdown(title, ["", "loss", "beside DiLoCo", "sent at most"], rows))
