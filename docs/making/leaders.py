"""Which optimizer wins on which problem: a chart of the leaderboard's tables."""

import math
import re
from html import escape
from pathlib import Path
from typing import NamedTuple

TABLES = Path(__file__).parents[1] / "leaderboard_measured.md"
PROBLEMS = ("transformer", "convolutions", "image", "words", "logistic", "tabular")
SHOWN = ("soap", "muon", "schedule_free_adamw", "lion", "sgd, momentum")
SEEN = ("better", "worse")  # p < 0.01
WIDTH, NAMES, TOP = 400, 84, 40
THICK, GAP = 7, 12
MARKS = (0.25, 0.5, 1.0, 2.0, 4.0)


class Result(NamedTuple):
    """The final loss over AdamW's, and whether a difference was seen."""

    ratio: float
    verdict: str


def results(problem: str) -> dict[str, Result]:
    """What each optimizer that ran on a problem came to, beside AdamW."""
    text = TABLES.read_text(encoding="utf-8").partition(f"\n## {problem.capitalize()}\n")[2]
    rows = re.findall(r"^\| (.*) \|$", text.partition("\n## ")[0], re.MULTILINE)
    cells = [row.split(" | ") for row in rows]
    at, beside = cells[0].index("over adamw's (95 %)"), cells[0].index("beside adamw")
    return {
        row[0]: Result(float(row[at].split()[0]), row[beside].partition(",")[0])
        for row in cells[1:]
    }


def across(ratio: float) -> float:
    """Where a ratio stands; what is beyond the last mark stands on it."""
    inside = min(max(ratio, MARKS[0]), MARKS[-1])
    part = math.log(inside / MARKS[0]) / math.log(MARKS[-1] / MARKS[0])
    return NAMES + 8 + part * (WIDTH - NAMES - 20)


def legend() -> list[str]:
    parts, x, y = [], 4, 12
    for i, name in enumerate(SHOWN):
        if x + 7 * len(name) > WIDTH:
            x, y = 4, y + 16
        parts += [f'<rect x="{x}" y="{y - 9}" width="9" height="9" class="share-{i}"/>']
        parts += [f'<text x="{x + 13}" y="{y}" class="name-{i}">{escape(name)}</text>']
        x += 28 + 7 * len(name)
    return parts


def chart() -> str:
    """Bars from AdamW's loss to the other's: to the left is better, pale is no difference."""
    step = THICK * len(SHOWN) + GAP
    bottom = TOP + step * len(PROBLEMS)
    parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {bottom + 36}" role="img">']
    parts += ["<title>Final loss over AdamW's on six problems</title>", *legend()]
    for mark in MARKS:
        x = across(mark)
        parts += [f'<path class="grid" d="M{x:.1f} {TOP}V{bottom}"/>']
        parts += [f'<text x="{x:.1f}" y="{bottom + 15}" class="middle">{mark:g}</text>']
    for row, problem in enumerate(PROBLEMS):
        start, found = TOP + row * step + GAP / 2, results(problem)
        parts += [f'<text x="{NAMES}" y="{start + step / 2 - 2:.1f}" class="end">{problem}</text>']
        for i, name in enumerate(SHOWN):
            ratio, verdict = found[name]
            left, right = sorted((across(1.0), across(ratio)))
            kind = f"share-{i}" + ("" if verdict in SEEN else " pale")
            size = f'width="{max(right - left, 1):.1f}" height="{THICK - 1}"'
            parts += [f'<rect x="{left:.1f}" y="{start + THICK * i:g}" {size} class="{kind}"/>']
    one = across(1.0)
    parts += [f'<path class="arrow" d="M{one:.1f} {TOP}V{bottom}"/>']
    parts += [
        f'<text x="{one:.1f}" y="{bottom + 31}" class="middle">final loss over AdamW\'s</text>'
    ]
    return "".join([*parts, "</svg>"])
