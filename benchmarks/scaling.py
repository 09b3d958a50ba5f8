"""What a step costs on more devices: counted, measured on virtual ones, and predicted for many.

    python -m benchmarks.scaling            # 1, 2, 4 and 8 virtual CPU devices
    python -m benchmarks.scaling --model    # the written model, 8 to 4,096 accelerators

The virtual devices share this machine's cores: their times show what dividing a step costs, not
what it gains. State bytes and collectives are counted in the compiled program.
"""

import math
import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

# Before jax is imported.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.update(
    XLA_FLAGS=f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    " --xla_cpu_collective_call_terminate_timeout_seconds=600"
)

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import gradtx
from benchmarks.hlo import by_kind, collectives
from benchmarks.tables import markdown, size
from benchmarks.timing import interleaved, ratio

MOST = 8
LEAVES = (4, 32)
ENTRIES = 1 << 20  # of all leaves together


def params_of(leaves: int) -> dict[str, jax.Array]:
    width = math.isqrt(ENTRIES // leaves)
    return {f"w{i}": jnp.full((width, width), 1 / width) for i in range(leaves)}


def loss(params: dict[str, Any], x: Any) -> Any:
    return sum(jnp.mean((x[:, : p.shape[0]] @ p) ** 2) for p in params.values())


class Run:
    """A compiled step on a number of devices, called again and again."""

    def __init__(self, devices: int, leaves: int, zero: str | None) -> None:
        mesh = Mesh(np.array(jax.devices()[:devices]), ("data",), axis_types=(AxisType.Auto,))
        everywhere = NamedSharding(mesh, PartitionSpec())
        tx = gradtx.adamw(1e-3)
        self.params = jax.device_put(params_of(leaves), everywhere)
        self.sharding = gradtx.state_sharding(tx, self.params, zero=zero)
        self.step = gradtx.make_step(loss, tx, sharding=self.sharding)
        self.state = self.step.init(self.params)
        batch = NamedSharding(mesh, PartitionSpec("data"))
        self.x = jax.device_put(jnp.ones((MOST, 512)), batch)
        program = self.step.lower(self.params, self.state, self.x).compile()
        self.collectives = by_kind(collectives(program.as_text() or ""))

    def __call__(self) -> None:
        self.params, self.state, value = self.step(self.params, self.state, self.x)
        jax.block_until_ready((self.params, value))


def measured() -> str:
    kinds = {"plain": None, "ZeRO": "data"}
    rows: list[list[object]] = []
    for leaves in LEAVES:
        runs = {(n, k): Run(n, leaves, z) for n in (1, 2, 4, 8) for k, z in kinds.items()}
        seconds = interleaved({f"{n} {k}": run for (n, k), run in runs.items()})
        for (n, kind), run in runs.items():
            sent = "; ".join(f"{c} {k} {size(b)}" for k, (c, b) in run.collectives.items())
            over = ratio(seconds[f"{n} {kind}"], seconds["1 plain"])
            rows.append(
                [n, leaves, kind, size(run.sharding.bytes_per_device), sent or "none", over]
            )
    header = [
        "devices",
        "leaves",
        "update",
        "bytes of state on one",
        "collectives",
        "step / 1 device",
    ]
    return markdown(f"AdamW on {ENTRIES:,} parameters, virtual CPU devices", header, rows)


class Machine(NamedTuple):
    """Bytes per second, as the vendors state them, and seconds to start a message, assumed.

    TPU v5e, of Google's page on it: 819 GB/s of memory; four links to a chip, together 1,600 Gbit/s
    each way; 6.4 Tbit/s to the network from a pod of 256. H100, of NVIDIA's data sheets of the H100
    SXM and the DGX H100: 3.35 TB/s of memory, 900 GB/s of NVLink both ways together, and a network
    adapter of 400 Gbit/s to each of 8.
    """

    name: str
    memory: float
    link: float  # in and out of one accelerator at a time, within `near`
    near: int
    far_link: float  # beyond
    latency: float


MACHINES = (
    Machine("TPU v5e", 819e9, 1600e9 / 8, 256, 6.4e12 / 8 / 256, 1e-6),
    Machine("H100", 3.35e12, 900e9 / 2, 8, 400e9 / 8, 5e-6),
)
PARAMETERS = 1e9
COUNTS = (8, 64, 256, 1024, 4096)


def reduce_seconds(machine: Machine, n: int, message: float) -> float:
    """An all-reduce: reduce-scatter and all-gather of what is near, then all-reduce what is far.

    Each half sends (k - 1) / k of the message; the far part is the share of one accelerator.
    """
    near, far = min(n, machine.near), max(1, n // machine.near)
    seconds = 2 * ((near - 1) / near * message / machine.link + math.log2(near) * machine.latency)
    if far > 1:
        share = message / near
        seconds += 2 * ((far - 1) / far * share / machine.far_link)
        seconds += 2 * math.log2(far) * 10 * machine.latency
    return seconds


def predicted(machine: Machine) -> str:
    """Milliseconds that aggregation and update add to a step, nothing overlapped."""
    p = PARAMETERS
    rows = []
    for n in COUNTS:
        # AdamW reads gradient, parameter and two slots, and writes three of them: 28 bytes.
        update, divided = 28 * p / machine.memory, (28 * p / n + 4 * p) / machine.memory
        full = reduce_seconds(machine, n, 4 * p)
        forms = {
            "plain": full + update,
            "ZeRO": full + divided,  # its two halves are a reduce-scatter and an all-gather
            "bf16": reduce_seconds(machine, n, 2 * p) + update,
            "int8": reduce_seconds(machine, n, p * (1 + 4 / 256)) + update,
            "DiLoCo, 500": full / 500 + update,
        }
        state = [size(8 * p), size(8 * p / n)]
        rows.append([f"{n:,}", *(1e3 * s for s in forms.values()), *state])
    header = ["accelerators", "plain", "ZeRO", "bf16", "int8", "DiLoCo, 500"]
    header += ["state, plain", "state, ZeRO"]
    return markdown(f"{machine.name}: ms added to a step by 1e9 parameters", header, rows)


def tables(words: list[str]) -> Iterator[str]:
    if "--model" in words:
        yield from map(predicted, MACHINES)
    else:
        yield measured()


if __name__ == "__main__":
    for table in tables(sys.argv[1:]):
        print(table, flush=True)
