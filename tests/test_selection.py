"""A run of CI takes what a change may have broken, and the rest in turn."""

import pathlib

import pytest

import gradtx
from gradtx.traits import Scope
from tests import selection
from tests.catalogue import CATALOGUE
from tests.selection import FIXED, TURNS, Selection, changed, entries, in_turn, left_out

CATALOGUE_PATH = pathlib.Path(selection.__file__).parent / "catalogue.py"


def test_a_changed_rule_takes_what_is_built_from_it():
    names = changed({"gradtx/optimizers/lion.py", "docs/index.md"})
    assert {"lion", "scale_by_lion"} <= names
    assert not names & {"adam", "muon", "chain"}
    assert "accumulate" in changed({"gradtx/optimizers/adam.py"})  # which that entry is made with


@pytest.mark.parametrize("path", ["engine/lift.py", "pair.py", "numerics/tracing.py"])
def test_a_change_of_the_engine_takes_every_rule(path):
    names = changed({f"gradtx/{path}"})
    assert names >= {name for name, entry in CATALOGUE.items() if entry.make().rules}


def test_a_changed_entry_or_function_of_the_catalogue_takes_its_names():
    source = CATALOGUE_PATH.read_text()
    assert changed(set(), source) == set()
    before = source.replace("gradtx.lion(1e-2)", "gradtx.lion(3e-2)")
    assert before != source
    assert changed(set(), before) == {"lion"}
    before = source.replace("return gradtx.global_norm(updates)", "return updates")
    assert before != source
    assert changed(set(), before) == {n for n, text in entries(source).items() if "'norm'" in text}


def test_every_case_has_its_turn():
    turns = [in_turn(number) for number in range(100, 100 + TURNS)]
    assert set.union(*turns) == set(CATALOGUE)
    assert sum(map(len, turns)) == len(CATALOGUE)


def test_a_fixed_part_has_each_scope_composition_and_kind():
    assert set(CATALOGUE) >= FIXED
    rules = [rule for name in FIXED for rule in CATALOGUE[name].make().rules or ()]
    assert {rule.scope for rule in rules} == set(Scope)
    homes = {getattr(gradtx, name).builder.function.__module__.split(".")[1] for name in FIXED}
    others = {getattr(gradtx, name).builder.function.__module__.split(".")[1] for name in CATALOGUE}
    assert homes == others


class Case:
    """What pytest collects of a parametrized test."""

    def __init__(self, test, name, slow=True):
        self.nodeid = f"tests/{test}.py::test[{name}]"
        self.path = selection.ROOT / "tests" / f"{test}.py"
        self.callspec = type("", (), {"params": {"name": name}})
        self.slow = slow

    def get_closest_marker(self, name):
        return self.slow if name == "slow" else None


def cases(test, names, slow=True):
    return [Case(test, name, slow) for name in names]


def test_only_slow_cases_of_sweeps_are_left_out(monkeypatch):
    monkeypatch.setattr(selection, "git", lambda *words: "7" if "--count" in words else "")
    names = sorted(CATALOGUE)
    sweep, few = cases("a", names), cases("b", names[:20])
    quick = cases("c", names, slow=False)
    out = left_out([*sweep, *few, *quick], Selection("a commit"))
    assert out == {case for case in sweep if case.callspec.params["name"] not in FIXED | in_turn(7)}
    assert len(out) > 200


def test_of_a_changed_test_every_case_is_taken(monkeypatch):
    monkeypatch.setattr(
        selection, "git", lambda *words: "7" if "--count" in words else "tests/a.py"
    )
    sweep = cases("a", sorted(CATALOGUE))
    assert left_out(sweep, Selection("a commit")) == set()


@pytest.mark.parametrize("said", [None, "tests/conftest.py"])
def test_where_nothing_is_known_everything_is_taken(monkeypatch, said):
    monkeypatch.setattr(selection, "git", lambda *words: "7" if "--count" in words else said)
    assert left_out(cases("a", sorted(CATALOGUE)), Selection("a commit")) == set()
    assert left_out(cases("a", sorted(CATALOGUE)), Selection(None)) == set()
