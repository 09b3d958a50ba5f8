"""Steps outside of ``jit``: one compiled program for the whole tree, not one operation at a time.

An operation costs some 10 microseconds to start, and is compiled for every shape that it meets: an
Adam step starts twenty for each leaf, and the first one of a process compiles twenty for each
shape. One program for the whole tree starts once. It compiles in about the same time if leaves have
few shapes, and in half of it if they have many.

It is the program of ``jax.jit(tx.update)``, with XLA's usual options, from the first step on: any
other, such as one with less optimization, differs in the last bits of some rules, and a run that
was saved and resumed would not repeat itself. ``init`` runs one operation after another: each is
compiled once for all leaves of a shape, and zeros have the same bits either way.
"""

import contextlib
import contextvars
import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from gradtx.declarations.declaration import Declaration, Declared
from gradtx.declarations.host_values import HostValue
from gradtx.leaves.rows import is_rows
from gradtx.programs.tracing import is_tracer

MANY_LEAVES = 16
"""A tree of this many leaves is worth a program that adds updates to it, which gives the same bits.
"""

TRIED = 4
"""This many optimizers of one builder may compile a program that runs once; the next must take a
second step first. A loop that builds a new ``adam(rate)`` for each step does not compile each time.
"""

_enabled = contextvars.ContextVar("eager_programs", default=True)
_once: Counter[Any] = Counter()  # how many programs of each builder have run just once


@contextlib.contextmanager
def eager_programs(enabled: bool) -> Iterator[None]:
    """Whether steps outside of ``jit`` may run as compiled programs, within a ``with`` statement.

    They do by default: ``update`` of gradtx's own optimizers, and :func:`apply_updates` on trees of
    16 leaves or more. From its first step on ``update`` gives the numbers of ``jax.jit(tx.update)``
    to the last bit, so that a run that was saved goes on as it would have; one operation after
    another gives others by rounding. If four optimizers of one builder have taken a single step
    each, as in a loop that makes a new one for every step, the first step of the next is not
    compiled. Functions that are not gradtx's (rules, losses, schedules, foreign transformations)
    are never traced by this, nor are `Rows` and arrays on several devices.

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


def one_by_one(decided: bool) -> contextlib.AbstractContextManager[None]:
    """A context in which steps do not run as compiled programs, if that is `decided`."""
    return eager_programs(False) if decided else contextlib.nullcontext()


class Eager:
    """When the steps of one declared object are run as programs.

    Args:
        declaration: of the object.
    """

    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration

    def steps(self, *trees: Any) -> bool | None:
        """Whether a step on these arguments is to run as a program.

        False: neither do the steps of transformations inside of it. None: each transformation
        inside of it decides for itself.
        """
        if not count_of_arrays(*trees) or not self._is_ours:
            return None
        return _history(self._structure).may_run(self._declaration.builder)

    @functools.cached_property
    def _structure(self) -> Any:
        return self._declaration.flatten()[1]

    @functools.cached_property
    def _is_ours(self) -> bool:
        return is_ours(self._declaration)


def _kinds(leaves: list[Any]) -> list[Any]:
    """One leaf for each Python class among the leaves, as looking at all of them takes time."""
    return list(dict(zip(map(type, leaves), leaves, strict=True)).values())


class _History:
    """The steps of equal optimizers: a wrapper may build its inner one anew for every step."""

    def __init__(self) -> None:
        self._is_new, self._ran_once = True, False

    def may_run(self, builder: Any) -> bool:
        """Whether the next step is to run as a program."""
        is_new, self._is_new = self._is_new, False
        before, self._ran_once = self._ran_once, is_new and _once[builder] < TRIED
        _once[builder] += self._ran_once - before
        return self._ran_once or not is_new


@functools.lru_cache(maxsize=256)
def _history(structure: Any) -> _History:
    del structure
    return _History()


def is_ours(declaration: Declaration) -> bool:
    """Whether only gradtx's own functions run for a declaration, all of which can be traced."""
    if not (declaration.builder.function.__module__ or "").startswith("gradtx."):
        return False
    arguments = jax.tree.leaves(
        declaration.arguments, is_leaf=lambda x: isinstance(x, Declared | HostValue)
    )
    return all(
        is_ours(x.declaration)
        if isinstance(x, Declared) and x.declaration is not None
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
