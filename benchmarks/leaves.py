"""What a tree of many small leaves costs: tracing, compiling and running a step.

python -m benchmarks.leaves [COUNT ...]

Leaves as they are in gradtx and in Optax, packed leaves, and `optax.flatten`, in turns.
"""

import functools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import gradtx
from benchmarks.tables import markdown
from benchmarks.timing import Donated, interleaved, ratio

COUNTS = (10, 50, 150, 500, 2000)
LEAF = (64,)
TRACES = 3
ROUNDS = 30
BESIDE = ("gradtx", "packed", "flatten")  # each beside Optax


class Built(NamedTuple):
    """A compiled step, and the seconds of processor time that tracing and compiling it took."""

    step: Donated
    tracing: float  # with lowering
    compiling: float


def clipped(library: ModuleType) -> Any:
    return library.chain(library.clip_by_global_norm(1.0), library.adamw(1e-3))


def updated(tx: Any) -> Callable[..., Any]:
    def step(params: Any, state: Any, gradients: Any) -> Any:
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    return step


def variants(count: int) -> dict[str, tuple[Callable[..., Any], Any, Any]]:
    """By name a step, its parameters, and its gradients: the same numbers in other forms."""
    leaves = {f"layer{i}": jnp.full(LEAF, 0.5, jnp.float32) for i in range(count)}
    packed = gradtx.pack(leaves)
    ours, theirs = clipped(gradtx), clipped(optax)

    def step(params: Any, state: Any, gradients: Any) -> Any:
        return gradtx.apply_gradients(ours, gradients, params, state)

    return {
        "optax": (updated(theirs), theirs.init(leaves), leaves),
        "gradtx": (step, ours.init(leaves), leaves),
        "packed": (step, ours.init(packed), packed),
        "flatten": (updated(optax.flatten(theirs)), optax.flatten(theirs).init(leaves), leaves),
    }


def build(step: Callable[..., Any], state: Any, params: Any) -> Built:
    gradients = jax.tree.map(jnp.ones_like, params)
    tracing = []
    for _ in range(TRACES):
        # One of its own each time: jax would remember the trace of the same one.
        fresh = jax.jit(functools.partial(step), donate_argnums=(0, 1))
        start = time.process_time()
        lowered = fresh.lower(params, state, gradients)
        tracing.append(time.process_time() - start)
    start = time.process_time()
    compiled = lowered.compile()
    compiling = time.process_time() - start
    return Built(Donated(compiled, (params, state), gradients), min(tracing), compiling)


def measure(count: int) -> list[list[object]]:
    """For tracing, compiling and running: Optax's milliseconds, and what others take of these."""
    built = {name: build(*made) for name, made in variants(count).items()}
    seconds = interleaved({name: one.step for name, one in built.items()}, rounds=ROUNDS)

    def row(what: str, of: dict[str, float]) -> list[object]:
        return [count, what, 1e3 * of["optax"], *(of[name] / of["optax"] for name in BESIDE)]

    running: list[object] = [count, "a step", 1e3 * statistics.median(seconds["optax"])]
    return [
        row("trace and lower", {n: b.tracing for n, b in built.items()}),
        row("trace, lower and compile", {n: b.tracing + b.compiling for n, b in built.items()}),
        [*running, *(ratio(seconds[name], seconds["optax"]) for name in BESIDE)],
    ]


def table(counts: Sequence[int] = COUNTS) -> str:
    for made in variants(2).values():
        build(*made)  # the first trace in a process pays for what jax imports and caches
    return markdown(
        f"Clipping and AdamW on equal leaves of {LEAF[0]}, on {jax.default_backend()}",
        ["leaves", "", "optax, ms", *(f"{name} / optax" for name in BESIDE)],
        [row for count in counts for row in measure(count)],
    )


if __name__ == "__main__":
    print(table([int(word) for word in sys.argv[1:]] or COUNTS))
