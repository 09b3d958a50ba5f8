"""Mutants of the rules, which the tests of their papers see: `tests.mutants` makes them."""

from benchmarks.reliability.outcome import Outcome
from tests import mutants as maker

FEW = ("lion",)


def mutants(quick: bool) -> Outcome:
    done, same = Outcome(), maker.same()
    for module in maker.modules(FEW if quick else ()):
        chosen = [mutant for mutant in maker.mutants(module) if mutant.name not in same]
        alive = maker.survivors(chosen)
        done.tried += len(chosen)
        done.failures += [f"lives: {mutant}" for mutant in alive]
    return done
