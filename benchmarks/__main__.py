"""Everything that docs/measurements.md quotes, in one run.

    python -m benchmarks [--quick] [NAME ...]   measure: all, or what is named
    python -m benchmarks --docs                 write the tables into docs/measurements.md

Results are kept in benchmarks/results, with versions, machine and load: what is not there yet is
measured, so that a run that was stopped continues, and `--again` measures all again. `--quick`
takes less of each, in under two minutes on two quiet cores, and keeps its own file.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import DOCS, FULL, QUICK, Results, conditions, tables_in, with_tables

EVERYDAY = ["adamw", "lion", "clip + adamw"]
PEERS = str(Path(tempfile.gettempdir()) / "gradtx-peers.json")
# By name the words of each command in a full run, and in a quick one if it takes part in that.
COMMANDS: dict[str, tuple[Sequence[str], Sequence[str] | None]] = {
    "import_time": ([], []),
    "dispatch": ([], ["10", "150"]),
    "leaves": ([], ["10", "150"]),
    "tracing": ([], None),
    "eager": ([], []),
    "steps": ([], EVERYDAY),
    "search": ([], None),
    "quasi_newton bfgs": (["bfgs"], None),
    "quasi_newton bounded": (["bounded"], None),
    "burgers": ([], None),
    "mini_batches": ([], None),
    "accumulation": ([], None),
    "linear_loss": ([], None),
    "matrices": ([], None),
    "matrices layers": (["layers"], None),
    "matrices times": (["times"], None),
    "sparse": ([], None),
    "aot": (["all"], None),
    "peers": ([PEERS], None),
}


def run(name: str, words: Sequence[str]) -> str:
    """What a benchmark prints, in a process of its own: what it leaves in memory stays there."""
    command = [sys.executable, "-m", f"benchmarks.{name.split(maxsplit=1)[0]}", *words]
    while True:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != os.EX_TEMPFAIL:  # it has more to measure
            done.check_returncode()
            return done.stdout


def measure(names: Sequence[str], quick: bool, again: bool) -> None:
    results = Results.read(QUICK if quick else FULL)
    for name, words in COMMANDS.items():
        chosen = words[1] if quick else words[0]
        if chosen is None or (names and name not in names) or (results.has(name) and not again):
            continue
        before = conditions()
        printed = run(name, chosen)
        print(printed, flush=True)
        taken = {"command": name, **before, "load after": os.getloadavg()[0]}
        results.keep(name, tables_in(printed), taken)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(COMMANDS))
    parser.add_argument("--quick", action="store_true", help="less of each, in two minutes")
    parser.add_argument("--again", action="store_true", help="also what was measured before")
    parser.add_argument("--docs", action="store_true", help="write the tables of the docs")
    given = parser.parse_args()
    if unknown := set(given.names) - set(COMMANDS):
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(COMMANDS)}")
    if given.docs:
        DOCS.write_text(with_tables(DOCS.read_text(), Results.read(FULL).tables()))
    else:
        measure(given.names, given.quick, given.again)


if __name__ == "__main__":
    main()
