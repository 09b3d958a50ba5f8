"""What the benchmarks measured is what the docs say."""

import pytest

from benchmarks.__main__ import COMMANDS
from benchmarks.results import DOCS, FULL, Results, Table, tables_in, with_tables
from benchmarks.tables import markdown

RESULTS = Results.read(FULL)


def test_the_docs_are_made_from_the_results():
    assert with_tables(DOCS.read_text(), RESULTS.tables()) == DOCS.read_text()
    assert {t.key for t in tables_in(DOCS.read_text())} == {t.key for t in RESULTS.tables()}


def test_all_that_is_quoted_has_a_command():
    assert set(RESULTS.runs) == set(COMMANDS)


def test_a_printed_table_is_read_back():
    printed = markdown("Times", ["", "ms"], [["a", 1.5], ["b, c", 2000.0]])
    (found,) = tables_in(f"first:\n{printed}\nand more")
    assert found == Table("Times", ["", "ms"], [["a", "1.50"], ["b, c", "2,000"]])


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
