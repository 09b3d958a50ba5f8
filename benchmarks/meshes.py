"""A step of a transformer on TPU v5e meshes of 4, 64 and 256 chips, compiled and not run.

    python -m benchmarks.meshes [CHIPS ...] [--width 1024]

Two blocks under AdamW, in float32, with a sequence of half the width to a replica. The mesh has the
two axes of the chips' torus. The batch is divided over both, or over the first and the matrices
over the second. Prints what a chip holds of the state, the temporary bytes, and the collectives of
a step with the bytes of the arrays that are reduced or gathered, beside what is expected of them.
"""

import argparse
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

os.environ.update(
    JAX_PLATFORMS="cpu",
    ALLOW_MULTIPLE_LIBTPU_LOAD="1",
    TPU_ACCELERATOR_TYPE="v5litepod-4",
    TPU_SKIP_MDS_QUERY="1",
    TPU_WORKER_HOSTNAMES="localhost",
)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils, topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import gradtx
from benchmarks.hlo import by_kind, collectives
from benchmarks.tables import markdown, size

SIDES = {4: 2, 64: 8, 256: 16}  # of the square torus
BLOCKS, HEAD = 2, 64

P = PartitionSpec
# Columns of the first matrix of a pair are divided, rows of the second (as in Megatron-LM).
SPECS = {
    "query": P(None, "y"),
    "key": P(None, "y"),
    "value": P(None, "y"),
    "output": P("y", None),
    "up": P(None, "y"),
    "down": P("y", None),
    "norm": P(),
}


def shapes(width: int) -> dict[str, tuple[int, ...]]:
    return {
        **dict.fromkeys(("query", "key", "value", "output"), (width, width)),
        "up": (width, 4 * width),
        "down": (4 * width, width),
        "norm": (2, width),
    }


class Layout(NamedTuple):
    """Over which axes of the mesh the batch is divided; the matrices are over the others."""

    name: str
    data: tuple[str, ...]
    zero: bool = False


LAYOUTS = (
    Layout("data", ("x", "y")),
    Layout("data, ZeRO", ("x", "y"), zero=True),
    Layout("data x model", ("x",)),
    Layout("data x model, ZeRO", ("x",), zero=True),
)


def block(p: Mapping[str, Any], x: Any) -> Any:
    def heads(w: Any) -> Any:
        return (normed @ w).reshape(*x.shape[:2], -1, HEAD)

    normed = x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6) * p["norm"][0]
    attended = jax.nn.dot_product_attention(heads(p["query"]), heads(p["key"]), heads(p["value"]))
    x += attended.reshape(x.shape) @ p["output"]
    normed = x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6) * p["norm"][1]
    return x + jax.nn.gelu(normed @ p["up"]) @ p["down"]


def loss(params: Any, x: Any) -> Any:
    y = x
    for p in params:
        y = block(p, y)
    return jnp.mean((y - x) ** 2)


class Found(NamedTuple):
    state: int
    temporary: int
    collectives: dict[str, tuple[int, int]]


def compiled(layout: Layout, chips: int, width: int) -> Found:
    side = SIDES[chips]
    topology = topologies.get_topology_desc(platform="tpu", topology_name=f"v5e:{side}x{side}")
    devices = mesh_utils.create_device_mesh((side, side), devices=topology.devices)
    mesh = Mesh(devices, ("x", "y"), (AxisType.Auto,) * 2)

    def place(name: str) -> NamedSharding:
        return NamedSharding(mesh, P() if "y" in layout.data else SPECS[name])

    places = [{name: place(name) for name in SPECS} for _ in range(BLOCKS)]
    params = [
        {
            n: jax.ShapeDtypeStruct(s, jnp.float32, sharding=place(n))
            for n, s in shapes(width).items()
        }
        for _ in range(BLOCKS)
    ]
    tx = gradtx.adamw(1e-3)
    zero = layout.data if layout.zero else None
    sharding = gradtx.state_sharding(tx, params, places, zero=zero)
    step = gradtx.make_step(loss, tx, sharding=sharding)
    x = jax.ShapeDtypeStruct(
        (side ** len(layout.data), width // 2, width),
        jnp.float32,
        sharding=NamedSharding(mesh, P(layout.data)),
    )
    program = step.lower(params, sharding.abstract, x).compile()
    memory: Any = program.memory_analysis()
    found = by_kind(collectives(program.as_text() or ""))
    return Found(sharding.bytes_per_device, memory.temp_size_in_bytes, found)


def expected(layout: Layout, chips: int, width: int) -> tuple[str, str]:
    """State bytes on a chip, and what its step sends: the arrays reduced or gathered."""
    side = SIDES[chips]
    matrices = 4 * BLOCKS * sum(int(np.prod(s)) for n, s in shapes(width).items() if n != "norm")
    vectors = 4 * BLOCKS * 2 * width
    own = matrices if "y" in layout.data else matrices // side  # gradients of one chip
    slots = 2 * (own // (side ** len(layout.data) if layout.zero else 1) + vectors) + 4
    sends = f"gradients {size(own + vectors)} reduced"
    if layout.zero:
        # Along the first axis; along the second what one part of that is.
        scattered = own + (own // side if len(layout.data) == 2 else 0)
        sends = f"gradients {size(scattered)} scattered, {size(vectors)} reduced"
        sends += f"; parameters {size(scattered)} gathered"
    if "y" not in layout.data:
        activations = 4 * BLOCKS * 4 * (width // 2) * width  # two each way in every block
        sends += f"; activations {size(activations)} reduced"
    return size(slots), sends


def row(layout: Layout, chips: int, width: int) -> list[object]:
    found, (state, sends) = compiled(layout, chips, width), expected(layout, chips, width)
    sent = "; ".join(f"{n} {kind} {size(b)}" for kind, (n, b) in found.collectives.items())
    return [layout.name, size(found.state), state, size(found.temporary), sent, sends]


def tables(chosen: list[int], width: int) -> Iterator[str]:
    header = ["layout", "state", "expected", "temporary", "collectives", "expected"]
    for chips in chosen:
        rows = [row(layout, chips, width) for layout in LAYOUTS]
        yield markdown(f"{chips} chips of TPU v5e, width {width}", header, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="A step on meshes of TPU v5e, compiled and not run."
    )
    parser.add_argument("chips", type=int, nargs="*", choices=SIDES, default=list(SIDES))
    parser.add_argument("--width", type=int, default=1024)
    given = parser.parse_args()
    for table in tables(given.chips, given.width):
        print(table, flush=True)
