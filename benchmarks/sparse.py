"""What a step on a table costs: against its size, against the rows touched, against others.

python -m benchmarks.sparse
"""

import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import gradtx
from benchmarks.tables import markdown, size
from benchmarks.timing import Donated, interleaved, ratio

TOUCHED = 1024
RATE = 1e-3


def looked_up(table: jax.Array, ids: jax.Array) -> jax.Array:
    return jnp.sum(gradtx.sparse.take(table, ids) ** 2)


def indexed(table: jax.Array, ids: jax.Array) -> jax.Array:
    return jnp.sum(table[ids] ** 2)


def ids(rows: int, touched: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).integers(0, rows, touched))


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
    make: Callable[..., Any], tx: Any, rows: int, columns: int, touched: int
) -> tuple[Donated, int]:
    """The step, and its temporary bytes."""
    table = jnp.zeros((rows, columns))
    state, chosen = tx.init(table), ids(rows, touched)
    compiled = make(tx).lower(table, state, chosen).compile()
    return Donated(compiled, (table, state), chosen), compiled.memory_analysis().temp_size_in_bytes


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


def against_size() -> str:
    """Each size alone: tables of three sizes side by side would share the caches."""
    rows = []
    for count in (10_000, 100_000, 1_000_000, 10_000_000):
        step, temporary = built(by_rows, gradtx.adam(RATE), count, 16, TOUCHED)
        seconds = interleaved({"step": step}, rounds=101, warmup=10)["step"]
        rows.append([f"{count:,}", milliseconds(seconds), 1e3 * min(seconds), size(temporary)])
    return markdown(
        f"adam, {TOUCHED} rows touched, dimension 16",
        ["rows", "step, ms", "fastest, ms", "temporary"],
        rows,
    )


def against_touched() -> str:
    rows = []
    for touched in (256, 1024, 4096, 16_384):
        step, temporary = built(by_rows, gradtx.adam(RATE), 1_000_000, 16, touched)
        seconds = interleaved({"step": step}, rounds=51, warmup=5)["step"]
        microseconds = 1e3 * milliseconds(seconds) / touched
        rows.append([f"{touched:,}", milliseconds(seconds), microseconds, size(temporary)])
    return markdown(
        "adam, 1,000,000 rows, dimension 16",
        ["rows touched", "step, ms", "a row, us", "temporary"],
        rows,
    )


def against_others(rows: int = 1_000_000, columns: int = 64) -> str:
    """Each beside our own alone: a dense step leaves no cache to those that follow it."""

    def ours() -> Donated:
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
        seconds = interleaved({"ours": ours(), "other": other}, rounds=31, warmup=5)
        lines.append(
            [
                name,
                milliseconds(seconds["other"]),
                milliseconds(seconds["ours"]),
                ratio(seconds["other"], seconds["ours"]),
            ]
        )
        del other
    return markdown(
        f"{rows:,} x {columns}, {TOUCHED} rows touched",
        ["", "step, ms", "gradtx, adam, ms", "ratio"],
        lines,
    )


if __name__ == "__main__":
    for part in (against_size, against_touched, against_others):
        print(part())
