"""A rule is traced once for each kind of leaf, and used again for all the others.

Binding the twenty operations of a rule for every leaf is most of what tracing costs, and all are
lowered again. A function that JAX knows to be the same is traced and lowered once, and called; XLA
replaces the calls by what they do before it plans anything, so that the compiled program is the
same.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from gradtx.numerics.steering import is_tracer

FEW_LEAVES = 4
"""Fewer leaves of a kind are traced one by one: a function to call is itself traced three times."""

FEW_OPERATIONS = 1
"""This few operations are bound in less time than a call."""


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

    >>> import jax.numpy as jnp
    >>> def power(x):
    ...     return x * x * x * x * x * x
    >>> program = jax.make_jaxpr(lambda xs: traced_once("power", power, [(x,) for x in xs]))
    >>> [str(e.primitive) for e in program([jnp.ones(2)] * 4).eqns[-3:]]
    ['jit', 'jit', 'jit']
    """
    if len(calls) < FEW_LEAVES or not any(map(is_tracer, jax.tree.leaves(calls[0]))):
        return [function(*arguments) for arguments in calls]
    flat = [jax.tree.flatten(arguments) for arguments in calls]
    kinds = [(structure, tuple(map(jax.typeof, leaves))) for leaves, structure in flat]
    left = Counter(kinds)
    shared: dict[Hashable, Callable[..., Any] | None] = {}
    results = []
    for arguments, (leaves, _), kind in zip(calls, flat, kinds, strict=True):
        if left[kind] >= FEW_LEAVES and kind not in shared:
            # The first is traced in place, and what all leaves share, such as a bias correction,
            # is computed there, outside of the function.
            shared[kind] = None
            results.append(function(*arguments))
            shared[kind] = _callable(name, function, arguments)
        elif (call := shared.get(kind)) is not None:
            results.append(call(*leaves))
        else:
            results.append(function(*arguments))
    return results


def _callable(
    name: str, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> Callable[..., Any]:
    """`function` for the leaves of such arguments: its operations if they are few, or one call."""
    from jax.extend.core import ClosedJaxpr, jaxpr_as_fun  # takes as long to import as gradtx

    closed, out = jax.make_jaxpr(function, return_shape=True)(*arguments)
    # Arrays that it closes over become arguments: JAX would keep tracers in its cache.
    jaxpr: Any = closed.jaxpr
    invars = [*jaxpr.constvars, *jaxpr.invars]
    run = jaxpr_as_fun(ClosedJaxpr(jaxpr.replace(constvars=[], invars=invars), []))
    if len(jaxpr.eqns) > FEW_OPERATIONS:

        def body(*arrays: Any) -> Any:
            return called(*arrays)

        called, body.__name__ = run, name
        # One equation, which takes less time to bind again than a function of jax.jit to call.
        run = jaxpr_as_fun(
            jax.make_jaxpr(jax.jit(body))(*closed.consts, *jax.tree.leaves(arguments))
        )
    structure: Any = jax.tree.structure(out)
    return lambda *leaves: structure.unflatten(run(*closed.consts, *leaves))


def run_equation(jaxpr: Any, eqn: Any, inputs: Sequence[Any]) -> list[Any]:
    """The results of one equation of a jaxpr, whatever it is."""
    from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

    variables = [v for v in eqn.invars if not isinstance(v, Literal)]
    given = [x for v, x in zip(eqn.invars, inputs, strict=True) if not isinstance(v, Literal)]
    alone = jaxpr.replace(
        constvars=[], invars=variables, outvars=eqn.outvars, eqns=[eqn], effects=eqn.effects
    )
    return list(jaxpr_as_fun(ClosedJaxpr(alone, []))(*given))
