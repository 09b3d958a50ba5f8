"""Muon on several equal matrices: what is traced, and what is compiled for CPU, TPU and H100.

    python -m benchmarks.matrices [NUMBER ...]
    python -m benchmarks.matrices times
    python -m benchmarks.matrices layers
    python -m benchmarks.matrices families [NAME ...]
    python -m benchmarks.matrices soap

The first prints what is traced and compiled. Its seconds are those of the process in XLA's CPU
compiler, so that other work on the machine matters little; all else is deterministic. Kernels are
those of the entry computation that read or write arrays; a TPU's prefetches, which run beside them,
are not counted. A loop counts as one. The second prints the time of a step, taken in turns; the
third that of 24 matrices of 512 x 2048 and 24 of 512 x 512, and what is compiled ahead of time for
them. The fourth compiles each matrix optimizer ahead of time, for one and for four matrices of each
of two shapes. The last is the mean time of SOAP's steps against AdamW's, ten in one program, so
that one of them makes new bases, on the character transformer of ``benchmarks.storage``: with
gradients of 32 sequences, and the optimizer by itself.
"""

import functools
import math
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.aot import (  # first: it tells jax what to assume
    Cost,
    Shapes,
    available,
    cost,
    launched,
)

# isort: split
import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr
from jax.sharding import SingleDeviceSharding

import gradtx
from benchmarks.pairs import Library, build
from benchmarks.storage import batches, loss, start, text
from benchmarks.tables import markdown, size
from benchmarks.timing import Donated, interleaved, ratio

SHAPE = (512, 2048)
MATRICES = (1, 4, 16, 64)
LARGEST_AHEAD = 16


def equal(matrices: int) -> Shapes:
    return {f"w{i}": SHAPE for i in range(matrices)}


def traced(library: Library, shapes: Shapes, device: Any) -> Any:
    here = SingleDeviceSharding(device)
    params = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in shapes.items()}
    state = jax.eval_shape(library.tx.init, params)
    step = jax.jit(library.step, donate_argnums=(0, 1), in_shardings=here, out_shardings=here)
    return step.trace(params, state, params)


def equations(jaxpr: Jaxpr) -> int:
    """How many a program has, those of its loops and calls once each."""
    inner = (getattr(x, "jaxpr", x) for e in jaxpr.eqns for x in e.params.values())
    return len(jaxpr.eqns) + sum(equations(x) for x in inner if isinstance(x, Jaxpr))


def figures(library: Library, matrices: int, chips: dict[str, Any]) -> Iterator[str]:
    program = traced(library, equal(matrices), jax.devices()[0])
    lowered = program.lower()
    start = time.process_time()
    compiled = lowered.compile()
    seconds = time.process_time() - start
    yield str(equations(program.jaxpr.jaxpr))
    yield f"{seconds:.2f}"
    yield str(launched(compiled.as_text()))
    for device in chips.values():
        if matrices > LARGEST_AHEAD:
            yield "-"
            continue
        yield str(launched(traced(library, equal(matrices), device).lower().compile().as_text()))


def rows(numbers: list[int], chips: dict[str, Any]) -> Iterator[list[str]]:
    ours, theirs = (build(name, "muon(1e-3)") for name in ("gradtx", "optax"))
    list(figures(ours, 1, {}))  # what is compiled once in a process
    for matrices in numbers:
        both = zip(figures(ours, matrices, chips), figures(theirs, matrices, chips), strict=True)
        yield [str(matrices), *(" / ".join(pair) for pair in both)]


TIMED = [
    ("muon(1e-3)", 1, (1024, 1024)),
    ("muon(1e-3)", 4, SHAPE),
    ("muon(1e-3)", 16, (256, 1024)),
    ("galore(1e-3, rank=32)", 4, (1024, 1024)),
]


def timed(expression: str, matrices: int, shape: tuple[int, ...]) -> list[object]:
    """Both libraries' steps in turns: their temporary bytes, their medians, and the ratio."""
    keys = jax.random.split(jax.random.key(0), matrices)
    params = {f"w{i}": jax.random.normal(key, shape) for i, key in enumerate(keys)}
    gradients = jax.tree.map(jnp.sin, params)
    runs, temporary = {}, []
    for library in (build(name, expression) for name in ("gradtx", "optax")):
        state = library.tx.init(params)
        lowered = jax.jit(library.step, donate_argnums=(0, 1)).lower(params, state, gradients)
        step = lowered.compile()
        temporary.append(size(step.memory_analysis().temp_size_in_bytes))
        runs[library.name] = Donated(step, (params, state), gradients)
    seconds = interleaved(runs)
    of, to = seconds.values()
    label = f"{expression}, {matrices} of {shape[0]} x {shape[1]}"
    ms = [1e3 * statistics.median(each) for each in (of, to)]
    return [label, *temporary, *ms, ratio(of, to)]


LAYERS = {f"{kind}{i}": (512, n) for i in range(24) for kind, n in (("mlp", 2048), ("out", 512))}


def layers(rounds: int = 3) -> Iterator[list[object]]:
    """The step of both libraries on `LAYERS`: on this CPU in turns, ahead for chips."""
    libraries = [build(name, "muon(1e-3)") for name in ("gradtx", "optax")]
    for chip, device in available().items():
        of, to = (cost(library, LAYERS, device) for library in libraries)
        yield [f"{chip}: kernels", of.launched, to.launched, of.launched / to.launched]
        yield [f"{chip}: GB moved", of.moved / 1e9, to.moved / 1e9, of.moved / to.moved]
        if "TPU" in chip:  # elsewhere XLA does not say what lies on the chip
            outside = of.outside / 1e9, to.outside / 1e9
            yield [f"{chip}: GB in HBM", *outside, outside[0] / outside[1]]
    params = {n: jax.random.normal(jax.random.key(0), shape) for n, shape in LAYERS.items()}
    gradients = jax.tree.map(jnp.sin, params)
    runs = {}
    for library in libraries:
        state = library.tx.init(params)
        step = jax.jit(library.step, donate_argnums=(0, 1)).lower(params, state, gradients)
        runs[library.name] = Donated(step.compile(), (params, state), gradients)
    of, to = interleaved(runs, rounds, warmup=1).values()
    yield ["CPU: ms", *(1e3 * statistics.median(each) for each in (of, to)), ratio(of, to)]


# For a TPU they are compiled with sides of 64 and 256: above that, JAX computes eigenvectors by a
# program that takes XLA a minute of processor time.
FACTORIZING = ["soap", "kl_soap", "soap_muon", "shampoo", "kl_shampoo", "splus", "kron"]
FACTORIZING += ["newton_muon", "dion"]
ORTHOGONALIZING = ["muon", "muon2", "normuon", "adamuon", "muown", "scion", "polargrad"]
ORTHOGONALIZING += ["dion2", "dion3"]
HYPERBALL = "hyperball(muon(1e-3), 1e-3)"
FAMILIES = [*ORTHOGONALIZING, HYPERBALL, "apollo", "fira", "conda", *FACTORIZING]


def rows_of(name: str, chip: str) -> int:
    return 64 if "TPU" in chip and name in FACTORIZING else 128


def pairs_of_shapes(number: int, rows: int) -> Shapes:
    """A number of matrices of each of two shapes."""
    shapes = {"wide": (rows, 4 * rows), "square": (rows, rows)}
    return {f"{kind}{i}": shape for i in range(number) for kind, shape in shapes.items()}


def parameters(name: str, chip: str) -> int:
    """The bytes of those of :func:`families` with four matrices of each shape."""
    return 4 * sum(math.prod(shape) for shape in pairs_of_shapes(4, rows_of(name, chip)).values())


def families(names: list[str]) -> Iterator[tuple[str, str, Cost, Cost]]:
    """By optimizer and chip the cost of a step on one, and on four matrices of each shape."""
    for name in names or FAMILIES:
        library = build("gradtx", name if "(" in name else f"{name}(1e-3)")
        for chip, device in available().items():
            shapes = (pairs_of_shapes(number, rows_of(name, chip)) for number in (1, 4))
            of, to = (cost(library, each, device) for each in shapes)
            yield name, chip, of, to


def soap(rounds: int = 15) -> Iterator[list[object]]:
    """Ten steps of SOAP and of AdamW in turns, with gradients and without."""
    params = start(jax.random.key(0))
    data = jnp.asarray(batches(text()[0], 10, 32, 1))
    txs = {"soap": gradtx.soap(3e-3, precondition_frequency=10), "adamw": gradtx.adamw(3e-3)}
    for label, of in (("training", jax.grad(loss)), ("optimizer", lambda p, b: p)):

        def steps(tx: Any, p: Any, state: Any, data: Any, of: Any = of) -> Any:
            def one(carry: Any, batch: Any) -> Any:
                p, state = carry
                updates, state = tx.update(of(p, batch), state, p)
                return (gradtx.apply_updates(p, updates), state), None

            return jax.lax.scan(one, (p, state), data)[0]

        runs = {}
        for name, tx in txs.items():
            step = jax.jit(functools.partial(steps, tx), donate_argnums=(0, 1))
            runs[name] = Donated(step, (params, tx.init(params)), data)
        seconds = interleaved(runs, rounds)
        of_soap, to = seconds.values()
        yield [
            label,
            *(100 * statistics.median(each) for each in (of_soap, to)),
            ratio(of_soap, to),
        ]


def main(words: list[str]) -> None:
    if words == ["soap"]:
        title = "SOAP with new bases at every tenth step, beside AdamW, on a character transformer"
        print(markdown(title, ["", "soap, ms", "adamw, ms", "soap / adamw"], soap()))
        return
    if words[:1] == ["families"]:
        title = "Optimizers of matrices, compiled ahead for 1 + 1 and 4 + 4 matrices of two shapes"
        columns = ["optimizer", "chip", "kernels, 1 + 1", "4 + 4", "temporary / parameters"]
        found = (
            [name, chip, of.launched, to.launched, to.temporary / parameters(name, chip)]
            for name, chip, of, to in families(words[1:])
        )
        print(markdown(title, columns, found))
        return
    if words == ["layers"]:
        title = "Muon on 24 matrices of 512 x 2048 and 24 of 512 x 512"
        print(markdown(title, ["", "gradtx", "optax", "gradtx / optax"], layers()))
        return
    if words == ["times"]:
        columns = ["step", "temp", "temp, optax", "ms", "ms, optax", "gradtx / optax"]
        print(markdown("Matrices, on a CPU", columns, (timed(*each) for each in TIMED)))
        return
    chips = available()
    columns = ["equations", "compile, s", "CPU: kernels", *(f"{chip}: kernels" for chip in chips)]
    title = f"Muon on equal matrices of {SHAPE[0]} x {SHAPE[1]}; gradtx / optax"
    numbers = [int(word) for word in words] or list(MATRICES)
    print(markdown(title, ["matrices", *columns], rows(numbers, chips)))


if __name__ == "__main__":
    main(sys.argv[1:])
