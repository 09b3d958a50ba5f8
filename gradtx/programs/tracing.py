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
from typing import Any, TypeVar, cast as typed

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

from gradtx.programs.contexts import for_comparison

_F = TypeVar("_F", bound=Callable[..., Any])

FEW_LEAVES = 4
"""Fewer leaves of the first kind of a rank are traced one by one, as its function is traced too."""

FEW_EQUATIONS = 32
"""Up to so many equations are bound in less time than it takes to make a function of them, unless
there are programs in them, such as those for a kind of chip."""


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


def vary(tree: Any, axes: Iterable[str]) -> Any:
    """The leaves of `tree`, marked as varying along these axes of the ``shard_map`` they are in."""
    lax: Any = jax.lax  # before jax 0.8.2 it has only pvary

    def of(x: Any) -> Any:
        new = tuple(sorted(set(axes) - varying_axes(jax.typeof(x))))
        if not new:
            return x
        return lax.pcast(x, new, to="varying") if hasattr(lax, "pcast") else lax.pvary(x, new)

    return jax.tree.map(of, tree)


def as_call(function: _F) -> _F:
    """`function` as one call in a program that is being traced: it is traced and lowered once.

    For the mathematics of a few numbers that many leaves share, which must not branch on them.
    Outside of a trace, and where formulas are compared, it runs as it is. XLA inlines the calls.
    """
    jitted = jax.jit(function)

    @functools.wraps(function)
    def run(*arguments: Any) -> Any:
        traced = any(map(is_tracer, jax.tree.leaves(arguments)))
        return (jitted if traced and not for_comparison.value else function)(*arguments)

    return typed(_F, run)


def traced_once(
    name: str,
    function: Callable[..., Any],
    calls: Sequence[tuple[Any, ...]],
    by_itself: Callable[[int], Callable[..., Any]] | None = None,
) -> list[Any]:
    """``[function(*arguments) for arguments in calls]``, traced once for each kind of arguments.

    Args:
        name: what the function is called in the program.
        function: from trees of arrays to a tree of arrays. It may close over arrays, which are the
            same for every call.
        calls: the arguments of each call. Those of one kind are alike in structure, shapes, types,
            and shardings as far as these are types.
        by_itself: by the index of a call, `function` for a trace of its own, if that is another: it
            forgets at its end the arrays that it has computed and would use again, since these
            belong to the trace. None if it remembers none.

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
    members: dict[tuple[Any, tuple[Any, ...]], list[int]] = {}
    for i, (leaves, structure) in enumerate(flat):
        members.setdefault((structure, tuple(map(jax.typeof, leaves))), []).append(i)
    results: list[Any] = [None] * len(calls)
    ranks: set[Hashable] = set()
    equation = functools.cache(_equation_of_a_call)
    for kind, alike in members.items():
        structure, types = kind
        rank = structure, tuple((x.ndim, x.dtype) for x in types)
        # The first leaf of a rank is traced in place, and what all leaves share, such as a bias
        # correction, is computed there, outside of the functions.
        is_new = rank not in ranks
        ranks.add(rank)
        if len(alike) < (FEW_LEAVES if is_new else 2):
            in_place, called = alike, []
        else:
            in_place, called = alike[:is_new], alike[is_new:]
        for i in in_place:
            results[i] = function(*calls[i])
        if called:
            example = called[0]
            alone = function if by_itself is None else by_itself(example)
            trees = _called(name, alone, calls[example], [flat[i][0] for i in called], equation)
            for i, tree in zip(called, trees, strict=True):
                results[i] = tree
    return results


def _called(
    name: str,
    function: Callable[..., Any],
    example: tuple[Any, ...],
    calls: list[list[Any]],
    equation: Callable[[], Any],
) -> list[Any]:
    """The results of `function` for the leaves of arguments, all of them like `example`."""
    from gradtx.programs.interpreter import inner_jaxprs  # takes as long to import as gradtx

    closed, out = jax.make_jaxpr(function, return_shape=True)(*example)
    structure: Any = jax.tree.structure(out)
    # Arrays that it closes over become arguments: JAX would keep tracers in its cache.
    jaxpr, shared = closed.jaxpr, closed.consts
    jaxpr = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])
    run = _run(jaxpr)
    results: list[Any] = []
    nested = any(True for eqn in jaxpr.eqns for _ in inner_jaxprs(eqn))
    if len(calls) * len(jaxpr.eqns) > FEW_EQUATIONS or nested:
        # A call is an equation too: with this size there are as many in the function as calls of
        # it. Calls within it would be fewer in all, but XLA inlines nested calls more slowly.
        size = max(1, math.isqrt(len(calls) // len(jaxpr.eqns)))
        width = len(calls[0])

        def body(*arrays: Any) -> Any:
            common, call_leaves = arrays[: len(shared)], arrays[len(shared) :]
            return [x for leaves in _parts(call_leaves, width) for x in run(*common, *leaves)]

        if size > 1:
            jaxpr = jax.make_jaxpr(body)(*shared, *calls[0] * size).jaxpr
        group = as_function(name, jaxpr, equation)
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


def _equation_of_a_call() -> Any:
    """An equation that calls a function of one number, where a program is traced now."""
    number = jax.ShapeDtypeStruct((), jnp.float32)
    (eqn,) = jax.make_jaxpr(jax.jit(jax.lax.neg))(number).jaxpr.eqns
    return eqn


def as_function(
    name: str, jaxpr: Any, equation: Callable[[], Any] = _equation_of_a_call
) -> Callable[..., list[Any]]:
    """A program without constants as a function, whose calls are one equation each.

    It is the function of ``jax.jit``, but for tracing the program anew. Results that are arguments
    are none of the equation, which is left out if it then has no results and no effects.

    Args:
        name: what the function is called.
        jaxpr: the program.
        equation: gives an equation of ``jax.jit`` with one argument and one result.
    """
    from jax.extend.core import ClosedJaxpr  # takes as long to import as gradtx

    arguments = {id(v): i for i, v in enumerate(jaxpr.invars)}
    forwarded = [arguments.get(id(v)) for v in jaxpr.outvars]
    outvars = [v for v, i in zip(jaxpr.outvars, forwarded, strict=True) if i is None]
    if not outvars and not jaxpr.effects:
        return lambda *arrays: [arrays[i] for i in forwarded if i is not None]
    call = equation()
    if "jaxpr" not in call.params:  # under `jax.disable_jit`
        return _run(jaxpr)
    params = {
        key: value * len(outvars if key.startswith("out_") else jaxpr.invars)
        if isinstance(value, tuple)
        else value
        for key, value in call.params.items()
    }
    params |= {"name": name, "jaxpr": ClosedJaxpr(jaxpr.replace(outvars=outvars), [])}

    def run(*arrays: Any) -> list[Any]:
        results = iter(call.primitive.bind(*arrays, **params))
        return [next(results) if i is None else arrays[i] for i in forwarded]

    return run


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
