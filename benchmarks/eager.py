"""What Adam costs outside of `jit`: the first step of a process, early ones, and later ones.

python -m benchmarks.eager

Processor time, which tells what compiling and calls take, whatever else the machine does.
"""

import json
import statistics
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import gradtx
from benchmarks.tables import markdown
from benchmarks.timing import interleaved, ratio, with_bytecode
from gradtx.core.blocks import FIRST_STEPS

COUNTS, SHAPES = (20, 150), (4, 40)  # a model of equal layers has few shapes
PROCESSES = 3
ROUNDS = 15
LIBRARIES = {"gradtx": gradtx, "optax": optax}


class Nothing:
    """In place of a library: slots of zeros, and a program that passes on what it gets."""

    @staticmethod
    def adam(rate: float) -> optax.GradientTransformation:
        del rate

        def slots(params: Any) -> Any:
            return jax.tree.map(lambda p: jax.device_put(np.zeros(p.shape, p.dtype)), params)

        program = jax.jit(lambda updates, state, params: (updates, state))
        return optax.GradientTransformation(lambda p: (slots(p), slots(p)), program)

    @staticmethod
    def apply_updates(params: Any, updates: Any) -> Any:
        return jax.jit(lambda p, u: jax.tree.map(jnp.add, p, u))(params, updates)


FIRSTS = {**LIBRARIES, "nothing": Nothing}


class Training:
    """Steps of Adam on some parameters, which are their own gradients."""

    def __init__(self, library: Any, params: dict[str, jax.Array]) -> None:
        self._library, self._params = library, params
        self._tx = library.adam(1e-3)
        self._state = self._tx.init(params)

    def __call__(self) -> None:
        updates, self._state = self._tx.update(self._params, self._state, self._params)
        self._params = self._library.apply_updates(self._params, updates)
        jax.block_until_ready((self._params, self._state))


def leaves(count: int, *shapes: tuple[int, ...]) -> dict[str, jax.Array]:
    """Leaves of these shapes in turn, made by no program."""
    made = (np.ones(shapes[i % len(shapes)], np.float32) for i in range(count))
    return {f"layer{i}": jax.device_put(x) for i, x in enumerate(made)}


def first(library: str, count: int, shapes: int) -> float:
    """Seconds of `init` and the first step on leaves of several shapes."""
    params = leaves(count, *[(8 * (1 + i % 8), 16 * (1 + i // 8)) for i in range(shapes)])
    jax.block_until_ready(jnp.zeros([]) + 1)  # starts the backend
    start = time.process_time()
    Training(FIRSTS[library], params)()
    return time.process_time() - start


def in_a_process(library: str, count: int, shapes: int) -> float:
    command = [sys.executable, "-m", "benchmarks.eager", library, str(count), str(shapes)]
    return float(json.loads(subprocess.check_output(command, env=with_bytecode())))


def firsts(count: int, shapes: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in FIRSTS}
    for name in seconds:
        in_a_process(name, count, shapes)  # writes the bytecode
    for _ in range(PROCESSES):
        for name, runs in seconds.items():
            runs.append(in_a_process(name, count, shapes))
    return seconds


def early(count: int, shape: tuple[int, ...]) -> dict[str, list[float]]:
    """Steps on blocks after the first."""
    return steps(count, shape, FIRST_STEPS - 2, 2)


def later(count: int, shape: tuple[int, ...]) -> dict[str, list[float]]:
    return steps(count, shape, ROUNDS, FIRST_STEPS + 2)


def steps(count: int, shape: tuple[int, ...], rounds: int, before: int) -> dict[str, list[float]]:
    params = leaves(count, shape)
    runs = {name: Training(library, params) for name, library in LIBRARIES.items()}
    return interleaved(runs, rounds, before, time.process_time)


def row(
    count: int, what: str, seconds: dict[str, list[float]], ours: str = "gradtx"
) -> list[object]:
    times = [1e3 * statistics.median(seconds[name]) for name in (ours, "optax")]
    return [count, what, *times, ratio(seconds[ours], seconds["optax"])]


def table() -> str:
    rows = []
    for count in COUNTS:
        for shapes in SHAPES:
            what = f"`init` and first step of a process, {min(count, shapes)} shapes"
            seconds = firsts(count, shapes)
            rows.append(row(count, what, seconds))
            rows.append(row(count, f"{what}: nothing, in place of gradtx", seconds, "nothing"))
        rows.append(row(count, "one of the next 15 steps, all of 64", early(count, (64,))))
        rows.append(row(count, "a later step, all of 64", later(count, (64,))))
        rows.append(row(count, "a later step, all of 64 x 64", later(count, (64, 64))))
    return markdown(
        f"Adam outside of jit, on {jax.default_backend()}",
        ["leaves", "", "gradtx, ms", "optax, ms", "gradtx / optax"],
        rows,
    )


if __name__ == "__main__":
    print(first(sys.argv[1], *map(int, sys.argv[2:])) if sys.argv[1:] else table())
