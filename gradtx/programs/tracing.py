"""Tracing: whether an array is known, and rules that are traced once for leaves of a kind.

Binding the twenty operations of a rule for every leaf is most of the cost of tracing, and all of
them are then lowered too. A function that JAX knows to be the same is traced and lowered once, and
called; XLA inlines the calls before it plans anything, so that the compiled program is the same.
Where leaves are many, a call is for several, so that equations grow with the square root of the
number of leaves.
"""

import functools
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

from gradtx.programs.contexts import for_comparison

FEW_LEAVES = 4
"""Fewer leaves of a kind are traced one by one: a function to call is itself traced three times."""

FEW_EQUATIONS = 32
"""Up to so many equations are bound in less time than it takes to make a function of them."""


def is_shape(x: Any) -> bool:
    """Whether a leaf stands for an array, and has no values."""
    return isinstance(x, jax.ShapeDtypeStruct)


def is_tracer(x: Any) -> bool:
    """Whether `x` is a value that is not known yet."""
    return isinstance(x, jax.core.Tracer)


def is_staged(x: Any) -> bool:
    """Whether `x` is a value of a program that is being traced, and is not also vmapped."""
    return isinstance(x, partial_eval.DynamicJaxprTracer)


def varying_axes(kind: Any) -> frozenset[str]:
    """The axes of a ``shard_map`` along which an array of a type differs, as far as JAX knows."""
    for name in ("mat", "manual_axis_type"):  # since jax 0.10, of arrays and of their shapes
        manual = getattr(kind, name, None)
        if manual is not None:
            return frozenset(manual.varying)
    return frozenset(getattr(kind, "vma", ()) or ())


def tracked(axes: tuple[str, ...]) -> tuple[str, ...]:
    """The mesh axes, of those given, along which the current ``shard_map`` tracks differences."""

    def varies(axis: str) -> bool:
        try:
            return axis in varying_axes(jax.typeof(jax.lax.axis_index(axis)))
        except NameError:  # it is not bound
            return False

    return tuple(filter(varies, axes))


def vary(x: Any, axes: Iterable[str]) -> Any:
    """`x`, marked as varying along these axes for the ``shard_map`` that it is in."""
    axes = tuple(sorted(set(axes) - varying_axes(jax.typeof(x))))
    if not axes:
        return x
    lax: Any = jax.lax  # before jax 0.8.2 it has only pvary
    return lax.pcast(x, axes, to="varying") if hasattr(lax, "pcast") else lax.pvary(x, axes)


def traced_once(
    name: str, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """``[function(*arguments) for arguments in calls]``, traced once for each kind of arguments.

    Args:
        name: what the function is called in the program.
        function: from trees of arrays to a tree of arrays. It may close over arrays, which are the
            same for every call.
        calls: the arguments of each call. Those of one kind are alike in structure, shapes, types,
            and shardings as far as these are types.

    >>> def power(x):
    ...     return x * x * x * x * x * x
    >>> program = jax.make_jaxpr(lambda xs: traced_once("power", power, [(x,) for x in xs]))
    >>> [str(e.primitive) for e in program([jnp.ones(2)] * 10).eqns[-3:]]
    ['jit', 'jit', 'jit']
    """
    few = len(calls) < FEW_LEAVES or for_comparison.value
    if few or not any(map(is_tracer, jax.tree.leaves(calls[0]))):
        return [function(*arguments) for arguments in calls]
    flat = [jax.tree.flatten(arguments) for arguments in calls]
    members: dict[Hashable, list[int]] = {}
    for i, (leaves, structure) in enumerate(flat):
        members.setdefault((structure, tuple(map(jax.typeof, leaves))), []).append(i)
    results: list[Any] = [None] * len(calls)
    for first, *others in members.values():
        # The first is traced in place, and what all leaves share, such as a bias correction, is
        # computed there, outside of the function.
        results[first] = function(*calls[first])
        if len(others) + 1 < FEW_LEAVES:
            trees = [function(*calls[i]) for i in others]
        else:
            trees = _called(name, function, calls[first], [flat[i][0] for i in others])
        for i, result in zip(others, trees, strict=True):
            results[i] = result
    return results


def _called(
    name: str, function: Callable[..., Any], example: tuple[Any, ...], calls: list[list[Any]]
) -> list[Any]:
    """The results of `function` for the leaves of arguments, all of them like `example`."""
    closed, out = jax.make_jaxpr(function, return_shape=True)(*example)
    structure: Any = jax.tree.structure(out)
    # Arrays that it closes over become arguments: JAX would keep tracers in its cache.
    jaxpr, shared = closed.jaxpr, closed.consts
    run = _run(jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars]))
    width = len(calls[0])
    results: list[Any] = []
    if len(calls) * len(jaxpr.eqns) > FEW_EQUATIONS:
        # A call is an equation too: with this size there are as many in the function as calls of
        # it. Calls within it would be fewer in all, but XLA inlines nested calls more slowly.
        size = max(1, math.isqrt(len(calls) // len(jaxpr.eqns)))

        def body(*arrays: Any) -> Any:
            common, call_leaves = arrays[: len(shared)], arrays[len(shared) :]
            return [x for leaves in _parts(call_leaves, width) for x in run(*common, *leaves)]

        body.__name__ = name
        group = _bound(jax.make_jaxpr(jax.jit(body))(*shared, *calls[0] * size).jaxpr)
        for some in _parts(calls[: len(calls) // size * size], size):
            outputs = group(*shared, *itertools.chain.from_iterable(some))
            results += _parts(outputs, structure.num_leaves)
    results += [run(*shared, *leaves) for leaves in calls[len(results) :]]
    return list(map(structure.unflatten, results))


def _parts(items: Sequence[Any], size: int) -> list[Any]:
    return [items[i : i + size] for i in range(0, len(items), size)]


def _run(jaxpr: Any) -> Callable[..., list[Any]]:
    from jax.extend.core import ClosedJaxpr, jaxpr_as_fun  # takes as long to import as gradtx

    return jaxpr_as_fun(ClosedJaxpr(jaxpr, []))


def _bound(jaxpr: Any) -> Callable[..., list[Any]]:
    """A program of one equation; binding it again takes less time than calling `jax.jit`."""
    (eqn,) = jaxpr.eqns
    # What a function returns as it was given is no result of the equation.
    if (eqn.invars, eqn.outvars) != (jaxpr.invars, jaxpr.outvars):
        return _run(jaxpr)
    return functools.partial(eqn.primitive.bind, **eqn.params)


def where_known(function: Callable[[Any], Any], tree: Any) -> Any:
    """``function(tree)`` where some leaves are only shapes, as then are results that need values.

    >>> shape = jax.ShapeDtypeStruct((2,), jnp.float32)
    >>> where_known(lambda x: (jnp.zeros_like(x), 2 * x), shape)
    (Array([0., 0.], dtype=float32), ShapeDtypeStruct(shape=(2,), dtype=float32))
    """
    from gradtx.programs.interpreter import interpret  # takes as long to import as gradtx

    structure: Any
    of_result: Any
    leaves, structure = jax.tree.flatten(tree)
    shapes = [x for x in leaves if is_shape(x)]

    def of_shapes(*values: Any) -> Any:
        arrays = iter(values)
        return function(structure.unflatten([next(arrays) if is_shape(x) else x for x in leaves]))

    unknown = object()

    def compute(eqn: Any, inputs: list[Any]) -> list[Any] | None:
        return [unknown] * len(eqn.outvars) if any(x is unknown for x in inputs) else None

    closed, out = jax.make_jaxpr(of_shapes, return_shape=True)(*shapes)
    outputs = interpret(closed, [unknown] * len(shapes), compute)
    results, of_result = jax.tree.flatten(out)
    pairs = zip(results, outputs, strict=True)
    return of_result.unflatten(
        [shape if x is unknown else jnp.asarray(x, shape.dtype) for shape, x in pairs]
    )
