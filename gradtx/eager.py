"""Steps outside of ``jit``: many leaves as one compiled program, not one operation at a time.

An operation costs some 10 microseconds to start, and is compiled for every shape that it meets: an
Adam step starts twenty for each leaf, and the first one of a process compiles twenty for each
shape. One program for the whole tree starts once, and compiles in a fraction of that.
"""

import contextlib
import contextvars
import functools
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from gradtx.declaration import Declaration, Declared
from gradtx.host_values import HostValue
from gradtx.numerics.steering import is_tracer
from gradtx.rows import is_rows

MANY_LEAVES = 16
"""A tree of this many leaves is worth a program at its first step, and a smaller one after steps
that add up to it."""

TRIED = 4
"""This many optimizers of one kind may compile a program that runs once; the next must take a
second step first. A loop that builds a new ``adam(rate)`` for each step does not compile each time.
"""

QUICKLY = {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False}
"""Options by which XLA compiles a step for a CPU in a quarter of the time, with the same bits."""

_enabled = contextvars.ContextVar("eager_programs", default=True)
_once: Counter[Any] = Counter()  # how many objects of each builder have run a program just once


@contextlib.contextmanager
def eager_programs(enabled: bool) -> Iterator[None]:
    """Whether steps outside of ``jit`` may run as compiled programs, within a ``with`` statement.

    They do by default, where it saves time: ``init`` and ``update`` of gradtx's own optimizers and
    :func:`apply_updates`, on trees of 16 leaves or more and on smaller ones that take several
    steps. The numbers are those of the step compiled with ``jit``; one operation after another
    gives others by rounding. On a CPU XLA takes a quarter of its usual time to compile such a
    program. Functions that are not gradtx's (rules, losses, schedules, foreign transformations) are
    never traced by this, nor are `Rows` and arrays on several devices.

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
    """A context in which nothing starts a program, if that is decided."""
    return eager_programs(False) if decided else contextlib.nullcontext()


class Eager:
    """When the steps of one declared object are run as programs.

    Args:
        declaration: of the object.
    """

    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration
        self._leaves = self._steps = 0

    def starts(self, params: Any) -> bool | None:
        """Whether the initial state of `params` is to be made by a program; see :meth:`steps`."""
        count = count_of_arrays(params)
        return count >= MANY_LEAVES and self._may_try if count and self._is_ours else None

    def steps(self, updates: Any, *others: Any) -> bool | None:
        """Whether a step on these arguments is to run as a program.

        False: nothing inside it runs as a program either. None: what is inside it decides.
        """
        count = count_of_arrays(updates, *others)
        if not count or not self._is_ours:
            return None
        first, self._leaves = self._leaves == 0, self._leaves + count
        if self._leaves < MANY_LEAVES or (first and not self._may_try):
            return False
        if self._steps < 2:
            _once[self._declaration.builder] += -1 if self._steps else 1
        self._steps += 1
        return True

    @property
    def _may_try(self) -> bool:
        return _once[self._declaration.builder] < TRIED

    @functools.cached_property
    def _is_ours(self) -> bool:
        return is_ours(self._declaration)


class Program:
    """A function of trees, compiled; on a CPU with little time for the compiler.

    Args:
        function: what to compile.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._plainly = jax.jit(function)

    @functools.cached_property
    def _quickly(self) -> Callable[..., Any]:
        chosen = os.environ.get("XLA_FLAGS", "")  # the user's own choice stands
        options = {n: x for n, x in QUICKLY.items() if n not in chosen and xla_has(n, x)}
        return jax.jit(self._function, compiler_options=options)

    def __call__(self, *trees: Any, **named: Any) -> Any:
        quickly = _are_on_cpu(jax.tree.leaves((trees, named)))
        return (self._quickly if quickly else self._plainly)(*trees, **named)


@functools.cache
def xla_has(option: str, value: Any) -> bool:
    """Whether this version of XLA has an option for its compiler."""
    try:
        jax.jit(lambda: 0, compiler_options={option: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def _are_on_cpu(leaves: list[Any]) -> bool:
    """Whether a program of these, all on one device, is on a CPU, and not a part of another."""
    if any(map(is_tracer, leaves)) or is_tracer(jnp.zeros([])):
        return False
    arrays = (x for x in leaves if isinstance(x, jax.Array))
    return all(
        device.platform == "cpu" for x in itertools.islice(arrays, 1) for device in x.devices()
    )


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
    places = set()
    for x in (*leaves, *jax.tree.leaves(others)):
        if isinstance(x, jax.Array) and not is_tracer(x):
            places.add(x.sharding)
        elif not isinstance(x, np.ndarray):
            return 0
    one = len(places) == 1 and isinstance(next(iter(places)), SingleDeviceSharding)
    return len(leaves) if one else 0
