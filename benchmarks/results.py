"""Results as data: tables with where and how they were taken, and the docs made of them."""

import datetime
import json
import os
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "measurements.md"
FULL, QUICK = (ROOT / "benchmarks" / "results" / f"{name}.json" for name in ("full", "quick"))
PACKAGES = ("jax", "jaxlib", "numpy", "optax")


class Table(NamedTuple):
    """A table as it is printed: its title, the names of its columns, its cells."""

    title: str
    header: list[str]
    rows: list[list[str]]

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from others: its title, and its first column where a title has several."""
        return self.title, self.header[0]

    def lines(self) -> list[str]:
        rule = "|---|" + "---:|" * (len(self.header) - 1)
        return [_line(self.header), rule, *map(_line, self.rows)]


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


class Place(NamedTuple):
    """Where a table stands: its first line, the one behind its last, and what it says."""

    start: int
    end: int
    table: Table


def places(text: str) -> Iterable[Place]:
    """The tables in a text of markdown, each under the last heading before it."""
    title, lines = "", text.splitlines()
    for i, line in enumerate(lines):
        if line.startswith("#"):
            title = line.lstrip("# ")
        if re.match(r"\|-+", line):
            end = next((j for j in range(i, len(lines)) if lines[j][:1] != "|"), len(lines))
            rows = [_cells(row) for row in lines[i + 1 : end]]
            yield Place(i - 1, end, Table(title, _cells(lines[i - 1]), rows))


def tables_in(text: str) -> list[Table]:
    """The tables in a text of markdown."""
    return [place.table for place in places(text)]


def with_tables(text: str, tables: Iterable[Table]) -> str:
    """A text of markdown with these tables in place of those with the same titles.

    Raises:
        ValueError: a table has no place in the text.
    """
    known = {table.key: table for table in tables}
    lines = text.splitlines()
    for start, end, old in reversed(list(places(text))):
        if old.key in known:
            lines[start:end] = known.pop(old.key).lines()
    if known:
        raise ValueError(f"there is no place for {', '.join(title for title, _ in known)}")
    return "\n".join(lines) + "\n"


def conditions() -> dict[str, Any]:
    """When and on what something is measured, and how busy that is."""
    return {
        "taken": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "machine": f"{_processor()}, {len(os.sched_getaffinity(0))} cores",
        "load before": os.getloadavg()[0],
    }


def _processor() -> str:
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


@dataclass
class Results:
    """A file of results: for each benchmark its tables, and how they were taken."""

    path: Path
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Results":
        return cls(path, json.loads(path.read_text()) if path.exists() else {})

    def has(self, name: str) -> bool:
        return name in self.runs

    def keep(self, name: str, tables: list[Table], taken: dict[str, Any]) -> None:
        """Keep the tables of a benchmark, and write the file."""
        self.runs[name] = {"taken": taken, "tables": [table._asdict() for table in tables]}
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_text(json.dumps(self.runs, indent=1) + "\n")

    def tables(self) -> list[Table]:
        return [Table(**table) for run in self.runs.values() for table in run["tables"]]
