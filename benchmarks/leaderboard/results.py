"""The results, one file for a problem and one line for an optimizer."""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def load(problem: str, folder: Path | None = None) -> dict[str, Any]:
    """What is known of a problem, from ``folder`` or from the leaderboard's."""
    path = (folder or RESULTS) / f"{problem}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def save(problem: str, results: dict[str, Any], folder: Path | None = None) -> None:
    """At once or not at all: a run may be stopped at any time."""
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(results.items()))
    folder = folder or RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{problem}.part"
    part.write_text(f"{{\n{lines}\n}}\n")
    part.replace(folder / f"{problem}.json")


def keep(problem: str, key: str, value: Any, folder: Path | None = None) -> None:
    """Save one result beside what is known of a problem by now."""
    save(problem, load(problem, folder) | {key: value}, folder)
