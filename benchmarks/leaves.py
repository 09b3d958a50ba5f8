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
from typing import Any

import jax
import jax.numpy as jnp
import optax

import gradtx
from benchmarks.tables import markdown
from benchmarks.timing import Donated, interleaved, ratio

COUNTS = (10, 50, 150, 500, 2000)
LEAF = (64,)
ROUNDS = 30
BESIDE = ("gradtx", "packed", "flatten")  # each beside Optax

Variants = dict[str, tuple[Callable[..., Any], Any, Any]]


def clipped(library: ModuleType) -> Any:
    return library.chain(library.clip_by_global_norm(1.0), library.adamw(1e-3))


def updated(tx: Any) -> Callable[..., Any]:
    def step(params: Any, state: Any, gradients: Any) -> Any:
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    return step


def variants(count: int) -> Variants:
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


def lowered(made: Variants, rounds: int) -> tuple[dict[str, Any], dict[str, float]]:
    """Each step traced and lowered, in turns, and the least seconds of processor time of that."""
    steps: dict[str, Any] = {}
    seconds = dict.fromkeys(made, float("inf"))
    for _ in range(rounds):
        for name, (step, state, params) in made.items():
            gradients = jax.tree.map(jnp.ones_like, params)
            # One of its own each time: jax would remember the trace of the same one.
            fresh = jax.jit(functools.partial(step), donate_argnums=(0, 1))
            start = time.process_time()
            steps[name] = fresh.lower(params, state, gradients)
            seconds[name] = min(seconds[name], time.process_time() - start)
    return steps, seconds


def compiled(made: Variants, steps: dict[str, Any]) -> tuple[dict[str, Donated], dict[str, float]]:
    """Each step compiled, and the seconds of processor time of that."""
    runs, seconds = {}, {}
    for name, (_, state, params) in made.items():
        start = time.process_time()
        program = steps[name].compile()
        seconds[name] = time.process_time() - start
        gradients = jax.tree.map(jnp.ones_like, params)
        runs[name] = Donated(program, (params, state), gradients)
    return runs, seconds


def measure(count: int) -> list[list[object]]:
    """For tracing, compiling and running: Optax's milliseconds, and what others take of these."""
    made = variants(count)
    steps, tracing = lowered(made, max(3, min(10, 2000 // count)))
    runs, compiling = compiled(made, steps)
    seconds = interleaved(runs, rounds=ROUNDS)

    def row(what: str, of: dict[str, float]) -> list[object]:
        return [count, what, 1e3 * of["optax"], *(of[name] / of["optax"] for name in BESIDE)]

    running: list[object] = [count, "a step", 1e3 * statistics.median(seconds["optax"])]
    return [
        row("trace and lower", tracing),
        row("trace, lower and compile", {n: tracing[n] + compiling[n] for n in tracing}),
        [*running, *(ratio(seconds[name], seconds["optax"]) for name in BESIDE)],
    ]


def table(counts: Sequence[int] = COUNTS) -> str:
    made = variants(2)  # the first trace in a process pays for what jax imports and caches
    compiled(made, lowered(made, 1)[0])
    return markdown(
        f"Clipping and AdamW on equal leaves of {LEAF[0]}, on {jax.default_backend()}",
        ["leaves", "", "optax, ms", *(f"{name} / optax" for name in BESIDE)],
        [row for count in counts for row in measure(count)],
    )


if __name__ == "__main__":
    print(table([int(word) for word in sys.argv[1:]] or COUNTS))
