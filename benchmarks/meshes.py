"""A step of a transformer on meshes of TPU v5e and H100, compiled and not run.

    python -m benchmarks.meshes [MESH ...] [--width 1024]

Two blocks under AdamW, in float32, with a sequence of half the width to a replica. The mesh has two
axes, those of a TPU's torus. The batch is divided over both, or over the first and the matrices
over the second. Prints what a chip holds of the state, the temporary bytes, and the collectives of
a step with the bytes of the arrays that are reduced or gathered, beside what is expected of them.
"""

import argparse
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

# Before jax, which looks for hardware when it is imported: benchmarks.aot tells it what to assume.
from benchmarks.aot import h100s  # isort: split

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils, topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import gradtx
from benchmarks.hlo import by_kind, collectives, overlapped
from benchmarks.tables import markdown, size


class Machine(NamedTuple):
    label: str
    shape: tuple[int, int]  # of the mesh


MACHINES = {
    "v5e:2x2": Machine("4 chips of TPU v5e", (2, 2)),
    "v5e:8x8": Machine("64 chips of TPU v5e", (8, 8)),
    "v5e:16x16": Machine("256 chips of TPU v5e", (16, 16)),
    "h100": Machine("8 H100", (4, 2)),
}
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
    overlapped: list[int]  # of each that a TPU starts and awaits, the products between


def mesh_of(name: str) -> Mesh:
    shape = MACHINES[name].shape
    if name == "h100":
        devices = np.array(h100s(math.prod(shape))).reshape(shape)
    else:
        chips = topologies.get_topology_desc(platform="tpu", topology_name=name).devices
        devices = mesh_utils.create_device_mesh(shape, devices=chips)
    return Mesh(devices, ("x", "y"), (AxisType.Auto,) * 2)


def compiled(layout: Layout, name: str, width: int) -> Found:
    mesh = mesh_of(name)

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
        (math.prod(mesh.shape[axis] for axis in layout.data), width // 2, width),
        jnp.float32,
        sharding=NamedSharding(mesh, P(layout.data)),
    )
    program = step.lower(params, sharding.abstract, x).compile()
    memory: Any = program.memory_analysis()
    text = program.as_text() or ""
    found = by_kind(collectives(text))
    return Found(sharding.bytes_per_device, memory.temp_size_in_bytes, found, overlapped(text))


def expected(layout: Layout, name: str, width: int) -> tuple[str, str]:
    """State bytes on a chip, and what its step sends: the arrays reduced or gathered."""
    x, y = MACHINES[name].shape
    both = "y" in layout.data
    matrices = 4 * BLOCKS * sum(int(np.prod(s)) for n, s in shapes(width).items() if n != "norm")
    vectors = 4 * BLOCKS * 2 * width
    own = matrices if both else matrices // y  # gradients of one chip
    parts = (x * y if both else x) if layout.zero else 1
    slots = 2 * (own // parts + vectors) + 4
    sends = f"gradients {size(own + vectors)} reduced"
    if layout.zero:
        # Along the first axis; along the second what one part of that is.
        scattered = own + (own // x if both else 0)
        sends = f"gradients {size(scattered)} scattered, {size(vectors)} reduced"
        sends += f"; parameters {size(scattered)} gathered"
    if not both:
        activations = 4 * BLOCKS * 4 * (width // 2) * width  # two each way in every block
        sends += f"; activations {size(activations)} reduced"
    return size(slots), sends


def row(layout: Layout, name: str, width: int) -> list[object]:
    found, (state, sends) = compiled(layout, name, width), expected(layout, name, width)
    sent = "; ".join(f"{n} {kind} {size(b)}" for kind, (n, b) in found.collectives.items())
    return [layout.name, size(found.state), state, size(found.temporary), sent, sends]


def tables(names: list[str], width: int) -> Iterator[str]:
    header = ["layout", "state", "expected", "temporary", "collectives", "expected"]
    for name in names:
        rows = [row(layout, name, width) for layout in LAYOUTS]
        yield markdown(f"{MACHINES[name].label}, width {width}", header, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A step on many chips, compiled and not run.")
    parser.add_argument("meshes", nargs="*", metavar="MESH", help=", ".join(MACHINES))
    parser.add_argument("--width", type=int, default=1024)
    given = parser.parse_args()
    for table in tables(given.meshes or list(MACHINES), given.width):
        print(table, flush=True)
