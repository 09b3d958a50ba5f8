"""Peaks of a step with the optimizer inside of the backward pass: compiled and not run.

    python -m benchmarks.inside [host, chips, plans, cpu]

24 layers of 1024 x 4096 and back under `jax.checkpoint`, 2,048 tokens, for TPU v5e and H100: AdamW
in float32, and with slots in int8 and parameters in bfloat16. Prints the peak of the ordinary step
and of the step inside, beside the bytes of parameters and slots, and the peak of the ordinary step
where the layers are unrolled, each with leaves of its own; and how many products of matrices the
loops of the first two have. The packages are those of the
extra `aot`.

With `host`, the slots are in the memory of the host of a v5e: what the device holds, how many
copies there are of one layer and of a whole stack between the two memories, and how many products
of matrices at least the program does while a layer's slots come in, and while they go out.

With `chips`, AdamW's parameters, slots and batch are divided over 16 chips of a v5e: the peak of a
chip, and the collectives of both steps.

With `plans`, what stays in memory of transformers of 1 to 100 billion parameters, by `plan_step`.

With `cpu`, 24 layers of 512 x 2048 and back are run on the CPU: the temporaries of both steps of
AdamW, and the processor time of the step inside as a share of that of the ordinary one, and of its
tracing and compilation.
"""

import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks import aot  # isort: split

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import gradtx
from benchmarks.hlo import Collective, collectives, in_loops, meanwhile
from benchmarks.tables import markdown, size

LAYERS, WIDTH, TOKENS = 24, 1024, 2048
SHAPES = {"a": (LAYERS, WIDTH, 4 * WIDTH), "b": (LAYERS, 4 * WIDTH, WIDTH)}
ADAMW = gradtx.adamw(1e-3)
CASES = {
    "AdamW, float32": (ADAMW, jnp.float32),
    "AdamW in int8, bfloat16 parameters": (gradtx.store(ADAMW), jnp.bfloat16),
}


HOSTED = {
    "AdamW, float32": (gradtx.offload(ADAMW), jnp.float32),
    "AdamW in bf16, bfloat16 parameters": (
        gradtx.offload(gradtx.store(ADAMW, "bf16")),
        jnp.bfloat16,
    ),
    "AdamW in int8, bfloat16 parameters": (gradtx.offload(gradtx.store(ADAMW)), jnp.bfloat16),
}


class Peak(NamedTuple):
    """Bytes: parameters, slots, the peak, and what there must be besides a layer's gradients.

    products: of matrices that are in the program's loops, each once.
    """

    parameters: int
    slots: int
    peak: int
    least: float
    products: int


def layer(h: Any, w: Any) -> Any:
    return h + jnp.tanh(h @ w["a"]) @ w["b"], None


def loss(p: Any, x: Any, y: Any) -> Any:
    h, _ = jax.lax.scan(jax.checkpoint(layer), x, p)
    return jnp.mean((h.astype(jnp.float32) - y) ** 2)


def unrolled(p: Any, x: Any, y: Any) -> Any:
    for w in p:
        x, _ = jax.checkpoint(layer)(x, w)
    return jnp.mean((x.astype(jnp.float32) - y) ** 2)


class Hosted(NamedTuple):
    """Bytes: parameters, slots on the host, what the device holds, inputs of layers; and copies.

    layers: copies of one layer between the memories, in a turn of the loop; stacks: of all layers;
    coming, going: while each copy of a layer is under way, the products of matrices.
    """

    parameters: int
    host: int
    device: int
    inputs: int
    layers: int
    stacks: int
    coming: list[int]
    going: list[int]


def arguments(dtype: Any) -> tuple[Any, Any, Any]:
    """The shapes of parameters, tokens and targets."""
    p = {n: jax.ShapeDtypeStruct(shape, dtype) for n, shape in SHAPES.items()}
    x = jax.ShapeDtypeStruct((TOKENS, WIDTH), dtype)
    return p, x, jax.ShapeDtypeStruct((TOKENS, WIDTH), jnp.float32)


def hosted(inside: bool, cases: Any = HOSTED) -> Iterator[tuple[str, Hosted]]:
    """The case, and what its step holds with slots on the host of a v5e."""
    device = aot.available().get("TPU v5e")
    if device is None:
        return
    here = aot.SingleDeviceSharding(device)
    host = aot.SingleDeviceSharding(device, memory_kind="pinned_host")
    for case, (tx, dtype) in cases.items():
        p, x, y = arguments(dtype)
        program, s = jax.make_jaxpr(tx.init, return_shape=True)(p)
        far = [v.memory_space == jax.memory.Space.Host for v in program.out_avals]
        places = jax.tree.structure(s).unflatten([host if yes else here for yes in far])

        def step(p: Any, s: Any, x: Any, y: Any, tx: Any = tx) -> Any:
            return gradtx.minimize(loss, tx, p, s, x, y, inside=inside or None)

        run = jax.jit(
            step,
            donate_argnums=(0, 1),
            in_shardings=(here, places, here, here),
            out_shardings=(here, places, here),
        )
        compiled = run.lower(p, s, x, y).compile()
        memory, text = compiled.memory_analysis(), compiled.as_text()
        yield (
            case,
            Hosted(
                aot.stored(p),
                memory.host_argument_size_in_bytes,
                memory.argument_size_in_bytes + memory.temp_size_in_bytes,
                LAYERS * aot.stored(x),
                len(re.findall(r"S\(5\).* dynamic-(?:update-)?slice-start\(", text)),
                len(re.findall(r"S\(5\).* copy-start\(", text)),
                meanwhile(text, "dynamic-slice"),
                meanwhile(text, "dynamic-update-slice"),
            ),
        )


class Divided(NamedTuple):
    """Bytes of one of 16 chips: the peak, what there must be; and the program's collectives."""

    peak: int
    least: float
    collectives: list[Collective]


def divided(inside: bool) -> Divided:
    """The step of AdamW in float32 with everything divided over 16 chips of a v5e."""
    mesh = Mesh(np.array(aot.v5e_grid()), ("chips",), axis_types=(AxisType.Auto,))
    p, x, y = arguments(jnp.float32)
    parts = dict.fromkeys(p, NamedSharding(mesh, PartitionSpec(None, "chips")))
    sharding = gradtx.state_sharding(ADAMW, p, parts)
    rows = NamedSharding(mesh, PartitionSpec("chips"))
    batch = [jax.ShapeDtypeStruct((16 * TOKENS, WIDTH), a.dtype, sharding=rows) for a in (x, y)]
    step = gradtx.make_step(loss, ADAMW, sharding=sharding, inside=inside or None)
    compiled = step.lower(p, sharding.abstract, *batch).compile()
    held = (aot.stored(p) + aot.stored(sharding.abstract)) / 16 + LAYERS * aot.stored(x)
    peak = compiled.memory_analysis().peak_memory_in_bytes
    return Divided(peak, held, collectives(compiled.as_text()))


MODELS = ((16, 2048), (32, 4096), (40, 5120), (60, 6656), (80, 8192), (80, 10240))
PLANNED = {
    "AdamW, float32": (ADAMW, jnp.float32),
    "the same, slots on the host": HOSTED["AdamW, float32"],
    "AdamW in int8, bfloat16 parameters": CASES["AdamW in int8, bfloat16 parameters"],
    "AdamW in bf16 on the host, bfloat16 parameters": HOSTED["AdamW in bf16, bfloat16 parameters"],
}


class Planned(NamedTuple):
    """Bytes: parameters, slots on the device and on the host, and what a step needs besides.

    ordinary: all gradients, and whatever slots are brought in; inside: the gradients of the leaves
    outside of the scan and of one layer, and that layer's slots if they come from the host.
    """

    parameters: int
    device: int
    host: int
    ordinary: int
    inside: int


def planned(layers: int, width: int, tx: Any, dtype: Any, words: int = 32_000) -> Planned:
    """What a transformer of scanned layers with an embedding and a head needs, from shapes."""

    def plan(count: int) -> Any:
        shapes = {"qkv": (3, 1), "out": (1, 1), "up": (4, 1), "down": (1, 4)}
        p = {
            name: jax.ShapeDtypeStruct((count, m * width, n * width), dtype)
            for name, (n, m) in shapes.items()
        }
        p["embed"] = jax.ShapeDtypeStruct((words, width), dtype)
        p["head"] = jax.ShapeDtypeStruct((width, words), dtype)
        return gradtx.plan_step(tx, p, {"all": 1})

    whole, one, two = plan(layers), plan(1), plan(2)
    # The ordinary step takes that of the leaves outside of the scan, whose slots all come in.
    slots_outside = 2 * one.host_bytes - two.host_bytes
    return Planned(
        whole.parameter_bytes,
        whole.state_bytes - whole.host_bytes,
        whole.host_bytes,
        whole.parameter_bytes + whole.host_bytes,
        one.parameter_bytes + max(one.host_bytes - slots_outside, slots_outside),
    )


def peaks(inside: bool, of: Any = loss) -> Iterator[tuple[str, str, Peak]]:
    """The chip, the case, and the bytes of its step."""
    for chip, device in aot.available().items():
        here = aot.SingleDeviceSharding(device)
        for case, (tx, dtype) in CASES.items():
            p, x, y = arguments(dtype)
            if of is unrolled:
                alone = {n: jax.ShapeDtypeStruct(shape[1:], dtype) for n, shape in SHAPES.items()}
                p = [alone] * LAYERS
            s = jax.eval_shape(tx.init, p)

            def step(p: Any, s: Any, x: Any, y: Any, tx: Any = tx) -> Any:
                return gradtx.minimize(of, tx, p, s, x, y, inside=inside or None)

            run = jax.jit(step, donate_argnums=(0, 1), in_shardings=here, out_shardings=here)
            compiled = run.lower(p, s, x, y).compile()
            peak = compiled.memory_analysis().peak_memory_in_bytes
            held = aot.stored(p), aot.stored(s)
            products = re.findall(r" (?:convolution|dot)\(", in_loops(compiled.as_text()))
            least = sum(held) + LAYERS * aot.stored(x)
            yield chip, case, Peak(*held, peak, least, len(products))


def on_cpu(tokens: int, rounds: int = 6, steps: int = 5) -> tuple[list[int], float, float]:
    """Temporaries of the ordinary step and of the step inside, and the ratios of median times.

    The first ratio is of steps, the second of tracing and compiling them. Several steps of a kind
    are taken in a row, as a training loop does: the first one finds the memory that the other kind
    has given back, and is not counted.
    """
    jax.config.update("jax_enable_compilation_cache", False)
    width, temporary = 512, []
    times: tuple[list[float], list[float]] = [], []
    made: tuple[list[float], list[float]] = [], []
    x = jax.random.normal(jax.random.key(0), (tokens, width))
    runs: list[Any] = []
    for inside in (None, True):
        p = {"a": jnp.full((LAYERS, width, 4 * width), 1e-3)}
        p["b"] = jnp.full((LAYERS, 4 * width, width), 1e-3)
        step = gradtx.make_step(loss, ADAMW, inside=inside)
        now = p, step.init(p)
        temporary.append(step.lower(*now, x, x).compile().memory_analysis().temp_size_in_bytes)
        runs.append((step, step(*now, x, x)[:2]))
    for order in rounds // 2 * [(0, 1), (1, 0)]:  # in turn, since the load of the machine changes
        for k in order:
            step, now = runs[k]
            for i in range(steps + 1):
                begin = time.process_time()
                now = jax.block_until_ready(step(*now, x, x)[:2])
                if i:
                    times[k].append(time.process_time() - begin)
            runs[k] = step, now
    for _ in range(5):
        for k, inside in enumerate((None, True)):
            jax.clear_caches()
            begin = time.process_time()
            gradtx.make_step(loss, ADAMW, inside=inside).lower(*runs[k][1], x, x).compile()
            made[k].append(time.process_time() - begin)
    ratios = [
        statistics.median(of_inside) / statistics.median(ordinary)
        for ordinary, of_inside in (times, made)
    ]
    return temporary, *ratios


def main() -> None:
    if sys.argv[1:] == ["cpu"]:
        for tokens in (16, 256):
            temporary, share, compiling = on_cpu(tokens)
            held = " -> ".join(map(size, temporary))
            print(f"{tokens} tokens: temporaries {held}, {share:.2f}, compiled {compiling:.2f}")
        return
    if sys.argv[1:] == ["plans"]:
        table = []
        for layers, width in MODELS:
            cells = []
            for tx, dtype in PLANNED.values():
                x = planned(layers, width, tx, dtype)
                held = x.parameters + x.device
                cells.append(f"{(held + x.ordinary) / 1e9:.1f} / {(held + x.inside) / 1e9:.1f}")
            count = x.parameters / jnp.dtype(dtype).itemsize / 1e9
            table.append([f"{count:.1f}", f"{layers} of {width}", *cells])
        title = "what stays in memory, GB, ordinary and inside"
        print(markdown(title, ["10^9", "layers", *PLANNED], table))
        return
    if sys.argv[1:] == ["chips"]:
        for name, found in (("ordinary", divided(False)), ("inside", divided(True))):
            print(f"{name}: peak {size(found.peak)}")
            for each, count in sorted(Counter(found.collectives).items()):
                print(f"    {count} {each.kind} of {size(each.bytes)}")
        return
    if sys.argv[1:] == ["host"]:
        of_ordinary = dict(hosted(False))
        rows = [
            [
                case,
                *map(size, (x.parameters, x.host, of_ordinary[case].device, x.device)),
                str(x.layers),
                str(x.stacks),
                *(str(min(products)) for products in (x.coming, x.going)),
            ]
            for case, x in hosted(True)
        ]
        header = ["", "parameters", "on the host", "ordinary", "inside", "of layers", "of stacks"]
        header += ["while they come", "while they go"]
        print(markdown("slots on the host of a v5e, bytes of the device, copies", header, rows))
        return
    ordinary = {(chip, case): peak for chip, case, peak in peaks(False)}
    apart = {(chip, case): peak for chip, case, peak in peaks(False, unrolled)}
    rows = [
        [chip, case, size(peak.parameters), size(peak.slots)]
        + [size(x.peak) for x in (ordinary[chip, case], peak, apart[chip, case])]
        + [f"{ordinary[chip, case].products} / {peak.products}"]
        for chip, case, peak in peaks(True)
    ]
    header = ["", "", "parameters", "slots", "ordinary", "inside", "unrolled", "products"]
    print(markdown("the step inside of the backward pass, peaks", header, rows))


if __name__ == "__main__":
    main()
