"""A run of CI takes what a change may have broken, and the rest in turn."""

import json
import pathlib

import pytest

import gradtx
from gradtx.core.traits import Scope
from tests import selection
from tests.catalogue import CATALOGUE
from tests.selection import FIXED, PARTS, TURNS, Selection, changed, entries, in_turn, left_out

CATALOGUE_PATH = pathlib.Path(selection.__file__).parent / "catalogue.py"
COMMITS = range(30, 30 + PARTS)  # numbers of commits in which each part is taken once


@pytest.mark.slow
def test_a_changed_rule_takes_what_is_built_from_it():
    names = changed({"gradtx.optimizers.lion", "docs/index.md"})
    assert {"lion", "scale_by_lion"} <= names
    assert not names & {"adam", "muon", "chain"}
    assert "accumulate" in changed({"gradtx.optimizers.adam"})  # which that entry is made with


@pytest.mark.slow
@pytest.mark.parametrize("module", ["engine.lift", "core.pair", "programs.tracing"])
def test_a_change_of_the_engine_takes_every_rule(module):
    names = changed({f"gradtx.{module}"})
    assert names >= {name for name, entry in CATALOGUE.items() if entry.make().rules}


@pytest.mark.slow
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
    turns = [in_turn(CATALOGUE, number) for number in range(100, 100 + TURNS)]
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

    def __init__(self, module, name, slow=True):
        self.path = selection.modules()[module]
        self.nodeid = f"{module}::test[{name}]"
        self.callspec = type("", (), {"params": {"name": name}})
        self.slow = slow

    def get_closest_marker(self, name):
        return self.slow if name == "slow" else None


class Example:
    """What pytest collects of the example in a docstring."""

    def __init__(self, path, name):
        self.path = selection.ROOT / path
        self.nodeid = f"{path}::{name}"
        self.dtest = type("", (), {"name": name})

    def get_closest_marker(self, name):
        return name == "slow"


SWEEPS, OF_A_FILE = "tests.test_contracts", "tests.optimizers.test_bfgs"


def sweep(slow=True):
    return [Case(SWEEPS, name, slow) for name in sorted(CATALOGUE)]


def chosen(monkeypatch, *paths, number=7, changed_too=True):
    """The selection where these files differ from the last that passed; None: git does not know."""
    said = None if None in paths else "".join(f"{path}\n" for path in paths)

    def git(*words):
        return str(number) if "--count" in words else said

    monkeypatch.setattr(selection, "git", git)
    return Selection(selection.changed_since("a commit"), changed_too, "a commit")


def names(cases):
    return {case.callspec.params["name"] for case in cases}


def leave_one_part(outs):
    """Whether each run leaves out about as many cases as where the others are equal parts."""
    wanted = (len(CATALOGUE) - len(FIXED)) * (1 - 1 / PARTS)
    return all(abs(len(out) - wanted) < wanted / 10 for out in outs)


@pytest.mark.slow
def test_only_slow_cases_of_sweeps_are_left_out(monkeypatch):
    out = left_out(sweep(), chosen(monkeypatch))
    assert names(out) == set(CATALOGUE) - FIXED - in_turn(CATALOGUE, 7)
    assert left_out(sweep(slow=False), chosen(monkeypatch)) == set()


def test_a_changed_rule_is_taken_with_the_files_that_use_it(monkeypatch):
    def takes(path, number):
        return chosen(monkeypatch, path, number=number).takes_file(OF_A_FILE)

    in_its_turn = [n for n in range(TURNS) if takes("docs/index.md", n)]
    assert len(in_its_turn) == 1
    other = (in_its_turn[0] + 1) % TURNS
    assert takes("gradtx/optimizers/bfgs.py", other)
    assert not takes("gradtx/optimizers/lion.py", other)
    selected = chosen(monkeypatch, "gradtx/optimizers/bfgs.py", number=other)
    assert "bfgs" not in names(left_out(sweep(), selected))


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("losses/segmentation.py", "tests.losses.test_losses"),  # which imports the package
        ("schedules/cyclic.py", "tests.schedules.test_schedules"),  # whose reach is not seen
    ],
)
def test_a_changed_module_is_taken_with_the_tests_of_its_folder(monkeypatch, path, tests):
    assert all(chosen(monkeypatch, f"gradtx/{path}", number=n).takes_file(tests) for n in COMMITS)


def test_of_a_changed_engine_each_case_is_taken_in_as_many_commits_as_there_are_parts(monkeypatch):
    paths = ["gradtx/engine/lift.py"]
    outs = [left_out(sweep(), chosen(monkeypatch, *paths, number=n)) for n in COMMITS]
    outs = list(map(names, outs))
    assert set.intersection(*outs) <= set(CATALOGUE) - changed({"gradtx.engine.lift"})
    assert leave_one_part(outs)


def test_of_a_changed_docstring_only_what_reads_it_is_taken(monkeypatch):
    path = "gradtx/engine/lift.py"
    source = (selection.ROOT / path).read_text()
    before = source.replace('"""', '"""Before. ', 1)
    answers = {"--count": "7", f"a commit:{path}": before, "a commit": f"{path}\n"}
    monkeypatch.setattr(
        selection, "git", lambda *words: next(map(answers.get, {*words} & {*answers}))
    )
    assert source != before
    selected = Selection(selection.changed_since("a commit"), True, "a commit")
    assert names(left_out(sweep(), selected)) == set(CATALOGUE) - FIXED - in_turn(CATALOGUE, 7)
    assert selected.takes_file("tests.test_docstrings")
    answers[f"a commit:{path}"] = source.replace("def ", "def other_", 1)
    assert selection.changed_since("a commit") == {"gradtx.engine.lift"}


@pytest.mark.parametrize("changed_file", ["bfgs", "lion"])
def test_examples_are_a_sweep_and_taken_where_their_docstring_changed(monkeypatch, changed_file):
    path = f"gradtx/optimizers/{changed_file}.py"
    source = (selection.ROOT / path).read_text()
    before = source.replace('"""', '"""Before. ', 1)
    answers = {"--count": "7", f"a commit:{path}": before, "a commit": f"{path}\n"}
    monkeypatch.setattr(
        selection, "git", lambda *words: next(map(answers.get, {*words} & {*answers}))
    )
    example = Example("gradtx/optimizers/bfgs.py", "gradtx.optimizers.bfgs.bfgs")
    others = sorted(set(CATALOGUE) - {"bfgs"})
    others = [Example("gradtx/optimizers/muon.py", f"gradtx.optimizers.muon.{n}") for n in others]
    selected = Selection(selection.changed_since("a commit"), True, "a commit")
    out = left_out([example, *others], selected)
    assert (example in out) is (changed_file == "lion")
    assert len(out - {example}) == len(set(CATALOGUE) - FIXED - in_turn(CATALOGUE, 7) - {"bfgs"})
    assert not selection.names_of_sweeps([example])  # one example is no sweep


def test_where_only_a_turn_is_asked_for_a_change_adds_nothing(monkeypatch):
    out = left_out(sweep(), chosen(monkeypatch, "gradtx/engine/lift.py", changed_too=False))
    assert names(out) == set(CATALOGUE) - in_turn(CATALOGUE, 7)


@pytest.mark.parametrize("path", ["tests/test_contracts.py", None])
def test_all_is_taken_of_a_changed_test_and_where_nothing_is_known(monkeypatch, path):
    assert left_out(sweep(), chosen(monkeypatch, path)) == set()


def test_what_all_tests_share_counts_as_a_change_of_every_module(monkeypatch):
    runs = [chosen(monkeypatch, "tests/conftest.py", number=n) for n in COMMITS]
    outs = [names(left_out(sweep(), run)) for run in runs]
    assert set.intersection(*outs) == set()
    assert leave_one_part(outs)
    assert all(any(run.takes_file(m) for run in runs) for m in selection.modules() if ".test_" in m)
    assert not all(runs[0].takes_file(m) for m in selection.modules() if ".test_" in m)


def test_a_changed_helper_takes_the_files_that_import_it(monkeypatch):
    for number in COMMITS:
        selected = chosen(monkeypatch, "tests/distributed/meshes.py", number=number)
        assert selected.takes_case("tests.distributed.test_catalogue", "a test", "adam_mini")


def test_all_is_taken_where_no_run_is_known(monkeypatch, tmp_path):
    assert left_out(sweep(), Selection(None)) == set()
    monkeypatch.setattr(selection, "RECORD", tmp_path / "none.json")
    assert selection.since_last_passed().everything


def test_changes_are_those_since_the_last_commit_that_landed_or_had_a_whole_run(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(selection, "RECORD", tmp_path / "run.json")
    monkeypatch.setattr(selection, "PAGE", tmp_path / "page.md")
    selection.PAGE.write_text("")
    asked = []

    def git(*words):
        asked.append(words)
        return "7" if "--count" in words else "a1\n" if "HEAD" in words else "b2\n"

    monkeypatch.setattr(selection, "git", git)
    selection.record("9 minutes", "5 passed")
    assert selection.last_passed() == "a1"
    selection.landed("its name")
    assert selection.last_passed() == "b2"
    assert json.loads(selection.RECORD.read_text())["commit"] == "a1"
    selection.since_last_passed()
    assert ("diff", "--name-only", "b2", "--") in asked
    selection.record("9 minutes", "5 passed")
    assert selection.last_passed() == "a1"


def test_a_commit_that_git_does_not_know_has_not_landed(monkeypatch):
    monkeypatch.setattr(selection, "git", lambda *_: None)
    before = selection.RECORD.read_text()
    with pytest.raises(SystemExit, match="no commit nowhere"):
        selection.landed("nowhere")
    assert selection.RECORD.read_text() == before


@pytest.mark.parametrize("path", ["gradtx/losses/ctc.py", "gradtx/engine/lift.py"])
def test_files_of_which_it_cannot_be_seen_what_they_reach_take_turns(monkeypatch, path):
    unseen = [m for m in selection.modules() if ".test_" in m and selection.seen(m) is None]
    assert "tests.wrappers.test_store" in unseen
    assert set(unseen) >= selection.WHOLE
    unseen = set(unseen) - selection.WHOLE
    runs = [chosen(monkeypatch, path, number=n) for n in COMMITS]
    assert all(any(run.takes_file(module) for run in runs) for module in unseen)
    assert sum(runs[0].takes_file(module) for module in unseen) < len(unseen) / 2
    assert all(runs[0].takes_file(module) for module in selection.WHOLE)


def test_the_file_of_a_changed_module_is_taken(monkeypatch):
    for n in COMMITS:
        selected = chosen(monkeypatch, "gradtx/ownership/owners.py", number=n)
        assert selected.takes_file("tests.engine.test_owners")


def test_a_file_that_sees_mutants_of_a_changed_module_is_taken(monkeypatch):
    for n in COMMITS:
        selected = chosen(monkeypatch, "gradtx/storage/dithered.py", number=n)
        assert selected.takes_file("tests.storage.test_formats")
        selected = chosen(monkeypatch, "gradtx/numerics/control.py", number=n)
        assert selected.takes_file("tests.composition.test_gate"), "which names a function of it"


def test_the_page_has_the_last_whole_run():
    said = json.loads(selection.RECORD.read_text())
    assert selection.WHOLE_RUN.findall(selection.PAGE.read_text()) == [selection.sentence(said)]
