"""The losses on the way in the run on digits of `benchmarks.convergence`, for the documentation.

    python -m benchmarks.curves [NAME ...]

Each optimizer runs at the rate that stands in docs/convergence.md, and docs/curves.json keeps the
mean loss of every ten steps. The pages of the optimizers are drawn from it.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np

from benchmarks.convergence import digits, optimizers, rate_name, train

DOCS = Path(__file__).parents[1] / "docs"
WINDOW = 10


def rates() -> dict[str, str]:
    """The rate on digits, by optimizer, as docs/convergence.md has it."""
    rows = [line.split("|") for line in (DOCS / "convergence.md").read_text().splitlines()]
    return {row[1].strip(): row[3].strip() for row in rows if len(row) == 9 and row[1] > " "}


def curve(name: str, rate: str) -> list[float]:
    """The mean loss of every `WINDOW` steps."""
    build, problem = optimizers()[name], digits()
    argument = rate_name(build)
    given = {} if argument is None else {argument: float(rate)}
    losses = jax.jit(lambda: train(problem, lambda _: build(**given), None)[2])()
    means = np.asarray(losses, np.float64).reshape(-1, WINDOW).mean(axis=1)
    return [float(f"{x:.3g}") for x in means]


def main(names: list[str]) -> None:
    path = DOCS / "curves.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    known = rates()
    for name in names or optimizers():
        print(name, file=sys.stderr, flush=True)
        found[name] = {"rate": known[name], "losses": curve(name, known[name])}
    lines = (f'"{name}": {json.dumps(found[name])}' for name in sorted(found))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
