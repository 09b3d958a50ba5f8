"""Results that have no derivative."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

_T = TypeVar("_T")


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
    leaves, treedef = jax.tree.flatten(tree)
    structure: Any = treedef
    real = [i for i, x in enumerate(leaves) if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]
    for i, x in zip(real, same([leaves[i] for i in real]), strict=True):
        leaves[i] = x
    result: _T = structure.unflatten(leaves)
    return result
