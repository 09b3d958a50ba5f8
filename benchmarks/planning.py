"""What optimizers hold and send on meshes of TPU v5e, from shapes alone, as tables.

    python -m benchmarks.planning

A transformer with `12 * width^2` parameters in each layer and 131,072 words, in float32: its
matrices are divided over one axis of a pod ("model") and, under ZeRO, the slots over the other
("data"). Pods of 256 chips are connected by a slower network ("pod"). Each cell has the state of a
chip, the bytes that it receives in a step, and the milliseconds that these take.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import gradtx
from benchmarks.tables import markdown, size
from gradtx.sharding.planning import TPU_V5E, TPU_V5E_NETWORK

WORDS = 1 << 17
# Layers and width.
MODELS = {"1": (16, 2048), "10": (48, 4096), "100": (80, 10240), "1,000": (128, 25600)}
MESHES = {
    "8": {"pod": 1, "data": 4, "model": 2},
    "256": {"pod": 1, "data": 16, "model": 16},
    "4,096": {"pod": 16, "data": 16, "model": 16},
    "98,304": {"pod": 384, "data": 16, "model": 16},
}
EVERY = 100
LINKS = {"pod": TPU_V5E_NETWORK, "data": TPU_V5E, "model": TPU_V5E}
SPECS = {"qkv": (None, None, "model"), "out": (None, "model"), "up": (None, None, "model")}
SPECS |= {"down": (None, "model"), "embedding": ("model",)}


def shapes(layers: int, width: int) -> dict[str, Any]:
    one = {"qkv": (width, 3 * width), "out": (width, width)}
    one |= {"up": (width, 4 * width), "down": (4 * width, width)}
    stacked = {name: (layers, *shape) for name, shape in one.items()}
    all_shapes: dict[str, Any] = {**stacked, "embedding": (WORDS, width)}
    return {k: jax.ShapeDtypeStruct(s, jnp.float32) for k, s in all_shapes.items()}


def outer() -> Any:
    return gradtx.sgd(0.7, momentum=0.9, nesterov=True)


# Each with the axes over which the batch is divided, and those of ZeRO.
CHOICES: dict[str, tuple[Callable[[], Any], tuple[str, ...], str | None]] = {
    "AdamW": (lambda: gradtx.adamw(1e-3), ("pod", "data"), None),
    "AdamW, ZeRO": (lambda: gradtx.adamw(1e-3), ("pod", "data"), "data"),
    "AdamW in int8, ZeRO": (
        lambda: gradtx.store(gradtx.adamw(1e-3), "int8"),
        ("pod", "data"),
        "data",
    ),
    "Muon, ZeRO": (
        lambda: gradtx.muon(1e-3, muon_weight_dimension_numbers=matrices),
        ("pod", "data"),
        "data",
    ),
    f"DiLoCo, {EVERY}": (
        lambda: gradtx.diloco(gradtx.adamw(1e-3), outer(), EVERY, "pod"),
        ("data",),
        "data",
    ),
    f"SparseLoCo, {EVERY}": (
        lambda: gradtx.sparse_loco(gradtx.adamw(1e-3), EVERY, "pod"),
        ("data",),
        "data",
    ),
}


def matrices(tree: Any) -> Any:
    numbers = gradtx.MuonDimensionNumbers(reduction_axis=1, output_axis=2)
    return {name: None if name == "embedding" else numbers for name in tree}


def cell(name: str, model: str, mesh: str) -> str:
    make, batch, zero = CHOICES[name]
    if "LoCo" in name and MESHES[mesh]["pod"] == 1:
        return ""
    params = shapes(*MODELS[model])
    specs = {key: P(*SPECS[key]) for key in params}
    plan = gradtx.plan_step(
        make(), params, MESHES[mesh], specs, batch=batch, zero=zero, links=LINKS
    )
    ms = 1e3 * (plan.seconds - plan.update_seconds)
    sending = f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"
    return f"{size(plan.state_bytes)}; {size(plan.received)}; {sending} ms"


def tables() -> Iterator[str]:
    for mesh, axes in MESHES.items():
        shown = " x ".join(f"{axis}={n}" for axis, n in axes.items())
        rows = [[model, *(cell(name, model, mesh) for name in CHOICES)] for model in MODELS]
        yield markdown(f"{mesh} chips, {shown}", ["10⁹ parameters", *CHOICES], rows)


if __name__ == "__main__":
    for table in tables():
        print(table, flush=True)
