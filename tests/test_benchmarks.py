"""What the benchmarks measured is what the docs say."""

import pytest

from benchmarks.__main__ import COMMANDS
from benchmarks.results import DOCS, FULL, Results, Table, tables_in, with_tables
from benchmarks.tables import markdown

RESULTS = Results.read(FULL)


def test_the_docs_are_made_from_the_results():
    assert with_tables(DOCS.read_text(), RESULTS.tables()) == DOCS.read_text()
    assert {t.key for t in tables_in(DOCS.read_text())} == {t.key for t in RESULTS.tables()}


def cell(title, row, column):
    """What the results say in a table, in the row whose first cells are these."""
    (table,) = [t for t in RESULTS.tables() if t.title == title]
    (found,) = [r for r in table.rows if r[: len(row)] == row]
    return found[table.header.index(column)]


def test_the_page_for_users_says_what_was_measured():
    peers = "Everything both libraries have, one leaf of 16M, on a CPU"
    (table,) = [t for t in RESULTS.tables() if t.title == peers]
    ratios = [float(row[-1]) for row in table.rows[:-1]]
    leaves = "Clipping and AdamW on equal leaves of 64, on cpu"
    trace, compiled = ["150", "trace and lower"], ["150", "trace, lower and compile"]
    muon = "Muon on 24 matrices of 512 x 2048 and 24 of 512 x 512"
    start = "Import time beyond `import jax`; median of 7 processes"

    def short(*place):
        return f"{float(cell(*place)):.2f}"

    page = " ".join((DOCS.parent / "benchmarks.md").read_text().split())
    for said in (
        f"takes {float(table.rows[-1][-1]):.2f} of Optax's time",
        f"over the {len(ratios)} transformations",
        f"the slowest takes {max(ratios):.2f} times",
        f"takes {short(leaves, trace, 'gradtx / optax')} of Optax's time",
        f"or {short(leaves, compiled, 'gradtx / optax')} with compiling",
        f"makes that {short(leaves, trace, 'packed / optax')}",
        f"and {short(leaves, compiled, 'packed / optax')}.",
        f"takes {short(muon, ['CPU: ms'], 'gradtx / optax')} of Optax's",
        f"adds {float(cell(start, ['gradtx.adam'], 'ms')):.0f} ms",
        f"`import optax` adds {float(cell(start, ['optax'], 'ms')):.0f}",
    ):
        assert said in page, said


def test_all_that_is_quoted_has_a_command():
    assert set(RESULTS.runs) == set(COMMANDS)


def test_a_printed_table_is_read_back():
    printed = markdown("Times", ["", "ms"], [["a", 1.5], ["b, c", 2000.0]])
    (found,) = tables_in(f"first:\n{printed}\nand more")
    assert found == Table("Times", ["", "ms"], [["a", "1.50"], ["b, c", "2,000"]])


@pytest.mark.slow
def test_a_table_takes_the_place_of_an_older_one(tmp_path):
    text = "## Times\n\nWords.\n\n| a | ms |\n|---|---:|\n| x | 1.00 |\n\nMore.\n"
    new = Table("Times", ["a", "ms"], [["x", "2.00"], ["y", "3.00"]])
    results = Results(tmp_path / "results" / "full.json")
    results.keep("times", [new], {"load before": 0.5})
    again = Results.read(results.path)
    assert again.has("times")
    assert not again.has("others")
    assert with_tables(text, again.tables()) == text.replace(
        "| x | 1.00 |", "| x | 2.00 |\n| y | 3.00 |"
    )
    with pytest.raises(ValueError, match="there is no place for Others"):
        with_tables(text, [new._replace(title="Others")])
