"""What a step costs on chips that this machine lacks: compiled for TPU v5e and H100, not run.

    python -m benchmarks.aot [all, LABEL or EXPRESSION ...]

XLA's compilers need no chip, only these packages: `pip install gradtx[aot]`, and of jax's version
`pip install --no-deps jax-cuda12-plugin jax-cuda12-pjrt`. A chip whose package is missing is left
out. The figures are deterministic: they are properties of the program, not of a run.
"""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

# Both compilers look for hardware as soon as jax is imported; this tells them what to assume.
os.environ.update(
    JAX_PLATFORMS="cpu",
    JAX_SKIP_CUDA_CONSTRAINTS_CHECK="1",
    ALLOW_MULTIPLE_LIBTPU_LOAD="1",
    TPU_ACCELERATOR_TYPE="v5litepod-4",
    TPU_SKIP_MDS_QUERY="1",
    TPU_WORKER_HOSTNAMES="localhost",
)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, SingleDeviceSharding

from benchmarks.hlo import ARRAY, most_entries, outside_bytes, type_bytes
from benchmarks.pairs import Library, Pair, chosen, libraries
from benchmarks.tables import markdown, size

Shapes = Mapping[str, tuple[int, ...]]

# Larger than the 128 MB of VMEM of a TPU: prefetching into it would be counted as traffic.
LARGE: Shapes = {"x": (16384, 8192)}


def transformer(layers: int = 12, width: int = 512, words: int = 32_000) -> Shapes:
    block: Shapes = (
        dict.fromkeys(("query", "key", "value", "output"), (width, width))
        | {"up": (width, 4 * width), "down": (4 * width, width)}
        | {f"vector{i}": (width,) for i in range(6)}
    )
    blocks = {f"{i}.{name}": shape for i in range(layers) for name, shape in block.items()}
    return blocks | {"embedding": (words, width)}


TREES: Mapping[str, Shapes] = {
    "transformer of 145 leaves": transformer(),
    "200 leaves of 64": {f"x{i}": (64,) for i in range(200)},
}
# These take several seconds each, so not every optimizer is compiled for the trees by default.
ON_TREES = ["adam", "clip + adamw"]


def v5e() -> list[Any]:
    """The four on one host."""
    return topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices


def v5e_grid() -> list[Any]:
    """Sixteen, on four hosts."""
    return topologies.get_topology_desc(platform="tpu", topology_name="v5e:4x4").devices


def tpu_v5e() -> Any:
    return v5e()[0]


def h100s(count: int) -> list[Any]:
    """A number of them on one host."""
    facts = """
        cuda_compute_capability { major: 9 }
        core_count: 132  fpus_per_core: 128  clock_rate_ghz: 1.98
        threads_per_warp: 32  threads_per_block_limit: 1024  threads_per_core_limit: 2048
        block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
        registers_per_block_limit: 65536  registers_per_core_limit: 65536
        shared_memory_per_block: 49152  shared_memory_per_block_optin: 232448
        shared_memory_per_core: 233472  l2_cache_size: 52428800
        device_memory_size: 84942979072  memory_bandwidth: 3352320000000
    """
    target = (
        f"gpu_device_info {{ {facts} }} "
        'platform_name: "CUDA" dnn_version_info { major: 9 } device_description_str: "NVIDIA H100"'
    )
    host = f"1x1x{count}"
    topology = topologies.get_topology_desc(
        platform="cuda", topology_name=host, topology=host, target_config=target
    )
    return topology.devices


def h100() -> Any:
    return h100s(1)[0]


CHIPS: Mapping[str, Callable[[], Any]] = {"TPU v5e": tpu_v5e, "H100": h100}


def available() -> dict[str, Any]:
    """The chips whose compiler is installed; says which are not."""
    jax.devices()  # loads the plugins, which the topologies need
    found = {}
    for name, describe in CHIPS.items():
        try:
            found[name] = describe()
        except Exception as error:  # whatever a plugin raises that is missing or too old
            print(f"no compiler for {name}: {str(error).splitlines()[0]}", file=sys.stderr)
    return found


def known(place: Any) -> contextlib.AbstractContextManager[Any]:
    """Where programs are lowered for a chip or a mesh: JAX 0.12 has kernels for known GPUs."""
    is_mesh = isinstance(place, Mesh)
    mesh = place if is_mesh else Mesh([place], ("x",), axis_types=(AxisType.Auto,))
    return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)


class Cost(NamedTuple):
    """What one step costs.

    moved: bytes read and written; over: these over one pass through the arrays there are (gradient
    and parameter read, parameter written, every slot read and written); kernels: that read or write
    arrays; single: instructions on single numbers; temporary: bytes; outside: bytes of those moved
    that lie in main memory; launched: `kernels` without prefetches.
    """

    moved: float
    over: float
    kernels: int
    single: int
    temporary: int
    outside: int
    launched: int


def cost(library: Library, shapes: Shapes, device: Any) -> Cost:
    here = SingleDeviceSharding(device)

    def zeros() -> Any:
        return {name: jnp.zeros(shape) for name, shape in shapes.items()}

    params = jax.eval_shape(zeros)
    state = jax.eval_shape(library.tx.init, params)
    step = jax.jit(library.step, donate_argnums=(0, 1), in_shardings=here, out_shardings=here)
    with known(device):
        compiled = step.lower(params, state, params).compile()

    kernels = entry_kernels(compiled.as_text() or "")
    # XLA counts the bytes for a TPU but not for a GPU.
    analysis = compiled.cost_analysis() or {}
    moved = analysis.get("bytes accessed", sum(kernel.moved for kernel in kernels))
    single = sum(kernel.single for kernel in kernels)
    memory: Any = compiled.memory_analysis()
    return Cost(
        moved,
        moved / (3 * stored(params) + 2 * stored(state)),
        len(kernels) - single,
        single,
        memory.temp_size_in_bytes,
        sum(kernel.outside for kernel in kernels),
        launched(compiled.as_text() or ""),
    )


PREFETCHES = {"copy-start", "copy-done", "slice-start", "slice-done"}


def launched(hlo: str) -> int:
    """How many kernels read or write arrays; a TPU's prefetches run beside them."""
    return sum(not k.single and k.operation not in PREFETCHES for k in entry_kernels(hlo))


def stored(tree: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


class Kernel(NamedTuple):
    """operation: in HLO; moved: bytes read and written; single: whether all are single numbers.

    outside: those that are in main memory, where XLA says which are not, slices counted as what
    they are taken from; of a prefetch what it brings.
    """

    operation: str
    moved: int
    single: bool
    outside: int


# Instructions that name or regroup buffers and launch nothing.
BOOKKEEPING = frozenset({"bitcast", "constant", "get-tuple-element", "parameter", "tuple"})
VIEW = re.compile(r'custom_call_target="(ConcatBitcast|AllocateBuffer)"')
INSTRUCTION = re.compile(
    r"^\s+(?:ROOT )?(?P<name>%\S+) = (?P<type>\(.*?\)|\S+) (?P<op>[a-z][\w\-]*)\((?P<args>.*?)\)"
    r"(?P<rest>.*)$"
)
COMPUTATION = re.compile(r"^(?:ENTRY )?(%\S+) \(.*\{$", re.MULTILINE)
BRANCHES = re.compile(r"(?:true|false|branch)_computations?=\{?(%[^}\s]+)")
CALLED = re.compile(r"calls=(%[\w.\-]+)")
SLICES = frozenset({"slice", "dynamic-slice"})


def entry_kernels(hlo: str) -> list[Kernel]:
    """The kernels of the entry computation, each with the bytes of its operands and results.

    A copy that runs on its own, a TPU's prefetch, counts twice: it is started and awaited. Of what
    a kernel takes slices of, these are counted.
    """
    heads = list(COMPUTATION.finditer(hlo))
    ends = [head.start() for head in heads[1:]] + [len(hlo)]
    bodies = {h[1]: hlo[h.end() : end] for h, end in zip(heads, ends, strict=True)}
    return list(_kernels(bodies, heads[-1][1]))


def _kernels(bodies: Mapping[str, str], computation: str) -> Iterator[Kernel]:
    types: dict[str, str] = {}
    for line in bodies[computation].splitlines():
        found = INSTRUCTION.match(line)
        if found is None:
            continue
        types[found["name"]] = found["type"]
        if found["op"] == "conditional":  # the branch that moves most, as XLA counts for a TPU
            branches = re.findall(r"%[\w.\-]+", ",".join(BRANCHES.findall(found["rest"])))
            choices = [list(_kernels(bodies, branch)) for branch in branches]
            yield from max(choices, key=lambda kernels: sum(k.moved for k in kernels))
        elif found["op"] == "while":  # one turn
            (body,) = re.findall(r"body=(%[\w.\-]+)", found["rest"])
            inner = list(_kernels(bodies, body))
            moved, outside = sum(k.moved for k in inner), sum(k.outside for k in inner)
            yield Kernel("while", moved, single=False, outside=outside)
        elif found["op"] not in BOOKKEEPING and not VIEW.search(line):
            operands = re.findall(r"%[\w.\-]+", found["args"])
            touched = [found["type"], *(types.get(x, "") for x in dict.fromkeys(operands))]
            called = CALLED.search(found["rest"])
            parts = _parts(bodies[called[1]]) if called else {}
            left_out = {
                operands[i]: max(type_bytes(types[operands[i]]) - part, 0)
                for i, part in parts.items()
                if operands[i] in types
            }
            outside = sum(map(outside_bytes, touched))
            if found["op"].endswith("-start"):
                whole, part = [type_bytes(x[0]) for x in ARRAY.finditer(found["type"])][:2]
                outside = min(whole, part)
            elif found["op"].endswith("-done"):
                outside = 0
            single = max(map(most_entries, touched)) <= 1
            moved = sum(map(type_bytes, touched)) - sum(left_out.values())
            yield Kernel(found["op"], moved, single, outside)


def _parts(body: str) -> dict[int, int]:
    """The bytes that a fused computation reads of those arguments of which it takes slices only."""
    numbers: dict[str, int] = {}
    readers: dict[str, list[re.Match[str]]] = {}
    for found in filter(None, map(INSTRUCTION.match, body.splitlines())):
        if found["op"] == "parameter":
            numbers[found["name"]] = int(found["args"])
        for operand in re.findall(r"%[\w.\-]+", found["args"]):
            readers.setdefault(operand, []).append(found)
    return {
        number: sum(type_bytes(found["type"]) for found in readers[name])
        for name, number in numbers.items()
        if name in readers
        and all(
            found["op"] in SLICES and found["args"].split(",")[0] == name for found in readers[name]
        )
    }


def figures(pairs: list[Pair], shapes: Shapes) -> Iterator[tuple[Pair, str, list[Cost]]]:
    """For every optimizer and chip the costs of gradtx's step, and of Optax's if there is one."""
    devices = available()
    for pair in pairs:
        for chip, device in devices.items():
            yield pair, chip, [cost(library, shapes, device) for library in libraries(pair)]


def row(chip: str, costs: list[Cost], one_leaf: bool) -> Iterator[str]:
    """Bytes (of the large leaf), kernels and temporary bytes: gradtx's / Optax's."""

    def side_by_side(cells: list[str]) -> str:
        return " / ".join([*cells, "-"][:2])

    if one_leaf:
        # Both over the arrays of gradtx, so that they can be compared.
        base = costs[0].moved / costs[0].over
        yield side_by_side([f"{c.moved / base:.2f}" for c in costs])
    if chip == "H100":
        # There each instruction is a kernel, on a TPU one on single numbers is not.
        yield side_by_side([str(c.kernels + c.single) for c in costs])
    else:
        yield side_by_side([str(c.kernels) for c in costs])
        yield side_by_side([str(c.single) for c in costs])
    yield side_by_side([size(c.temporary) for c in costs])


def columns(chip: str, one_leaf: bool) -> list[str]:
    names = ["bytes"] * one_leaf + ["kernels"] + ["numbers"] * (chip != "H100") + ["temp"]
    return [f"{chip}: {name}" for name in names]


def table(title: str, shapes: Shapes, pairs: list[Pair]) -> str:
    one_leaf = shapes is LARGE
    rows: dict[str, list[str]] = {}
    header: dict[str, None] = {}
    for pair, chip, costs in figures(pairs, shapes):
        if pair.label not in rows:
            rows[pair.label] = [pair.label, f"{pair.least:.2f}"] if one_leaf else [pair.label]
        header |= dict.fromkeys(columns(chip, one_leaf))
        rows[pair.label] += row(chip, costs, one_leaf)
    if one_leaf:
        for pair in pairs:
            rows[pair.label].append(pair.why)
    return markdown(
        f"Compiled ahead of time, {title}; gradtx / optax",
        ["optimizer", *["least"] * one_leaf, *header, *["why"] * one_leaf],
        rows.values(),
    )


def main(words: list[str]) -> None:
    # Of matrix products there is one for each leaf: see benchmarks.matrices.
    pairs = [pair for pair in chosen(words) if pair.least is not None]
    print(table("one leaf of 128M", LARGE, pairs), flush=True)
    for name, shapes in TREES.items():
        print(table(name, shapes, chosen(ON_TREES)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
