"""Results that have no derivative, or one in forward mode alone."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import ClosedJaxpr
from jax.interpreters import ad

from gradtx.programs.dataflow import Lattice, follow
from gradtx.programs.opaque import opaque

_T = TypeVar("_T")


def _refuse(_: Any, *args: Any, why: str) -> Any:
    raise TypeError(why)


# A tangent that cannot be transposed, as reverse mode would do.
_forward_p = opaque("forward_only", lambda x, why: [x])
ad.primitive_transposes[_forward_p] = _refuse


def without_derivative(tree: _T, why: str) -> _T:
    """`tree`; a derivative of it raises TypeError with the reason.

    Arrays that do not depend on the variable of the derivative pass.

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
    """`tree`; a derivative of it in reverse mode raises TypeError with the reason.

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
    """Whether a loop of unknown length, which has no derivative in reverse mode, is differentiated.

    Loops do not count where no derivative reaches them, as after a `stop_gradient`, nor within a
    function with a custom derivative.

    >>> def looped(x):
    ...     return jax.lax.while_loop(lambda x: x < 5, lambda x: 2 * x, x)
    >>> has_while(looped, 1.0), has_while(lambda x: x + looped(jax.lax.stop_gradient(x)), 1.0)
    (True, False)
    """
    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    inputs = [*jaxpr.constvars, *jaxpr.invars]  # arrays that it closes over may be reached too
    closed = ClosedJaxpr(jaxpr.replace(constvars=[], invars=inputs), [])
    loops = _WhileLoops()
    follow(closed, list(map(is_inexact, inputs)), loops)
    return loops.are_reached


def is_inexact(v: Any) -> bool:
    """Whether a variable of a program has a derivative."""
    return bool(jnp.issubdtype(v.aval.dtype, jnp.inexact))


class Active(Lattice[bool]):
    """Whether a derivative reaches an array; a function with its own derivative is an equation."""

    def number(self, x: Any) -> bool:
        return False

    def join(self, a: bool, b: bool, shape: Any) -> bool:
        return a or b

    def enters(self, eqn: Any) -> bool:
        return not eqn.primitive.name.startswith("custom_")

    def results(self, eqn: Any, known: list[bool]) -> list[bool]:
        reached = any(known) and eqn.primitive.name != "stop_gradient"
        return [reached and is_inexact(v) for v in eqn.outvars]


class _WhileLoops(Active):
    """Whether a derivative reaches loops of unknown length too."""

    are_reached = False

    def enters(self, eqn: Any) -> bool:
        return eqn.primitive.name != "while" and super().enters(eqn)

    def results(self, eqn: Any, known: list[bool]) -> list[bool]:
        self.are_reached |= any(known) and eqn.primitive.name == "while"
        return super().results(eqn, known)


def _on_real(function: Callable[[list[Any]], list[Any]], tree: _T) -> _T:
    """`tree` with a function's result for the list of all its arrays that have derivatives."""
    leaves, treedef = jax.tree.flatten(tree)
    structure: Any = treedef
    real = [i for i, x in enumerate(leaves) if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]
    for i, x in zip(real, function([leaves[i] for i in real]), strict=True):
        leaves[i] = x
    result: _T = structure.unflatten(leaves)
    return result
