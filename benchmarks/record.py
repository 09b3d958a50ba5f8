"""The optimizer of a record of modded-nanogpt beside tuned Muon, on the leaderboard's transformer.

    python -m benchmarks.record [--steps 300]    run what is missing
    python -m benchmarks.record --docs                its table into docs/

Muon has the setting that the leaderboard found for it over 300 steps; the record's optimizer has
its own numbers, with its schedules stretched to the run, and is read at a blend with the average of
its tail. Its rates are also multiplied by the best of a few factors, tried over 300 steps on one
other seed.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gradtx
from benchmarks.leaderboard import results, search
from benchmarks.leaderboard.problems import Problem, transformer
from benchmarks.leaderboard.spaces import spaces
from benchmarks.results import Table, with_tables
from examples.nanogpt_record import Record

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "choosing_measured.md"
TITLE = "The optimizer of a record beside Muon"
FACTORS = (0.1, 0.3, 1.0, 3.0)
SEEDS = (0, 1, 2)
READOUT = 0.6
LABELS = (
    ("embedding", "embed"),
    ("position", "embed"),
    ("head", "head"),
    ("hidden/out", "outputs"),
    *((f"hidden/{name}", "matrices") for name in ("query", "key", "value", "up", "down")),
)
AVERAGED = ("position", "head", "hidden")


def record(steps: int, factor: Any) -> gradtx.GradientTransformation:
    return Record(steps, factor, LABELS, AVERAGED).build()


def muon(steps: int, factor: Any) -> gradtx.GradientTransformation:
    found, space = results.load("transformer")["muon"]["setting"], spaces()["muon"]
    setting = dict(found)
    for name in space.scheduled:
        setting[name] = gradtx.warmup_cosine_decay_schedule(
            0.0, factor * found[name], round(search.WARMUP * steps), steps
        )
    return space.build(**setting)


Build = Callable[[int, Any], gradtx.GradientTransformation]
BUILDS: dict[str, Build] = {"muon": muon, "record": record}


def runs(problem: Problem, build: Build) -> Callable[[float, int], tuple[float, float]]:
    """The judged losses, for a factor and a seed: at the end, and at a blend with the average."""

    @jax.jit
    def run(factor: jax.Array, seed: jax.Array) -> tuple[jax.Array, jax.Array]:
        tx = build(problem.steps, factor)

        def step(carry: Any, key: jax.Array) -> tuple[Any, None]:
            params, state = carry
            batch = problem.batch(key)
            grads = jax.grad(problem.loss)(params, batch)
            return gradtx.apply_gradients(tx, grads, params, state), None

        first, rest = jax.random.split(jax.random.key(seed))
        params = problem.start(first)
        keys = jax.random.split(rest, problem.steps)
        (params, state), _ = jax.lax.scan(step, (params, tx.init(params)), keys)
        blend = gradtx.eval_params(tx, state, params, weight=READOUT)
        return problem.judged(params), problem.judged(blend)

    def losses(factor: float, seed: int) -> tuple[float, float]:
        last, read = run(jnp.float32(factor), jnp.int32(seed))
        return float(last), float(read)

    return losses


def read() -> dict[str, Any]:
    return results.load("record", RESULTS)


def run(lengths: list[int]) -> None:
    for steps in lengths:
        problem = transformer()._replace(steps=steps)
        for name, build in BUILDS.items():
            start, losses = time.monotonic(), runs(problem, build)
            if name == "record" and "tried" not in read():
                tried = [losses(factor, search.SEARCH_SEED)[1] for factor in FACTORS]
                results.keep("record", "tried", tried, RESULTS)
            best = 1.0 if name == "muon" else FACTORS[int(np.nanargmin(read()["tried"]))]
            for factor in sorted({1.0, best}):
                key = f"{steps} {name} {factor:g}"
                if key not in read():
                    results.keep("record", key, [losses(factor, s) for s in SEEDS], RESULTS)
                    print(f"{key}: {read()[key]}, {time.monotonic() - start:.0f} s", flush=True)


def _mean(losses: np.ndarray) -> str:
    return f"{losses.mean():.3f} ({losses.min():.3f} to {losses.max():.3f})"


def table() -> Table:
    header = ["steps, optimizer, its rates times", "last parameters", "with the average"]
    rows = []
    for key, found in sorted(read().items(), key=lambda pair: (len(pair[0]), pair[0])):
        if key != "tried":
            last, blend = np.array(found).T
            same = key.split()[1] == "muon"
            rows.append([", ".join(key.split()), _mean(last), "-" if same else _mean(blend)])
    return Table(TITLE, header, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A record's optimizer beside tuned Muon.")
    parser.add_argument("--steps", type=int, nargs="*", default=[300])
    parser.add_argument("--docs", action="store_true")
    args = parser.parse_args()
    if args.docs:
        PAGE.write_text(with_tables(PAGE.read_text(), [table()]))
    else:
        run(args.steps)
        print("\n".join(table().lines()))
