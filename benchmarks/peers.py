"""Every optimizer that both libraries have: a donated step on 16M float32 parameters, in turns.

    python -m benchmarks.peers FILE [LABEL, GROUP or EXPRESSION ...]

It measures what FILE lacks, and prints the table once FILE has all. It stops after a minute and a
half with the status 75, so that a machine can be kept quiet meanwhile; repeat the command until it
prints. Those whose time is that of matrix products are left out.
"""

import json
import math
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.pairs import Pair, chosen
from benchmarks.steps import ROUNDS, measure
from benchmarks.tables import markdown, size

SECONDS = 90
LIBRARIES = "gradtx", "optax"
HEADER = ["optimizer", "temp", "temp, optax", "ms", "ms, optax", "gradtx / optax"]


def peers(words: list[str]) -> list[Pair]:
    return [p for p in chosen(words or ["all"]) if p.optax is not None and p.least is not None]


def table(pairs: list[Pair], known: dict[str, Any]) -> str:
    figures = [known[pair.label] for pair in pairs]
    rows = [
        [pair.label, *map(size, x["temp"]), *x["ms"], x["ratio"]]
        for pair, x in zip(pairs, figures, strict=True)
    ]
    mean = math.exp(statistics.fmean(math.log(x["ratio"]) for x in figures))
    rows.append([f"geometric mean of {len(pairs)}", "", "", "", "", mean])
    return markdown("Everything both libraries have, one leaf of 16M, on a CPU", HEADER, rows)


def main(file: Path, words: list[str]) -> None:
    known = json.loads(file.read_text()) if file.exists() else {}
    end = time.monotonic() + SECONDS
    for pair in peers(words):
        if pair.label in known:
            continue
        if time.monotonic() > end:
            print(
                f"{len(known)} measured so far; repeat the command for the others", file=sys.stderr
            )
            sys.exit(os.EX_TEMPFAIL)
        found = measure(pair, ROUNDS)
        known[pair.label] = {
            "temp": [found.temporary[name] for name in LIBRARIES],
            "ms": [found.ms(name) for name in LIBRARIES],
            "ratio": found.ratio(*LIBRARIES),
        }
        file.write_text(json.dumps(known, indent=1))
    print(table(peers(words), known))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
