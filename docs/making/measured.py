"""Charts of what `python -m benchmarks` measured and keeps in benchmarks/results."""

from collections.abc import Mapping, Sequence

from benchmarks.results import FULL, Results
from making.pictures import bars

TABLES = {table.key: table for table in Results.read(FULL).tables()}
UNITS = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}
PARAMETER = 67.1e6  # bytes of the leaf of 16M float32 numbers


def number(cell: str) -> float:
    """What a cell says, in bytes where it has a unit of them."""
    value, _, unit = cell.replace(",", "").partition(" ")
    return float(value) * UNITS.get(unit, 1.0)


def columns(title: str, first: str, names: Sequence[str]) -> Mapping[str, list[str]]:
    """Of a table, by the first cell of each row, what stands in some columns."""
    table = TABLES[title, first]
    places = [table.header.index(name) for name in names]
    return {row[0]: [row[i] for i in places] for row in table.rows}


def peers() -> tuple[str, str]:
    """Time and memory of a step, against Optax's, for everything that is an optimizer by itself."""
    title = "Everything both libraries have, one leaf of 16M, on a CPU"
    found = columns(title, "optimizer", ["gradtx / optax", "temp", "temp, optax"])
    alone = {k: v for k, v in found.items() if "+ sgd" not in k and "mean" not in k}
    times = {k: [number(v[0])] for k, v in alone.items()}
    stored = {k: [round(number(x) / PARAMETER, 1) for x in v[1:]] for k, v in alone.items()}
    differ = {k: v for k, v in stored.items() if v[0] != v[1]}
    return (
        bars(
            dict(sorted(times.items(), key=lambda item: item[1])),
            "Time of a step over that of Optax",
            form=".2f",
        ),
        bars(
            dict(sorted(differ.items(), key=lambda item: (item[1][::-1], item[0]))),
            "Copies of the parameters that a step stores besides",
            ("gradtx", "Optax"),
            form=".0f",
        ),
    )


def rows_of_a_table() -> str:
    title = "1,000,000 x 64, 1024 rows touched, one by one"
    found = columns(title, "", ["step, ms", "gradtx, adam, ms"])
    ours = {"gradtx, adam": [number(found["gradtx, rowwise_adagrad"][1])]}
    all_of_them = ours | {name: [number(cells[0])] for name, cells in found.items()}
    return bars(all_of_them, "Milliseconds of a step on a table", logarithmic=True)


def micro_batches() -> str:
    title = "Gradient accumulation: adam(1e-3), 16M parameters, on cpu"
    table = TABLES[title, "window"]
    at = table.header.index("ms a micro-batch")
    rows: dict[str, list[float]] = {}
    for row in table.rows:
        if row[1] in ("gradtx", "optax"):
            rows.setdefault(f"windows of {row[0]}", []).append(number(row[at]))
    return bars(rows, "Milliseconds of a micro-batch", ("gradtx", "Optax"))


def charts() -> dict[str, str]:
    times, stored = peers()
    return {
        "peers_times": times,
        "peers_stored": stored,
        "rows_of_a_table": rows_of_a_table(),
        "micro_batches": micro_batches(),
    }
