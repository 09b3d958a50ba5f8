"""Results that have no derivative, or one in forward mode alone."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad

from gradtx.numerics.opaque import opaque
from gradtx.numerics.programs import inner_jaxprs

_T = TypeVar("_T")


def _refuse(_: Any, *args: Any, why: str) -> Any:
    raise TypeError(why)


# A tangent that cannot be transposed, which is what reverse mode does with it.
_forward_p = opaque("forward_only", lambda x, why: [x])
ad.primitive_transposes[_forward_p] = _refuse


def without_derivative(tree: _T, why: str) -> _T:
    """`tree`, of which a derivative raises TypeError with the reason.

    What does not depend on the variable of the derivative passes.

    >>> f = lambda x: without_derivative(3.0 * x, "f: no derivative")
    >>> float(f(2.0)), float(jax.grad(lambda x: x + f(jax.lax.stop_gradient(x)))(2.0))
    (6.0, 1.0)
    >>> try:
    ...     jax.grad(f)(2.0)
    ... except TypeError as error:
    ...     print(error)
    f: no derivative
    """

    @jax.custom_jvp
    def same(arrays: list[Any]) -> list[Any]:
        return arrays

    def refuse(primals: Any, tangents: Any) -> Any:
        if not all(isinstance(t, SymbolicZero) for t in tangents[0]):
            raise TypeError(why)
        return primals[0], tangents[0]

    same.defjvp(refuse, symbolic_zeros=True)
    return _on_real(same, tree)


def forward_only(tree: _T, why: str) -> _T:
    """`tree`, of which a derivative in reverse mode raises TypeError with the reason.

    >>> f = lambda x: forward_only(3.0 * x, "f: only forward")
    >>> float(jax.jvp(f, (2.0,), (1.0,))[1])
    3.0
    >>> try:
    ...     jax.grad(f)(2.0)
    ... except TypeError as error:
    ...     print(error)
    f: only forward
    """

    @jax.custom_jvp
    def same(arrays: list[Any]) -> list[Any]:
        return arrays

    @same.defjvp
    def differentiate(primals: Any, tangents: Any) -> Any:
        return primals[0], [_forward_p.bind(t, why=why)[0] for t in tangents[0]]

    return _on_real(same, tree)


def has_while(function: Callable[..., Any], *args: Any) -> bool:
    """Whether a function has a loop of unknown length, which has no derivative in reverse mode.

    A loop within a function that says its derivative itself does not count.

    >>> has_while(lambda n: jax.lax.while_loop(lambda n: n < 5, lambda n: 2 * n, n), 1)
    True
    """

    def equations(program: Any) -> Iterator[Any]:
        for eqn in program.eqns:
            yield eqn
            if not eqn.primitive.name.startswith("custom_"):
                for inner in inner_jaxprs(eqn):
                    yield from equations(inner)

    program = jax.make_jaxpr(function)(*args).jaxpr
    return any(eqn.primitive.name == "while" for eqn in equations(program))


def _on_real(function: Callable[[list[Any]], list[Any]], tree: _T) -> _T:
    """`tree` with a function's result for the list of all its arrays that have derivatives."""
    leaves, treedef = jax.tree.flatten(tree)
    structure: Any = treedef
    real = [i for i, x in enumerate(leaves) if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]
    for i, x in zip(real, function([leaves[i] for i in real]), strict=True):
        leaves[i] = x
    result: _T = structure.unflatten(leaves)
    return result
