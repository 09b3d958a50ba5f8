"""What is made and dropped, and steps that are not compiled, leave nothing behind."""

import gc
import itertools
import resource
from collections.abc import Callable
from typing import Any

import jax

import gradtx
from benchmarks.reliability.outcome import Outcome
from tests.catalogue import CATALOGUE
from tests.test_contracts import grads, params, step, take

NAMED = ("adafactor", "adam", "lion", "muon", "rmsprop", "sgd")
OBJECTS = 200  # how many more there may be at the end
MEGABYTES = 8.0


def resident() -> float:
    """Megabytes of this process that are in memory, as Linux reports them."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def memory(quick: bool) -> Outcome:
    done, times = Outcome(), 150 if quick else 10_000
    names, turn = itertools.cycle(sorted(CATALOGUE)), itertools.cycle(range(len(NAMED)))
    few = [gradtx.adamw(1e-2), gradtx.lion(1e-2), gradtx.accumulate(gradtx.sgd(0.1), 2)]
    p, g = params(), take(grads(1), 0)
    carries = [(p, tx.init(p)) for tx in few]

    def make() -> None:
        CATALOGUE[next(names)].make()

    def read() -> None:
        gradtx.from_config(gradtx.to_config(CATALOGUE[NAMED[next(turn)]].make()))

    def one_step() -> None:
        i = next(turn) % len(few)
        carries[i], _ = step(few[i], carries[i], g)

    for what, act, warm in (
        ("transformations made", make, len(CATALOGUE)),
        ("configurations read", read, 20),
        ("steps", one_step, 100),
    ):
        objects, megabytes = grown(act, 2 * warm, times)
        done.tried += times
        done.notes |= {f"objects after {what}": objects, f"MB after {what}": round(megabytes, 2)}
        if objects > OBJECTS or megabytes > MEGABYTES:
            done.failures.append(f"{times} {what}: {objects} objects, {megabytes:.1f} MB more")
    return done


def grown(act: Callable[[], Any], warm: int, times: int) -> tuple[int, float]:
    for _ in range(warm):
        act()
    gc.collect()
    objects, megabytes = len(gc.get_objects()), resident()
    for _ in range(times):
        act()
    jax.effects_barrier()
    gc.collect()
    return len(gc.get_objects()) - objects, resident() - megabytes
