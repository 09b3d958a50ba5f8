"""Steps outside of ``jit``: many leaves as one compiled program, not one operation at a time.

An operation costs some 10 microseconds to start, and is compiled for every shape that it meets: an
Adam step starts twenty for each leaf, and the first one of a process compiles twenty for each
shape. One program for the whole tree starts once, and compiles in a fraction of that.
"""

import contextlib
import contextvars
import functools
import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

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

SMALL = 1 << 16
"""A leaf of fewer entries is copied into a vector in less time than a kernel is compiled for it."""

FIRST_STEPS = 32
"""As many steps of a program copy small leaves; whoever takes more waits once for the compiler,
since a step without copies takes a half to a sixth of the time."""

_enabled = contextvars.ContextVar("eager_programs", default=True)
_once: Counter[Any] = Counter()  # how many objects of each builder have run a program just once


@contextlib.contextmanager
def eager_programs(enabled: bool) -> Iterator[None]:
    """Whether steps outside of ``jit`` may run as compiled programs, within a ``with`` statement.

    They do by default, where it saves time: ``init`` and ``update`` of gradtx's own optimizers and
    :func:`apply_updates`, on trees of 16 leaves or more and on smaller ones that take several
    steps. The numbers are those of the step compiled with ``jit``; one operation after another
    gives others by rounding. On a CPU XLA takes a quarter of its usual time to compile such a
    program, and less where small leaves are one vector, as they are in the first 32 steps of an
    optimizer that treats each entry by itself. Functions that are not gradtx's (rules, losses,
    schedules, foreign transformations) are never traced by this, nor are `Rows` and arrays on
    several devices.

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
        static: which arguments are values to compile it for, not trees.
        level: at which the compiler for CPUs optimizes, if not at that of `QUICKLY`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        static: tuple[int, ...] = (),
        level: int = QUICKLY["xla_backend_optimization_level"],
    ) -> None:
        self._function, self._static = function, static
        self._options = {**QUICKLY, "xla_backend_optimization_level": level}
        self.steps: Counter[Any] = Counter()  # taken on vectors, for each kind of tree
        self._plainly = jax.jit(function, static_argnums=static)

    @functools.cached_property
    def _quickly(self) -> Callable[..., Any]:
        chosen = os.environ.get("XLA_FLAGS", "")  # the user's own choice stands
        options = {n: x for n, x in self._options.items() if n not in chosen and xla_has(n, x)}
        return jax.jit(self._function, static_argnums=self._static, compiler_options=options)

    def __call__(self, *trees: Any, **named: Any) -> Any:
        quickly = _are_on_cpu(jax.tree.leaves((trees, named)))
        return (self._quickly if quickly else self._plainly)(*trees, **named)


class Joined(NamedTuple):
    """A tree whose small leaves are one vector."""

    vector: Any
    others: list[Any]


class Joint:
    """How trees of one structure and equal shapes become `Joined`, and trees again.

    Args:
        like: one of these trees.
    """

    def __init__(self, like: Any) -> None:
        structure: Any
        self._leaves, structure = jax.tree.flatten(like)
        self._structure = structure
        self._shapes = [x.shape for x in self._leaves]
        self.kind = self._structure, tuple(self._shapes)

    @functools.cached_property
    def _are_small(self) -> list[bool]:
        return [math.prod(shape) < SMALL for shape in self._shapes]

    @functools.cached_property
    def _cuts(self) -> tuple[tuple[int, ...], ...]:
        return tuple(itertools.compress(self._shapes, self._are_small))

    def takes_all(self, parts: list[Any]) -> bool:
        """Whether there are small leaves enough, on a CPU, and it takes each of these parts."""
        enough = len(self._cuts) >= MANY_LEAVES
        return enough and _are_on_cpu(self._leaves) and all(map(self.takes, parts))

    def is_tree(self, x: Any) -> bool:
        """Whether something has the structure."""
        return bool(jax.tree.structure(x) == self._structure)

    def takes(self, x: Any) -> bool:
        """Whether something is a scalar, or a tree of these shapes with small leaves of a type."""
        if not self.is_tree(x):
            return jnp.ndim(x) == 0
        leaves = jax.tree.leaves(x)
        types = {leaf.dtype for leaf in itertools.compress(leaves, self._are_small)}
        return [leaf.shape for leaf in leaves] == self._shapes and len(types) == 1

    def joined(self, x: Any) -> Any:
        """A tree as `Joined`; a scalar as it is."""
        if not self.is_tree(x):
            return x
        leaves = jax.tree.leaves(x)
        small: list[Any] = []
        others: list[Any] = []
        for leaf, is_small in zip(leaves, self._are_small, strict=True):
            (small if is_small else others).append(leaf)
        return Joined(_concatenated(small), others)

    def is_whole(self, x: Any) -> bool:
        """Whether something is no `Joined`, or one with an entry for each that was joined."""
        if not isinstance(x, Joined):
            return True
        return bool(jnp.shape(x.vector) == (sum(map(math.prod, self._cuts)),))

    def restored(self, x: Any) -> Any:
        """The tree of a `Joined`; something else as it is."""
        if not isinstance(x, Joined):
            return x
        small, others = iter(_pieces(x.vector, self._cuts)), iter(x.others)
        leaves = [next(small if is_small else others) for is_small in self._are_small]
        return self._structure.unflatten(leaves)


def on_vectors(program: Program, like: Any, *trees: Any, **named: Any) -> Any:
    """``program(*trees, **named)``, in its first steps on a CPU with small leaves joined.

    XLA takes milliseconds to compile a kernel, of which there are several for each leaf: 3 s for
    Adam on 150 leaves. What joins leaves and cuts a vector compiles in 0.2 s, once for all trees.

    Args:
        program: computes each entry from the same entry of the trees, and from scalars.
        like: a tree; those in `trees` of its structure are joined. If they have other shapes than
            it or several types, or there are other arrays than scalars, nothing is.
        trees: the arguments.
        named: further arguments, which are passed on.
    """
    outer: Any
    joint = Joint(like)
    if program.steps[joint.kind] >= FIRST_STEPS:
        return program(*trees, **named)
    parts, outer = jax.tree.flatten(trees, is_leaf=joint.is_tree)
    if not joint.takes_all(parts):
        return program(*trees, **named)
    program.steps[joint.kind] += 1
    try:
        done = program(*outer.unflatten(map(joint.joined, parts)), **named)
    except (TypeError, ValueError):
        return program(*trees, **named)  # whose error tells the leaf
    parts, outer = jax.tree.flatten(done, is_leaf=lambda x: isinstance(x, Joined))
    if not all(map(joint.is_whole, parts)):  # a new slot, for one
        return program(*trees, **named)
    return outer.unflatten(map(joint.restored, parts))


def _concatenate(leaves: list[Any]) -> Any:
    return jnp.concatenate([jnp.reshape(x, -1) for x in leaves])


def _split(vector: Any, shapes: tuple[tuple[int, ...], ...]) -> list[Any]:
    pieces = jax.lax.split(vector, [math.prod(shape) for shape in shapes])
    return [jnp.reshape(x, shape) for x, shape in zip(pieces, shapes, strict=True)]


# Copies gain nothing by optimization, which takes most of the time to compile.
_concatenated = Program(_concatenate, level=0)
_pieces = Program(_split, static=(1,), level=0)


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
    if any(map(is_tracer, _kinds(leaves))) or is_tracer(jnp.zeros([])):
        return False
    arrays = (x for x in leaves if isinstance(x, jax.Array))
    return all(
        device.platform == "cpu" for x in itertools.islice(arrays, 1) for device in x.devices()
    )


def _kinds(leaves: list[Any]) -> list[Any]:
    """One of each type: there may be a thousand, and a look at each takes a third of a step."""
    return list(dict(zip(map(type, leaves), leaves, strict=True)).values())


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
