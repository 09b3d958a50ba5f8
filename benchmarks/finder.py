"""What the rate finder suggests beside the leaderboard's tuned rate, on its six problems.

``python -m benchmarks.finder [PROBLEM ...]`` searches on all problems, or on some, writes each to
``results/finder.json``, and the table of docs/transfer.md: AdamW with the tuned decays, in one
sweep at a constant rate, and in one with the leaderboard's schedule, whose peak is the rate.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

import gradtx
from benchmarks.leaderboard.problems import PROBLEMS, Problem
from benchmarks.leaderboard.results import keep, load
from benchmarks.leaderboard.search import WARMUP
from benchmarks.tables import markdown, put_table

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "transfer.md"
RATES = 1e-3 * 2 ** np.arange(0, 9.6, 0.5)


def sweep(problem: Problem, setting: dict[str, float], scheduled: bool) -> gradtx.RateSweep:
    keys = jax.random.split(jax.random.key(1), problem.steps)
    shape = gradtx.warmup_cosine_decay_schedule(
        0.0, 1.0, round(WARMUP * problem.steps), problem.steps
    )

    def build(rate: Any) -> gradtx.GradientTransformation:
        chosen = gradtx.multiply_schedules(rate, shape) if scheduled else rate
        return gradtx.adamw(chosen, b1=setting["b1"], weight_decay=setting["weight_decay"])

    batches = jax.jit(jax.vmap(problem.batch))(keys)
    return gradtx.find_rate(problem.loss, build, problem.start(jax.random.key(0)), batches, RATES)


def searched(name: str) -> dict[str, Any]:
    """The tuned rate, and what each way suggests, with the ends of its basin."""
    problem, setting = PROBLEMS[name](), load(name)["adamw"]["setting"]
    found = {"tuned": setting["learning_rate"]}
    for way, scheduled in (("constant", False), ("scheduled", True)):
        rates = sweep(problem, setting, scheduled)
        found[way] = [float(x) for x in (rates.suggestion, *rates.basin)]
    return found


def table(found: dict[str, Any]) -> str:
    rows = []
    for name in (name for name in PROBLEMS if name in found):
        tuned = found[name]["tuned"]
        cells: list[object] = [name, f"{tuned:.2g}"]
        for way in ("constant", "scheduled"):
            suggestion, low, high = found[name][way]
            factor = max(suggestion / tuned, tuned / suggestion)
            cells += [f"{suggestion:.2g}", f"{factor:.2f}", f"{low:.2g} to {high:.2g}"]
        rows.append(cells)
    ways = ("at a constant rate", "with the leaderboard's schedule")
    header = ("problem", "tuned", *(x for way in ways for x in (way, "factor", "basin")))
    return markdown("", header, rows).rstrip()


def main() -> None:
    for name in sys.argv[1:] or PROBLEMS:
        keep("finder", name, found := searched(name), RESULTS)
        print(name, found, flush=True)
    put_table(PAGE, "python -m benchmarks.finder", table(load("finder", RESULTS)))


if __name__ == "__main__":
    main()
