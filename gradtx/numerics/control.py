"""Conditionals and loops: XLA's in a compiled step, Python's outside of one.

Outside, XLA's would be recompiled at each call, since their branches are new functions each time,
and JAX would cache every program.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from gradtx.numerics.precision import cast
from gradtx.programs.tracing import as_function, is_tracer
from gradtx.types import Array, PyTree

_T = TypeVar("_T")


def branch(condition: Any, yes: Callable[..., _T], no: Callable[..., _T], *operands: Any) -> _T:
    """``yes(*operands)`` if `condition` holds, otherwise ``no(*operands)``; the results are alike.

    >>> branch(True, lambda x: x + 1, lambda x: x, 1)
    2
    """
    if is_tracer(condition):
        chosen: _T = jax.lax.cond(condition, yes, no, *operands)
        return chosen
    return (yes if condition else no)(*operands)


def repeat_while(going: Callable[[_T], Any], body: Callable[[_T], _T], now: _T) -> _T:
    """``now = body(now)`` as long as ``going(now)``.

    >>> repeat_while(lambda n: n < 5, lambda n: 2 * n, 1)
    8
    """
    while not is_tracer(more := going(now)):
        if not more:
            return now
        now = body(now)
    last: _T = jax.lax.while_loop(going, body, now)
    return last


def repeat(times: int, body: Callable[[Any, _T], _T], now: _T) -> _T:
    """``now = body(i, now)`` for `i` from 0 to `times` - 1.

    >>> repeat(3, lambda i, n: n + i, 0)
    3
    """
    if any(map(is_tracer, jax.tree.leaves(now))):
        last: _T = jax.lax.fori_loop(0, times, body, now)
        return last
    for i in range(times):
        now = body(i, now)
    return now


def fold(body: Callable[[_T, Any], _T], now: _T, xs: Any) -> _T:
    """``now = body(now, x)`` for each entry `x` of the array `xs` along its first axis.

    >>> float(fold(lambda n, x: n + x, jax.numpy.zeros([]), jax.numpy.arange(3.0)))
    3.0
    """
    if any(map(is_tracer, jax.tree.leaves(now))):
        last: _T = jax.lax.scan(lambda n, x: (body(n, x), None), now, xs)[0]
        return last
    for x in xs:
        now = body(now, x)
    return now


def in_form_of(new: PyTree, old: PyTree) -> PyTree:
    """`new` in the types and the classes of `old`: the branches of a conditional must agree.

    The classes are others where `old` is a state of Optax's, which has the same paths.

    >>> in_form_of(jnp.float32(2), jnp.int32(1)).dtype, in_form_of((1, 2), [3, 4])
    (dtype('int32'), [1, 2])
    """
    form: Any = jax.tree.structure(old)
    if jax.tree.structure(new) != form and _paths(new) == _paths(old):
        new = form.unflatten(jax.tree.leaves(new))
    return jax.tree.map(lambda n, o: cast(n, o.dtype) if hasattr(n, "dtype") else n, new, old)


def _paths(tree: PyTree) -> list[Any]:
    return [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


def in_types_of(new: PyTree, old: PyTree) -> PyTree:
    """`new` in the types of `old`, leaf by leaf: `old` may be a state of Optax's.

    >>> in_types_of((jnp.float32(2),), [jnp.int32(1)])
    (Array(2, dtype=int32),)
    """
    leaves, treedef = jax.tree.flatten(new)
    form: Any = treedef
    pairs = zip(leaves, jax.tree.leaves(old), strict=True)
    return form.unflatten([n.astype(jnp.result_type(o)) for n, o in pairs])


def _strong(x: Any) -> Array:
    x = x if hasattr(x, "dtype") else jnp.asarray(x)
    return cast(x, x.dtype)


def loop_once_if(
    condition: Array, run: Callable[[_T, Array], _T], now: _T, *, anyway: bool = False
) -> _T:
    """``run(now, turn)`` if `condition` holds, otherwise `now`, in the memory of `now`.

    It is a loop of one iteration or none; outside of ``jit`` an ``if``. XLA gives the results of a
    ``lax.cond`` separate memory, and on a GPU turns it into a selection between results that are
    both computed. A loop has no reverse-mode derivative, so derivatives are those of a
    ``lax.cond``.

    Args:
        condition: a boolean.
        run: returns a tree like `now`. Pass arrays that XLA should not compute before the loop, and
            store, through :func:`inside`.
        now: a tree of arrays.
        anyway: whether chips other than a CPU compute both, without a loop, and select: for results
            that they then fuse with their readers, and that are seldom left out.
    """
    now = jax.tree.map(_strong, now)

    def body(now: _T, turn: Array) -> _T:
        return in_form_of(run(now, turn), now)

    if not is_tracer(condition):
        return body(now, jnp.int32(0)) if condition else now

    # Arrays that `body` closes over, also of integers, are passed to the loop, for its derivative.
    # JAX keeps the functions below for longer than their trace, so they must hold no tracers. One
    # equation calls the trace, which is thus not made again for the loop and the selection.
    closed = jax.make_jaxpr(body)(now, jnp.int32(0))
    near = _in_memory_of(now, closed.out_avals)
    if near is not now:  # as of an offloaded state that was loaded onto the device
        return loop_once_if(condition, run, near, anyway=anyway)
    anyway = anyway and not closed.effects
    jaxpr, constants = closed.jaxpr, list(closed.consts)
    whole = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])
    step = as_function("body", whole)
    structure: Any = jax.tree.structure(now)

    def converted(now: _T, turn: Array, *constants: Array) -> _T:
        return structure.unflatten(step(*constants, *jax.tree.leaves(now), turn))

    def loop(condition: Array, now: _T, constants: list[Array]) -> _T:
        turns = condition.astype(jnp.int32)
        return jax.lax.fori_loop(0, turns, lambda i, x: converted(x, i, *constants), now)

    def select(condition: Array, now: _T, constants: list[Array]) -> _T:
        new = converted(now, jnp.int32(0), *constants)
        return jax.tree.map(lambda n, o: jax.lax.select_n(condition, o, n), new, now)

    @jax.custom_jvp
    def either(condition: Array, now: _T, constants: list[Array]) -> _T:
        if not anyway:
            return loop(condition, now, constants)
        everything = condition, now, constants
        # JAX would give each argument of the two functions a name, which takes as long as a loop.
        chosen: _T = jax.lax.platform_dependent(
            cpu=lambda: loop(*everything), default=lambda: select(*everything)
        )
        return chosen

    @either.defjvp
    def differentiate(primals: Any, tangents: Any) -> Any:
        def choose(condition: Array, now: _T, constants: list[Array]) -> _T:
            return jax.lax.cond(
                condition, lambda: converted(now, jnp.int32(0), *constants), lambda: now
            )

        return jax.jvp(choose, primals, tangents)

    return either(condition, now, constants)


def _in_memory_of(now: _T, results: list[Any]) -> _T:
    """`now` where the results of a loop lie, in which a loop has to start; itself if it does."""
    leaves, treedef = jax.tree.flatten(now)
    form: Any = treedef
    spaces = [
        (getattr(jax.typeof(x), "memory_space", None), getattr(result, "memory_space", None))
        for x, result in zip(leaves, results, strict=True)
    ]
    if all(here == there for here, there in spaces):
        return now
    moved = [
        x if here == there else jax.device_put(x, there)
        for x, (here, there) in zip(leaves, spaces, strict=True)
    ]
    near: _T = form.unflatten(moved)
    return near


def inside(tree: PyTree, turn: Array) -> PyTree:
    """`tree`, computed inside the loop of :func:`loop_once_if`, not before it."""
    return jax.lax.optimization_barrier((tree, turn))[0]
