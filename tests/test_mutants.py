"""A few mutants that once lived, which the tests of papers must see; `tests.mutants` makes all."""

import pytest

from tests import mutants

# Epsilon moved into the root, or out of it.
ROOTS = ("adan", "ademamix", "diffgrad", "laprop", "qhadam")


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
