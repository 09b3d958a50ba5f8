"""The page for users of Optax: its code runs, and its tables are those of the library."""

import pathlib
import re

import pytest

import gradtx
from gradtx.names.absences import DIFFERENT, LEFT_OUT

PAGE = (pathlib.Path(__file__).parent.parent / "docs" / "coming_from_optax.md").read_text()


def rows(title):
    """The names in the first column of the table under a title."""
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    first = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    found = [name for cell in first for name in re.findall(r"`([\w.]+)[`(]", cell)]
    return {name.rpartition(".")[2] for name in found}


# Flax 0.12.0, the newest for jax 0.8.0, imports what that calls deprecated.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:jax.[A-Za-z_]* is deprecated:DeprecationWarning")
def test_its_code_runs():
    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, names)
    assert isinstance(names["tx"], gradtx.GradientTransformation)
    assert int(gradtx.tree.get(names["state"], "count")) == 2
    assert type(names["back"][0]) is names["optax"].ScaleByAdamState


def test_its_tables_are_those_of_the_library():
    assert rows("What is left out") == LEFT_OUT.keys()
    assert rows("What differs on purpose") | {"MaskedNode"} == DIFFERENT.keys()
