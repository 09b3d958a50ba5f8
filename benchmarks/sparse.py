"""What a step on a table costs: against its size, against the rows touched, against others.

python -m benchmarks.sparse [PART ...]

The parts are processes of their own, none longer than two minutes on a quiet machine, so that they
may be run separately: size, size-huge, size-threads, touched, in-turns, one-by-one. `size`,
`size-huge` and `touched` run on one core, as PyTorch's step does: a second thread costs more than
it saves with 64 kB, and varies. In `size-huge` memory is in pages of 2 MB, which glibc asks Linux
for.
"""

import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import gradtx
from benchmarks.tables import markdown, size
from benchmarks.timing import interleaved, ratio

TOUCHED = 1024
RATE = 1e-3


def looked_up(table: jax.Array, ids: jax.Array) -> jax.Array:
    return jnp.sum(gradtx.sparse.take(table, ids) ** 2)


def indexed(table: jax.Array, ids: jax.Array) -> jax.Array:
    return jnp.sum(table[ids] ** 2)


def ids(rows: int, touched: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).integers(0, rows, touched))


class Step:
    """A compiled step over donated arrays, with the next batch of ids each time."""

    def __init__(self, step: Callable[..., Any], carry: Any, batches: list[jax.Array]) -> None:
        self._step, self._carry, self._batches = step, jax.tree.map(jnp.copy, carry), batches
        self._number = 0

    def __call__(self) -> None:
        self._number = (self._number + 1) % len(self._batches)
        self._carry = self._step(*self._carry, self._batches[self._number])
        jax.block_until_ready(self._carry)


def by_rows(tx: gradtx.GradientTransformation) -> Callable[..., Any]:
    def step(table: Any, state: Any, ids: Any) -> Any:
        return gradtx.minimize(looked_up, tx, table, state, ids)[:2]

    return jax.jit(step, donate_argnums=(0, 1))


def by_table(tx: optax.GradientTransformation) -> Callable[..., Any]:
    def step(table: Any, state: Any, ids: Any) -> Any:
        updates, state = tx.update(jax.grad(indexed)(table, ids), state, table)
        return optax.apply_updates(table, updates), state

    return jax.jit(step, donate_argnums=(0, 1))


def built(
    make: Callable[..., Any], tx: Any, rows: int, columns: int, touched: int, batches: int = 1
) -> tuple[Step, int]:
    """The step, on as many batches of ids in turn, and its temporary bytes."""
    table = jnp.zeros((rows, columns))
    state, chosen = tx.init(table), [ids(rows, touched, seed) for seed in range(batches)]
    compiled = make(tx).lower(table, state, chosen[0]).compile()
    temporary = compiled.memory_analysis().temp_size_in_bytes
    return Step(compiled, (table, state), chosen), temporary


def torch_step(rows: int, columns: int, touched: int) -> Callable[[], None] | None:
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)  # for so few rows the fastest
    embedding = torch.nn.Embedding.from_pretrained(
        torch.zeros(rows, columns), freeze=False, sparse=True
    )
    optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=RATE)
    chosen = torch.tensor(np.asarray(ids(rows, touched)))

    def run() -> None:
        optimizer.zero_grad()
        (embedding(chosen) ** 2).sum().backward()
        optimizer.step()

    return run


def milliseconds(seconds: list[float]) -> float:
    return 1e3 * statistics.median(seconds)


def against_size(how: str) -> str:
    """Each size alone: tables of three sizes side by side would share the caches."""
    rows = []
    for count in (10_000, 100_000, 1_000_000, 10_000_000):
        line: list[Any] = [f"{count:,}"]
        for batches in (1, 200):
            step, temporary = built(by_rows, gradtx.adam(RATE), count, 16, TOUCHED, batches)
            seconds = interleaved({"step": step}, rounds=1001, warmup=200)["step"]
            microseconds = 1e3 * milliseconds(seconds)
            first = rows[0][len(line)] if rows else microseconds
            line += [microseconds, microseconds / first]
            del step
        rows.append([*line, size(temporary)])
    return markdown(
        f"adam, {TOUCHED} rows touched, dimension 16, {how}",
        ["rows", "same ids, us", "ratio", "other ids, us", "ratio", "temporary"],
        rows,
    )


def against_touched() -> str:
    rows = []
    for touched in (256, 1024, 4096, 16_384):
        step, temporary = built(by_rows, gradtx.adam(RATE), 1_000_000, 16, touched, batches=20)
        seconds = interleaved({"step": step}, rounds=501, warmup=50)["step"]
        microseconds = 1e3 * milliseconds(seconds)
        rows.append([f"{touched:,}", microseconds, microseconds / touched, size(temporary)])
    return markdown(
        "adam, 1,000,000 rows, dimension 16, other ids, on one core",
        ["rows touched", "step, us", "a row, us", "temporary"],
        rows,
    )


def against_others(in_turn: bool, rows: int = 1_000_000, columns: int = 64) -> str:
    """Each beside our own alone, taking turns or one after the other.

    In turns, a dense step leaves nothing in the caches for ours.
    """

    def ours() -> Step:
        return built(by_rows, gradtx.adam(RATE), rows, columns, TOUCHED)[0]

    others: dict[str, Callable[[], Any]] = {
        "gradtx, rowwise_adagrad": lambda: built(
            by_rows, gradtx.rowwise_adagrad(RATE), rows, columns, TOUCHED
        )[0],
        "torch, SparseAdam": lambda: torch_step(rows, columns, TOUCHED),
        "optax, adam": lambda: built(by_table, optax.adam(RATE), rows, columns, TOUCHED)[0],
    }
    lines = []
    for name, make in others.items():
        other = make()
        if other is None:
            continue
        runs = {"ours": ours(), "other": other}
        if in_turn:
            seconds = interleaved(runs, rounds=101, warmup=10)
        else:
            alone = ({name: run} for name, run in runs.items())
            seconds = {k: v for run in alone for k, v in interleaved(run, 101, 10).items()}
        lines.append(
            [
                name,
                milliseconds(seconds["other"]),
                milliseconds(seconds["ours"]),
                ratio(seconds["other"], seconds["ours"]),
            ]
        )
        del other, runs
    return markdown(
        f"{rows:,} x {columns}, {TOUCHED} rows touched, {'in turns' if in_turn else 'one by one'}",
        ["", "step, ms", "gradtx, adam, ms", "ratio"],
        lines,
    )


HUGE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
PARTS: dict[str, tuple[Callable[[], str], bool, dict[str, str]]] = {
    # what to print, whether on one core, and in which environment
    "size": (lambda: against_size("on one core"), True, {}),
    "size-huge": (lambda: against_size("pages of 2 MB"), True, HUGE),
    "size-threads": (lambda: against_size("on two cores"), False, {}),
    "touched": (against_touched, True, {}),
    "in-turns": (lambda: against_others(in_turn=True), False, {}),
    "one-by-one": (lambda: against_others(in_turn=False), False, {}),
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        print(PARTS[sys.argv[2]][0]())
        raise SystemExit
    for name in sys.argv[1:] or PARTS:
        _, alone, environment = PARTS[name]
        pinned = ["taskset", "-c", str(max(os.sched_getaffinity(0)))] if alone else []
        command = [*pinned, sys.executable, "-m", "benchmarks.sparse", "--here", name]
        print(f"{name}:", flush=True)
        subprocess.run(command, check=True, env={**os.environ, **environment})
