"""A few mutants that once lived, which the tests of papers must see; `tests.mutants` makes all."""

import ast
import json
import os
import sys

import pytest

from tests import mutants

# Epsilon moved into the root, or out of it.
ROOTS = ("adabelief", "adan", "ademamix", "nadam", "yogi")


@pytest.mark.slow
def test_mutants_that_once_lived_are_seen():
    chosen = []
    for name in ROOTS:
        chosen += [m for m in mutants.mutants(f"gradtx.optimizers.{name}") if m.kind == "root"]
    assert {m.module.rpartition(".")[2] for m in chosen} == set(ROOTS)
    prodigy = list(mutants.mutants("gradtx.optimizers.prodigy"))
    # The distance that the step began with, for the one that it found.
    found = [m for m in prodigy if m.before == "new" and m.after == "s.estim_lr"]
    assert found
    # One that computes the same lives: so the tests did run.
    acprop = mutants.mutants("gradtx.optimizers.acprop")
    same = [m for m in acprop if m.name in mutants.same()][:1]
    assert mutants.survivors([*chosen, *found, *same]) == same != []


@pytest.mark.slow
def test_what_is_listed_is_a_mutant():
    """A line that has changed since may have one that does not compute the same."""
    made = {m.name for module in mutants.modules([]) for m in mutants.mutants(module)}
    assert mutants.same() - made == set()


def test_the_modules_that_test_files_name_are_there():
    named = {mutants.place(module)[-1] for module in mutants.modules([])}
    sources = [path.read_text() for path in (mutants.ROOT / "gradtx").rglob("*.py")]
    parts = [text for text in mutants.said() if text not in named]
    assert [text for text in parts if not any(text in source for source in sources)] == []
    assert not [text for text in parts if text.isidentifier()]


@pytest.mark.slow
def test_the_record_of_the_run_has_its_form():
    entries = mutants.recorded()
    assert list(entries) == sorted(entries)
    assert any(key in mutants.every_function() for key in entries)
    for lived in entries.values():
        assert isinstance(lived, list)
        assert lived == sorted(set(lived))


@pytest.mark.parametrize(
    ("source", "same"),
    [
        ("def f(g, m):\n    return g + 2 * m", True),
        ('@decorated\ndef f(x: Any, y) -> Any:\n    """Words."""\n    return x + 2 * y', True),
        ("def f(x, y):\n    from gradtx import z\n    return x + 2 * y", True),
        ("def f(x, y):\n    return y + 2 * x", False),
        ("def f(x, y):\n    return x + 3 * y", False),
        ("def f(x, y):\n    return x + 2 * z", False),
        ("def h(x, y):\n    return x + 2 * y", False),
    ],
)
def test_a_function_is_recorded_by_what_it_computes(source, same):
    def key(text):
        (pair,) = mutants.functions(ast.parse(text))
        return mutants.recorded_as(*pair)

    before = key("def f(x, y):\n    # A comment.\n    return x + 2 * y")
    assert (key(source) == before) == same


@pytest.mark.slow
def test_a_run_goes_on_where_another_ended(tmp_path, monkeypatch, capsys):
    """What lived is tried once more, a changed function is tried whole, and others are not."""
    box, asked = "gradtx.projections.box", []

    def survivors(chosen):
        asked.append([m.name for m in chosen])
        return chosen[:1]

    def run(*arguments):
        asked.clear()
        monkeypatch.setattr(sys, "argv", ["mutants", box, *arguments])
        return mutants.main(), [len(names) for names in asked]

    monkeypatch.setattr(mutants, "RECORD", tmp_path / "run.json")
    monkeypatch.setattr(mutants, "survivors", survivors)
    every = [m.name for m in mutants.mutants(box) if m.name not in mutants.same()]
    mutants.record("gradtx.projections.norms", [])
    others = list(mutants.recorded())
    assert run("--left") == (0, [])
    assert capsys.readouterr().out.endswith(f"\n{len(every)} mutants are left\n")
    assert run() == (True, [len(every)])
    keys = {m.recorded_as for m in mutants.mutants(box)}
    assert sorted(mutants.recorded()) == sorted([*others, *keys])
    assert [names for names in mutants.recorded().values() if names] == [every[:1]]
    assert run() == (True, [1])
    monkeypatch.setattr(mutants, "survivors", lambda chosen: asked.append(chosen) or [])
    assert run() == (False, [1])
    assert run() == (False, [])
    assert run("--again") == (False, [len(every)])
    entries = mutants.recorded()
    renamed = max(keys)
    mutants.RECORD.write_text(json.dumps(entries | {renamed: ["elsewhere: x  ->  y"]}))
    assert run() == (False, [sum(m.recorded_as == renamed for m in mutants.mutants(box))])
    entries = mutants.recorded()
    changed = min(keys)
    of_changed = sum(m.recorded_as == changed for m in mutants.mutants(box))
    entries[f"{changed}0"] = entries.pop(changed)
    mutants.RECORD.write_text(json.dumps(entries))
    assert run() == (False, [of_changed])
    assert sorted(mutants.recorded()) == sorted([*others, *keys])


def test_a_module_whose_tests_fail_afterwards_is_not_recorded(tmp_path, monkeypatch, capsys):
    def survivors(chosen):
        raise RuntimeError("test_x fails after the mutants")

    monkeypatch.setattr(mutants, "RECORD", tmp_path / "run.json")
    monkeypatch.setattr(mutants, "survivors", survivors)
    monkeypatch.setattr(sys, "argv", ["mutants", "projections/norms"])
    assert mutants.main()
    assert "norms is not tried: test_x fails after the mutants" in capsys.readouterr().out
    assert mutants.recorded() == {}


@pytest.mark.slow
def test_a_trial_heeds_the_warnings_that_a_test_ignores(tmp_path):
    """Such a test would fail without a mutant, and tell nothing of any."""

    class Loop:
        def pytest_runtestloop(self, session):
            self.failures = [
                mutants.Test(item, "gradtx.leaves.rows").failures() for item in session.items
            ]
            return True

    path, loop = tmp_path / "test_warnings.py", Loop()
    path.write_text(
        "import pytest, warnings\n"
        "@pytest.mark.filterwarnings('ignore:known')\n"
        "@pytest.mark.parametrize('what', ['known', 'new'])\n"
        "def test_one(what):\n"
        "    warnings.warn(what, stacklevel=1)\n"
    )
    arguments = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "-W", "error", str(path)]
    assert pytest.main(arguments, plugins=[loop]) == pytest.ExitCode.OK
    known, new = loop.failures
    assert known == []
    assert "UserWarning: new" in new[0]
