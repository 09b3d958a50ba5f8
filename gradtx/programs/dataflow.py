"""Facts about the results of a program, from facts about its inputs.

A lattice says which facts there are about an array, such as the layer that its entries belong to,
and what an equation makes of them. The pass that all of them share does the rest: it follows calls,
conditionals and loops, whose carries it follows until nothing more is learned.
"""

import abc
import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from jax.extend.core import Literal

from gradtx.programs.interpreter import called, scan_sizes

V = TypeVar("V")


class Lattice(abc.ABC, Generic[V]):
    """The facts known about an array, as values that can be compared, and how these change.

    >>> import jax
    >>> class Depends(Lattice[bool]):
    ...     '''Whether an array is computed from an input.'''
    ...
    ...     def number(self, x):
    ...         return False
    ...
    ...     def join(self, a, b, shape):
    ...         return a or b
    ...
    ...     def results(self, eqn, known):
    ...         return [any(known)] * len(eqn.outvars)
    >>> def run(x, y, z):
    ...     return jax.lax.fori_loop(0, 3, lambda i, now: (now[1], now[1], 2 * now[2]), (x, y, z))
    >>> follow(jax.make_jaxpr(run)(1.0, 1.0, 1.0), [False, True, False], Depends())
    [True, True, False]
    """

    @abc.abstractmethod
    def number(self, x: Any) -> V:
        """The fact about a number or an array that stands in the program."""

    @abc.abstractmethod
    def join(self, a: V, b: V, shape: Sequence[int]) -> V:
        """The fact about an array of this shape if either `a` or `b` is known of it.

        Joins must come to an end: where each value is joined with the next, the result stays the
        same from some turn on.
        """

    @abc.abstractmethod
    def results(self, eqn: Any, known: list[V]) -> Sequence[V]:
        """The facts about the results of an equation that the pass does not enter."""

    def enters(self, eqn: Any) -> bool:
        """Whether the pass enters a call, a conditional or a loop."""
        return True

    def taken(self, known: V) -> V:
        """The fact about one entry along the first axis, which a turn of a scan reads."""
        return known

    def stacked(self, known: V) -> V:
        """The fact about the array that a scan makes of the results of its turns."""
        return known

    def chosen(self, by: V, known: list[V], name: str) -> list[V]:
        """The facts about results that a predicate chooses, if `by` is known of the predicate."""
        return known


def follow(program: Any, known: Sequence[V], lattice: Lattice[V]) -> list[V]:
    """The facts about the results of a program (a `ClosedJaxpr`).

    Args:
        program: the program.
        known: the facts about its inputs.
        lattice: the kinds of facts, and what an equation makes of them.
    """
    return _read(known_of_all(program, known, lattice), program.jaxpr.outvars, lattice)


def known_of_all(program: Any, known: Sequence[V], lattice: Lattice[V]) -> dict[Any, V]:
    """The fact about each variable of a program; the arguments are those of `follow`."""
    jaxpr = program.jaxpr
    numbers = map(lattice.number, program.consts)
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*numbers, *known], strict=True))
    for eqn in jaxpr.eqns:
        operands = _read(env, eqn.invars, lattice)
        enter = _ENTER.get(eqn.primitive.name)
        if enter is None or not lattice.enters(eqn):
            results = lattice.results(eqn, operands)
        else:
            results = enter(eqn, operands, lattice)
        env.update(zip(eqn.outvars, results, strict=True))
    return env


def _read(env: dict[Any, V], operands: Sequence[Any], lattice: Lattice[V]) -> list[V]:
    return [lattice.number(v.val) if isinstance(v, Literal) else env[v] for v in operands]


def _call(eqn: Any, known: list[V], lattice: Lattice[V]) -> list[V]:
    return follow(called(eqn), known, lattice)


def _pass(eqn: Any, known: list[V], lattice: Lattice[V]) -> list[V]:
    return known


def _cond(eqn: Any, known: list[V], lattice: Lattice[V]) -> list[V]:
    def either(a: list[V], b: list[V]) -> list[V]:
        return _joined(a, b, eqn.outvars, lattice)

    branches = [follow(branch, known[1:], lattice) for branch in eqn.params["branches"]]
    return lattice.chosen(known[0], functools.reduce(either, branches), "a choice")


def _while(eqn: Any, known: list[V], lattice: Lattice[V]) -> list[V]:
    n, m = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]

    def turn(carry: list[V]) -> list[V]:
        (by,) = follow(eqn.params["cond_jaxpr"], [*known[:n], *carry], lattice)
        after = follow(eqn.params["body_jaxpr"], [*known[n : n + m], *carry], lattice)
        return lattice.chosen(by, after, "the condition of a loop")

    return _settled(turn, known[n + m :], eqn.outvars, lattice)


def _scan(eqn: Any, known: list[V], lattice: Lattice[V]) -> list[V]:
    n, m = scan_sizes(eqn)
    taken = list(map(lattice.taken, known[n + m :]))

    def turn(carry: list[V]) -> list[V]:
        return follow(eqn.params["jaxpr"], [*known[:n], *carry, *taken], lattice)

    after = _settled(turn, known[n : n + m], eqn.outvars, lattice)
    return [*after[:m], *map(lattice.stacked, after[m:])]


def _settled(
    turn: Callable[[list[V]], list[V]], carry: list[V], outvars: Any, lattice: Lattice[V]
) -> list[V]:
    """The facts after any number of turns of a loop: about its carries, and about other results."""
    count = len(carry)
    while True:
        after = turn(carry)
        joined = _joined(carry, after[:count], outvars[:count], lattice)
        if joined == carry:
            return carry + after[count:]
        carry = joined


def _joined(a: list[V], b: list[V], outvars: Any, lattice: Lattice[V]) -> list[V]:
    return [lattice.join(x, y, v.aval.shape) for x, y, v in zip(a, b, outvars, strict=True)]


_CALLS = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call")
_ENTER: dict[str, Callable[[Any, list[Any], Lattice[Any]], list[Any]]] = {
    **dict.fromkeys((*_CALLS, "checkpoint", "remat2", "shard_map"), _call),
    **dict.fromkeys(("optimization_barrier", "device_put"), _pass),
    "cond": _cond,
    "while": _while,
    "scan": _scan,
}
