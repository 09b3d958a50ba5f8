"""Which optimizer, with which settings, how sure: a leaderboard that a laptop repeats.

    python -m benchmarks.leaderboard --minutes 5      search and run what is missing, for 5 minutes
    python -m benchmarks.leaderboard --only my.module:build       an optimizer from outside
    python -m benchmarks.leaderboard --report         tables, pictures and settings
    python -m benchmarks.leaderboard --targets        the baseline's losses, from which targets are

What is written goes into the folder `--out`, ./leaderboard by default: results, in PROBLEM.json,
and with `--report` the page, the pictures and the settings. Results that come with gradtx are not
run again, and are beside them in tables and pictures. `--shipped` writes gradtx's own files, in
place of those of a folder. To run something again, delete its line in PROBLEM.json.

`--only` names optimizers, `--problems` problems. `my.module:build` is a function of an importable
module, called with ``learning_rate``, ``b1`` and ``weight_decay`` as far as it has these arguments,
or a `Space` of benchmarks.leaderboard.spaces with ranges of its own.
"""

import argparse
import platform
import sys
import time
from pathlib import Path

import jax
import numpy as np

import gradtx
from benchmarks.leaderboard import search
from benchmarks.leaderboard.problems import PROBLEMS
from benchmarks.leaderboard.results import RESULTS, keep, load
from benchmarks.leaderboard.spaces import PRINCIPAL, Space, outside, space, spaces


def versions() -> dict[str, str]:
    return {
        "gradtx": gradtx.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def missing(problems: list[str], only: list[str], out: Path) -> list[tuple[str, str]]:
    """What has not run, the optimizers compared most first, each group over the cheap problems."""
    names = list(spaces())
    groups = [only] if only else [list(PRINCIPAL), names]
    order = [(p, name) for group in groups for p in problems for name in group]
    return [(p, name) for p, name in dict.fromkeys(order) if not has_run(p, name, out)]


def has_run(problem: str, name: str, out: Path) -> bool:
    return name in load(problem) or name in load(problem, out)


def space_of(name: str) -> Space:
    return outside(name) if ":" in name else spaces()[name]


def run(problems: list[str], only: list[str], minutes: float, out: Path) -> int:
    """Run what is missing, and return how many runs failed; of these nothing is kept."""
    deadline = time.monotonic() + 60 * minutes
    failures = 0
    for problem, name in missing(problems, only, out):
        if time.monotonic() > deadline:
            break
        if has_run(problem, name, out):  # by another process, meanwhile
            continue
        start = time.monotonic()
        try:
            result = search.result(PROBLEMS[problem](), space_of(name))
        except Exception as error:  # of an optimizer, which may raise anything
            failures += 1
            text = f"{type(error).__name__}: {error}"
            print(f"{problem:13} {name:24} failed: {text}", file=sys.stderr, flush=True)
            continue
        keep(problem, name, result | {"versions": versions()}, out)
        mean = np.mean([np.inf if x is None else x for x in result["losses"]])
        print(f"{problem:13} {name:24} {mean:8.4g} {time.monotonic() - start:6.1f} s", flush=True)
        jax.clear_caches()
    return failures


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


def optimizer(name: str) -> str:
    """A name on the command line, checked."""
    try:
        space_of(name)
    except KeyError:
        raise argparse.ArgumentTypeError(
            f"there is no {name!r}; there are {', '.join(spaces())}, and module:function"
        ) from None
    except (ImportError, TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return name


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leaderboard")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--only", nargs="*", default=[], type=optimizer, metavar="NAME")
    parser.add_argument("--problems", nargs="*", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--out", type=Path, default=Path("leaderboard"), metavar="FOLDER")
    parser.add_argument("--shipped", action="store_true", help="write gradtx's own files")
    parser.add_argument("--targets", action="store_true")
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args(argv)
    if args.targets:
        targets(args.problems)
    elif args.report:
        from benchmarks.leaderboard import report

        report.write(report.SHIPPED if args.shipped else report.inside(args.out))
    else:
        out = RESULTS if args.shipped else args.out
        return min(run(args.problems, args.only, args.minutes, out), 1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
