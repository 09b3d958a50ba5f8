"""Steps outside of ``jit``: one compiled program for the whole tree, not one operation at a time.

An operation costs some 10 microseconds to start, and is compiled for every shape that it meets: an
Adam step starts twenty for each leaf, and the first one of a process compiles twenty for each
shape. One program for the whole tree starts once. It compiles in about the same time if leaves have
few shapes, and in half of it if they have many. Where a rule treats each entry by itself, the first
steps on many small leaves run on vectors into which these are joined (`core/blocks.py`), and
compile in a third to a thirtieth of the time.

From the first step on the bits are those of ``jax.jit(tx.update)`` with XLA's usual options. A
program with less optimization would differ in the last bits of some rules, and a run that was saved
and resumed would not repeat itself. ``init`` runs one operation after another: each is compiled
once for all leaves of a shape, and zeros have the same bits either way.
"""

import contextlib
import contextvars
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from gradtx.core.blocks import OnBlocks
from gradtx.declarations.declaration import Declaration, Declared
from gradtx.declarations.host_values import HostValue
from gradtx.leaves.rows import is_rows
from gradtx.names.namespace import warn
from gradtx.programs.tracing import is_tracer

MANY_LEAVES = 16
"""A tree of this many leaves is worth a program that adds updates to it, which gives the same bits.
"""

MANY_PROGRAMS = 8
"""So many programs of optimizers that differ in numbers, each of which ran once, get a warning."""

_enabled = contextvars.ContextVar("eager_programs", default=True)
_each_ran_once: Counter[str] = Counter()  # how many programs, by what prints besides numbers


@contextlib.contextmanager
def eager_programs(enabled: bool) -> Iterator[None]:
    """Whether steps outside of ``jit`` may run as compiled programs, within a ``with`` statement.

    They do by default: ``update`` of gradtx's own optimizers, and :func:`apply_updates` on trees of
    16 leaves or more. From its first step on ``update`` gives the numbers of ``jax.jit(tx.update)``
    to the last bit, so that a run that was saved goes on as it would have; one operation after
    another gives others by rounding. On a CPU the first 16 steps of rules of entries run on leaves
    that are joined, for which compiling is quick; the program of the leaves is compiled at the 17th
    step, which takes as long as a first step under ``jit``. Functions that are not gradtx's (rules,
    losses, schedules, foreign transformations) are never traced by this, nor are `Rows` and arrays
    on several devices.

    Optimizers that are equal share a program. One with another Python number gets its own, which
    takes a tenth of a second or more to compile: a loop that makes a new ``adam(rate)`` for each
    step is slow, and gets a warning at the eighth. Where a number changes from step to step, pass
    it as an array, ``adam(jnp.asarray(rate))``, which is an argument of one program, or as a
    schedule.

    Args:
        enabled: False runs one operation after another, as to look at values with a debugger;
            so does ``jax.disable_jit``.

    >>> import gradtx
    >>> tx, params = gradtx.scale(-2.0), [1.0] * 20
    >>> with gradtx.eager_programs(False):
    ...     updates, _ = tx.update(params, tx.init(params))
    >>> float(updates[0])
    -2.0
    """
    before = _enabled.set(enabled)
    try:
        yield
    finally:
        _enabled.reset(before)


class EagerStep:
    """A step as a compiled program, which notices if many like it run only once.

    Args:
        name: the optimizer, as it prints.
        step: the function, of hyperparameters, updates, and whatever else it takes.
        by_entry: whether it computes each entry from the same entry of its arguments.
    """

    def __init__(self, name: str, step: Callable[..., Any], by_entry: bool) -> None:
        self._name, self._kind = name, re.sub(r"\d[\d.]*(e[-+]?\d+)?", "_", name)
        program = jax.jit(step)
        self._step = OnBlocks(program, like=1) if by_entry else program
        self._is_new = True

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if not self._is_new:
            _each_ran_once.pop(self._kind, None)
        else:
            self._is_new = False
            _each_ran_once[self._kind] += 1
            if _each_ran_once[self._kind] == MANY_PROGRAMS:
                self._warn()
        return self._step(*args, **kwargs)

    def _warn(self) -> None:
        name = self._name.partition("(")[0]
        warn(
            f"{name}: the last {MANY_PROGRAMS} of these optimizers differ only in numbers, and "
            "each took one step outside of jit, for which a program was compiled. Make one "
            f"optimizer before the loop, and pass what changes as an array, as in {name}(..., "
            "jnp.asarray(x)) or gradtx.replace(tx, learning_rate=jnp.asarray(rate)), or as a "
            "schedule; gradtx.eager_programs(False) compiles no steps"
        )


def _kinds(leaves: list[Any]) -> list[Any]:
    """One leaf for each Python class among the leaves, as looking at all of them takes time."""
    return list(dict(zip(map(type, leaves), leaves, strict=True)).values())


def is_ours(declaration: Declaration) -> bool:
    """Whether only gradtx's own functions run for a declaration, all of which can be traced."""
    if not (declaration.builder.function.__module__ or "").startswith("gradtx."):
        return False
    arguments = jax.tree.leaves(
        declaration.arguments, is_leaf=lambda x: isinstance(x, Declared | HostValue)
    )
    return all(
        # A pair without a declaration was made by hand.
        x.declaration is not None and is_ours(x.declaration)
        if isinstance(x, Declared)
        else not callable(x)
        for x in arguments
    )


def count_of_arrays(tree: Any, *others: Any) -> int:
    """The number of leaves of `tree`, or 0 if a program may not run on these arguments."""
    leaves = jax.tree.leaves(tree, is_leaf=is_rows)
    if not leaves or is_tracer(leaves[0]) or not _enabled.get():
        return 0
    each = leaves + jax.tree.leaves(others)
    kinds = _kinds(each)
    if any(is_tracer(x) or not isinstance(x, jax.Array | np.ndarray) for x in kinds):
        return 0
    places = {x.sharding for x in each if not isinstance(x, np.ndarray)}
    one = len(places) == 1 and isinstance(next(iter(places)), SingleDeviceSharding)
    return len(leaves) if one else 0
