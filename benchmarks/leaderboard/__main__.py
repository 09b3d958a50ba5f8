"""Which optimizer, with which settings, how sure: a leaderboard that a laptop repeats.

    python -m benchmarks.leaderboard --minutes 5    search and run what is missing, for 5 minutes
    python -m benchmarks.leaderboard --report       tables into docs/, pictures, gradtx's settings
    python -m benchmarks.leaderboard --targets      the baseline's losses, from which targets are

`--only` names optimizers, `--problems` problems. Results are in results/PROBLEM.json, and are kept:
to run one again, delete it there.
"""

import argparse
import platform
import sys
import time

import jax
import numpy as np

import gradtx
from benchmarks.leaderboard import search
from benchmarks.leaderboard.problems import PROBLEMS
from benchmarks.leaderboard.results import keep, load
from benchmarks.leaderboard.spaces import PRINCIPAL, space, spaces


def versions() -> dict[str, str]:
    return {
        "gradtx": gradtx.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def missing(problems: list[str], only: list[str]) -> list[tuple[str, str]]:
    """What has not run, the optimizers compared most first, each group over the cheap problems."""
    names = list(spaces())
    groups = [only] if only else [list(PRINCIPAL), names]
    order = [(p, name) for group in groups for p in problems for name in group]
    return [(p, name) for p, name in dict.fromkeys(order) if name not in load(p)]


def run(problems: list[str], only: list[str], minutes: float) -> None:
    deadline = time.monotonic() + 60 * minutes
    found = spaces()
    for problem, name in missing(problems, only):
        if time.monotonic() > deadline:
            break
        if name in load(problem):  # by another process, meanwhile
            continue
        start = time.monotonic()
        try:
            got = search.result(PROBLEMS[problem](), found[name])
        except (TypeError, ValueError) as error:  # what it refuses is a result too
            got = {"failure": f"{type(error).__name__}: {error}"}
        keep(problem, name, got | {"versions": versions()})
        mean = np.mean([x if x is not None else np.inf for x in got.get("losses", [None])])
        print(f"{problem:13} {name:24} {mean:8.4g} {time.monotonic() - start:6.1f} s", flush=True)
        jax.clear_caches()


def targets(problems: list[str]) -> None:
    baseline = space(gradtx.adamw, (1e-3, PRINCIPAL["adamw"].ranges["learning_rate"]), "")
    rates = np.repeat(3e-4 * 10 ** np.arange(0, 3.1, 0.5), 4)
    seeds = np.tile(2000 + np.arange(4), 7)
    for problem in problems:
        runs = search.Runs(PROBLEMS[problem](), baseline)
        curves = runs({"learning_rate": rates}, seeds).reshape(7, 4, -1).mean(1)
        best = np.nanargmin(curves[:, -1])
        late = curves[best, search.POINTS * 3 // 4]
        print(f"{problem:13} {late:.4g} at {rates[4 * best]:.2g}; at last {curves[best, -1]:.4g}")


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leaderboard")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--only", nargs="*", default=[], choices=list(spaces()), metavar="NAME")
    parser.add_argument("--problems", nargs="*", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--targets", action="store_true")
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args(argv)
    if args.targets:
        targets(args.problems)
    elif args.report:
        from benchmarks.leaderboard import report

        report.write()
    else:
        run(args.problems, args.only, args.minutes)


if __name__ == "__main__":
    main(sys.argv[1:])
