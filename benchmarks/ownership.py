"""Matrices whose rows are divided over a mesh of TPU v5e or H100: a step compiled and not run.

    python -m benchmarks.ownership [MESH ...] [--optimizer muon] [--layers 24] [--width 512]
        [--no-optax] [--overlap]

Muon, SOAP (whose bases may come from products alone) or Shampoo. Four matrices in each layer of a
transformer: queries, keys and values in one, the output, and the two of the feed-forward net.
Prints, for gradtx with the sharding, for `tx.update` alone (where no mesh is known; under
`jax.set_mesh` and on `Explicit` axes with a state of `init_sharded`), with the sharding balanced if
stacks do not divide, and for Optax: the collectives, how many are in loops, the bytes that a device
receives over those of moving every matrix to one device and back, the operations of a device over
an equal share of those that one device needs without a mesh, temporary bytes, and beside how many
of the collectives products of matrices are computed. XLA counts operations that a device may skip
as if all did them; for the balanced step they are those of the plan, in products. With `--overlap`
a TPU's compiler is told to start all-to-alls and await them apart, as a GPU's does anyway.
"""

import argparse
import contextlib
import functools
import json
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from benchmarks.aot import h100s  # isort: split

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import gradtx
from benchmarks.hlo import collectives, in_loops, overlapped
from benchmarks.tables import markdown, size
from gradtx.sharding.operations import busiest, equal_share

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "muon": gradtx.muon,
    "soap": gradtx.soap,
    "soap by products": functools.partial(gradtx.soap, basis="products"),
    "shampoo": gradtx.shampoo,
}
BALANCED = "gradtx, balanced"
UNKNOWN = "gradtx, `tx.update` without a mesh in context"
ON_AUTO = "gradtx, `tx.update` under `jax.set_mesh`"
ON_EXPLICIT = "gradtx, `tx.update` on `Explicit` axes"
MACHINES = {"v5e:4x4": "16 chips of TPU v5e", "h100": "8 H100"}
OVERLAP = {"xla_tpu_enable_async_all_to_all": True}


def mesh_of(name: str) -> Mesh:
    topology = topologies.get_topology_desc
    chips = h100s(8) if name == "h100" else topology(platform="tpu", topology_name=name).devices
    return Mesh(np.asarray(chips), ("d",), axis_types=(AxisType.Auto,))


def shapes(layers: int, width: int) -> dict[str, tuple[int, int]]:
    one = {"qkv": (width, 3 * width), "out": (width, width)}
    one |= {"up": (width, 4 * width), "down": (4 * width, width)}
    return {f"{i:02}/{name}": shape for i in range(layers) for name, shape in one.items()}


class Found(NamedTuple):
    """What a program does on one device."""

    collectives: int
    in_loops: int
    received: float
    operations: float | None  # XLA counts them for a TPU but not for a GPU
    temporary: int
    overlapped: int  # collectives beside which there are products


def compiled(
    tx: Any,
    update: Callable[..., Any],
    apply: Any,
    like: Any,
    places: Any,
    kept: Any = None,
    *,
    mesh_known: bool = True,
    options: Any = None,
) -> Any:
    """A step of `tx`, whose state lies as `kept` says, with the mesh in context or without.

    `options` are those of the compiler.
    """

    def step(params: Any, state: Any, grads: Any) -> Any:
        updates, state = update(grads, state, params)
        return apply(params, updates), state

    params = jax.tree.map(
        lambda x, p: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=p), like, places
    )
    # Momentum lies as its matrix does, numbers on every device.
    mesh = next(iter(places.values())).mesh
    state = kept or jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(
            x.shape,
            x.dtype,
            sharding=NamedSharding(mesh, PartitionSpec("d") if x.ndim == 2 else PartitionSpec()),
        ),
        jax.eval_shape(tx.init, like),
    )
    out = jax.tree.map(lambda x: x.sharding, (params, state))
    jitted = jax.jit(step, donate_argnums=(0, 1), out_shardings=out)
    with jax.set_mesh(mesh) if mesh_known else contextlib.nullcontext():
        return jitted.lower(params, state, params).compile(options)


def operations_of(program: Any) -> float | None:
    return (program.cost_analysis() or {}).get("flops")


def found(program: Any, like: Any, devices: int, whole: float | None) -> Found:
    """`whole`: the operations on one device that has everything."""
    text = program.as_text()
    sent = collectives(text)
    inside = collectives(in_loops(text))
    others = (devices - 1) / devices
    # In an all-to-all it is a device's own part; of what is reduced, a device receives two shares.
    weights = {"all-to-all": others, "all-gather": others, "all-reduce": 2 * others}
    turns = 5  # of a loop
    counted = [*sent, *inside * (turns - 1)]
    received = sum(weights.get(kind, others) * n for kind, n in counted)
    least = 2 * others * sum(4 * math.prod(x.shape) for x in like.values()) / devices
    operations = operations_of(program)
    if operations is not None:
        operations = None if whole is None else operations / (whole / devices)
    temporary = program.memory_analysis().temp_size_in_bytes
    beside = sum(products > 0 for products in overlapped(text))
    return Found(len(sent), len(inside), received / least, operations, temporary, beside)


def figures(
    name: str,
    layers: int,
    width: int,
    with_optax: bool,
    optimizer: str = "muon",
    *,
    counted: bool = True,
    overlap: bool = False,
) -> Iterator[tuple[str, Found]]:
    """Of each step what it does; operations, if counted, take the program of one device too."""
    mesh, options = mesh_of(name), OVERLAP if overlap and name != "h100" else None
    like = {k: jax.ShapeDtypeStruct(s, jnp.float32) for k, s in shapes(layers, width).items()}
    places = dict.fromkeys(like, NamedSharding(mesh, PartitionSpec("d", None)))
    in_types = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,))
    typed = dict.fromkeys(like, NamedSharding(in_types, PartitionSpec("d", None)))
    ours = OPTIMIZERS[optimizer](1e-3)
    sharding = gradtx.state_sharding(ours, like, places)
    on_types = gradtx.state_sharding(ours, like, typed).abstract
    one = Mesh(np.asarray(mesh.devices.ravel()[:1]), ("d",))
    alone = dict.fromkeys(like, NamedSharding(one, PartitionSpec()))
    cases = {
        "gradtx, as `make_step`": (ours, sharding.placed(ours).update, gradtx, sharding.abstract),
        ON_AUTO: (ours, ours.update, gradtx, sharding.abstract),
        ON_EXPLICIT: (ours, ours.update, gradtx, on_types),
    }
    if optimizer == "muon":  # for others XLA takes minutes to divide every product
        cases[UNKNOWN] = (ours, ours.update, gradtx, None)
    balanced = gradtx.state_sharding(ours, like, places, balance=True)
    if any(stack.first is not None for stack in balanced.owned):
        update = balanced.placed(ours).update
        cases[BALANCED] = (ours, update, gradtx, balanced.abstract)
    if with_optax and optimizer == "muon":
        theirs = optax.contrib.muon(1e-3)
        cases["optax"] = (theirs, theirs.update, optax, None)
    whole: dict[Any, float | None] = {}
    for label, (tx, update, library, kept) in cases.items():
        if counted and library not in whole:
            program = compiled(tx, tx.update, library.apply_updates, like, alone)
            whole[library] = operations_of(program)
        where, known = typed if label == ON_EXPLICIT else places, label != UNKNOWN
        apply = library.apply_updates
        program = compiled(tx, update, apply, like, where, kept, mesh_known=known, options=options)
        figures = found(program, like, mesh.size, whole.get(library))
        if label == BALANCED:
            share = busiest(balanced.owned) / equal_share(balanced.owned)
            figures = figures._replace(operations=share)
        yield label, figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Divided matrices, compiled and not run.")
    parser.add_argument("meshes", nargs="*", metavar="MESH", help=", ".join(MACHINES))
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="muon")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--no-optax", action="store_true")
    parser.add_argument("--overlap", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    for machine in given.meshes or MACHINES:
        sizes = given.layers, given.width, not given.no_optax, given.optimizer
        rows = list(figures(machine, *sizes, overlap=given.overlap))
        if given.json:
            print(json.dumps({label: row._asdict() for label, row in rows}), flush=True)
            continue
        header = [
            "",
            "collectives",
            "in loops",
            "received",
            "operations",
            "temporary",
            "overlapped",
        ]
        cells = []
        for label, x in rows:
            done = "" if x.operations is None else f"{x.operations:.2f}"
            ratios = f"{x.received:.2f}", done
            numbers = [x.collectives, x.in_loops, *ratios, size(x.temporary), x.overlapped]
            cells.append([label, *numbers])
        title = (
            f"{given.optimizer}, {MACHINES[machine]}, {given.layers} layers, width {given.width}"
        )
        print(markdown(title, header, cells), flush=True)
