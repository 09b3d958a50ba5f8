"""A square root, such as that of a mean of squares, with a derivative at zero."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxlib.mlir.dialects import stablehlo

from gradtx.numerics.mathematics import divide
from gradtx.types import Array

# JAX's derivative is infinite at zero, and its product with the derivative of the squares, which is
# zero, is NaN. A function with a custom derivative would be traced anew for each leaf.
root_p = Primitive("root")


def root(x: Array) -> Array:
    """The square root, with the derivative 0 where `x` is 0, and not infinity.

    The compiled program is that of ``jnp.sqrt``, and so is the type for integers.

    >>> jax.grad(root)(0.0).tolist()
    0.0
    """
    if not jnp.issubdtype(jnp.result_type(x), jnp.inexact):
        x = jnp.asarray(x, float)
    y: Array = root_p.bind(x)
    return y


def root_plus(square: Array, eps: Any, x: Array) -> Array:
    """``root(square) + eps``, by which `x` is divided: infinite where the square alone is 0.

    There the quotient is 0, as it is where `eps` is 0 too. Where `x` is 0 as well, the derivative
    of the quotient is that of ``x / eps``.

    >>> x, eps = jnp.array([2.0, 0.0]), 0.5
    >>> jax.jacfwd(lambda x: x / root_plus(x**2, eps, x))(x).diagonal().tolist()
    [0.08..., 2.0]
    """
    below = root(square) + eps
    return jnp.where((square > 0) | ((x == 0) & (below > 0)), below, jnp.inf)


def _differentiated(primals: Any, tangents: Any) -> Any:
    y = root(*primals)
    (change,) = tangents
    return y, change if isinstance(change, ad.Zero) else divide(change, 2 * y)


_by_jax = mlir.lower_fun(jax.lax.sqrt, multiple_results=False)


def _lowered(ctx: Any, x: Any) -> Any:
    if ctx.avals_out[0].sharding.mesh.empty:
        return [stablehlo.sqrt(x)]
    return _by_jax(ctx, x)


root_p.def_impl(jax.lax.sqrt)
root_p.def_abstract_eval(lambda x: x)
ad.primitive_jvps[root_p] = _differentiated
batching.defvectorized(root_p)
mlir.register_lowering(root_p, _lowered)
