"""Interleaved timing of steps that consume their own state."""

import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

Step = Callable[..., tuple[Any, ...]]


class Donated:
    """A compiled step ``carry -> carry`` over donated arrays, called again and again.

    It works on a copy of `carry`, in which every leaf has a buffer of its own: a fresh state may
    hold the parameters themselves, or one array twice, and neither can be donated.
    """

    def __init__(self, step: Step, carry: tuple[Any, ...], *rest: Any) -> None:
        self._step, self._carry, self._rest = step, jax.tree.map(jnp.copy, carry), rest

    def __call__(self) -> None:
        self._carry = self._step(*self._carry, *self._rest)
        jax.block_until_ready(self._carry)


def interleaved(
    runs: Mapping[str, Callable[[], None]],
    rounds: int = 15,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each run, round by round.

    Odd rounds go backwards, so that no run always follows the same other, and a slow second of the
    machine falls on all of them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(warmup + rounds):
        for name in list(runs)[:: -1 if turn % 2 else 1]:
            start = clock()
            runs[name]()
            elapsed = clock() - start
            if turn >= warmup:
                seconds[name].append(elapsed)
    return seconds


def ratio(of: list[float], to: list[float]) -> float:
    """The median over the rounds of the ratio in a round: what slows a whole round cancels."""
    return statistics.median(a / b for a, b in zip(of, to, strict=True))


def once(function: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = function()
    return result, time.perf_counter() - start


def with_bytecode() -> dict[str, str]:
    """The environment of a process that writes bytecode, and reads what another has written.

    This is Python's default, and how an installed package runs.
    """
    return {n: x for n, x in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
