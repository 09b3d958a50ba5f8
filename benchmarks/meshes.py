"""A step of a transformer on TPU v5e meshes of 4, 64 and 256 chips, compiled and not run.

    python -m benchmarks.meshes [CHIPS ...]

Two blocks of width 1024 under AdamW, one sequence of 512 to a replica, in float32, with the
parameters on every chip of the data axis and their matrices divided over the model axis where
there is one. Prints what a chip holds of the state, the temporary bytes, and the collectives of a
step with the bytes of the arrays that are reduced or gathered, beside what is expected of them.
"""

import os
import sys
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
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import gradtx
from benchmarks.hlo import by_kind, collectives
from benchmarks.tables import markdown, size

TOPOLOGIES = {4: "v5e:2x2", 64: "v5e:8x8", 256: "v5e:16x16"}
BLOCKS, WIDTH, HEADS, TOKENS = 2, 1024, 8, 512
MODEL = 4  # chips to a replica where the model is divided

P = PartitionSpec
# Columns of the first matrix of a pair are divided, rows of the second (as in Megatron-LM).
SPECS = {
    "query": P(None, "model"),
    "key": P(None, "model"),
    "value": P(None, "model"),
    "output": P("model", None),
    "up": P(None, "model"),
    "down": P("model", None),
    "norm": P(),
}
SHAPES = {
    **dict.fromkeys(("query", "key", "value", "output"), (WIDTH, WIDTH)),
    "up": (WIDTH, 4 * WIDTH),
    "down": (4 * WIDTH, WIDTH),
    "norm": (2, WIDTH),
}


class Layout(NamedTuple):
    name: str
    model: int
    zero: str | None


LAYOUTS = (
    Layout("data", 1, None),
    Layout("data, ZeRO", 1, "data"),
    Layout("data x model", MODEL, None),
    Layout("data x model, ZeRO", MODEL, "data"),
)


def block(p: Mapping[str, Any], x: Any) -> Any:
    def heads(w: Any) -> Any:
        return (normed @ w).reshape(*x.shape[:2], HEADS, -1)

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


def compiled(layout: Layout, chips: int) -> Found:
    devices = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGIES[chips]).devices
    axes = (chips // layout.model, layout.model)
    mesh = Mesh(np.array(devices).reshape(axes), ("data", "model"), (AxisType.Auto,) * 2)

    def place(name: str) -> NamedSharding:
        return NamedSharding(mesh, SPECS[name] if layout.model > 1 else P())

    places = [{name: place(name) for name in SHAPES} for _ in range(BLOCKS)]
    params = [
        {n: jax.ShapeDtypeStruct(s, jnp.float32, sharding=place(n)) for n, s in SHAPES.items()}
        for _ in range(BLOCKS)
    ]
    tx = gradtx.adamw(1e-3)
    sharding = gradtx.state_sharding(tx, params, places, zero=layout.zero)
    step = gradtx.make_step(loss, tx, sharding=sharding)
    x = jax.ShapeDtypeStruct(
        (axes[0], TOKENS, WIDTH), jnp.float32, sharding=NamedSharding(mesh, P("data"))
    )
    program = step.lower(params, sharding.abstract, x).compile()
    memory: Any = program.memory_analysis()
    found = by_kind(collectives(program.as_text() or ""))
    return Found(sharding.bytes_per_device, memory.temp_size_in_bytes, found)


def expected(layout: Layout, chips: int) -> tuple[str, str]:
    """State bytes on a chip, and what its step sends: the arrays reduced or gathered."""
    matrices = 4 * BLOCKS * sum(int(np.prod(s)) for n, s in SHAPES.items() if n != "norm")
    vectors = 4 * BLOCKS * 2 * WIDTH
    own = matrices / layout.model  # bytes of gradients of a replica's chip
    slots = 2 * (own / (chips // layout.model if layout.zero else 1) + vectors) + 4
    sends = [f"gradients {size(own + vectors)} reduced"]
    if layout.zero:
        sends.append(f"parameters {size(own)} gathered")
    if layout.model > 1:
        activations = 4 * BLOCKS * 4 * TOKENS * WIDTH  # two each way in every block
        sends.append(f"activations {size(activations)} reduced")
    return size(slots), "; ".join(sends)


def row(layout: Layout, chips: int) -> list[object]:
    found, (state, sends) = compiled(layout, chips), expected(layout, chips)
    sent = "; ".join(f"{n} {kind} {size(b)}" for kind, (n, b) in found.collectives.items())
    return [layout.name, size(found.state), state, size(found.temporary), sent, sends]


def tables(chosen: list[int]) -> Iterator[str]:
    header = ["layout", "state", "expected", "temporary", "collectives", "expected"]
    for chips in chosen:
        rows = [row(layout, chips) for layout in LAYOUTS]
        yield markdown(f"{chips} chips of TPU v5e", header, rows)


if __name__ == "__main__":
    for table in tables([int(word) for word in sys.argv[1:]] or list(TOPOLOGIES)):
        print(table, flush=True)
