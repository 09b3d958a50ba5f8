"""The command that moves a code base: what it changes, and that the page says the same."""

# Sees mutants of: resharding.

import re
from pathlib import Path

from benchmarks import moving

PAGE = (Path(__file__).parents[1] / "docs" / "moving.md").read_text(encoding="utf-8")
OPTIMIZER = """
import jax
import optax
from optax import losses


def get_optimizer(c):
  optimizer = _get_base_optimizer(c)
  optimizer = optax.MultiSteps(optimizer, c.get("grad_accumulation_steps", 1))
  return optimizer
"""


def test_lines_are_changed_in_a_copy(tmp_path):
    source = tmp_path / "source"
    (source / "inner").mkdir(parents=True)
    file = source / "inner" / "optimizer.py"
    file.write_text(OPTIMIZER)
    places = [source, *(tmp_path / name for name in ("moved", "int8", "alone"))]
    changes = moving.IMPORTS, moving.INT8, moving.ALONE
    counts = [
        moving.changed(*pair, *change)
        for *pair, change in zip(places[:-1], places[1:], changes, strict=True)
    ]
    assert counts == [2, 1, 1]
    assert file.read_text() == OPTIMIZER
    lines = (places[-1] / "inner" / "optimizer.py").read_text().splitlines()
    assert [line for line in lines if line.strip()] == [
        "import jax",
        "import gradtx as optax",
        "from gradtx import losses",
        "def get_optimizer(c):",
        '  optimizer = optax.store(_get_base_optimizer(c), "int8")',
        "  return optimizer",
    ]


def test_the_page_shows_these_changes():
    shown = re.findall(r"```diff\n(.*?)```", PAGE, re.DOTALL)
    pairs = [[line[1:] for line in block.splitlines()] for block in shown]
    changes = (*moving.IMPORTS, *moving.INT8, *moving.ALONE)
    for (old, *new), (pattern, text) in zip(pairs, changes, strict=True):
        assert re.sub(pattern, text, old).strip() == "".join(new).strip()


def test_a_configuration_is_read_as_nanodo_reads_it():
    c = moving.configuration()
    assert c.opt.optimizer == "adamw"
    assert c.opt.get("grad_accumulation_steps", 1) == 1
    assert {**c.model}["D"] == 128
