"""Operations: those of the products of matrices in a program, and of stacks that are divided."""

import math
from typing import Any

from gradtx.engine.owners import Stack
from gradtx.training.lookup import inner_jaxprs


def operations(program: Any) -> int:
    """The multiplications and additions in products of matrices, in all iterations of loops.

    Args:
        program: what `jax.make_jaxpr` returns. A loop of unknown length counts once, and all
            branches of a conditional count.

    >>> import jax, jax.numpy as jnp
    >>> operations(jax.make_jaxpr(jnp.matmul)(jnp.zeros((2, 3)), jnp.zeros((3, 4))))
    48
    """
    jaxpr = getattr(program, "jaxpr", program)
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            summed = math.prod(equation.invars[0].aval.shape[i] for i in contracted)
            total += 2 * summed * math.prod(equation.outvars[0].aval.shape)
        turns = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        total += turns * sum(map(operations, inner_jaxprs(equation)))
    return total


def owners_line(stack: Stack) -> str:
    """What happens to a stack of matrices, and what one device has of it."""
    there, back = stack.bytes
    return (
        f"{stack.count} matrices {stack.shape}: {stack.each} whole on each of {stack.devices} "
        f"devices; {sum(stack.arrays)} collectives, {there:,} bytes there and {back:,} back; "
        f"{operations(stack.program):,} operations in products"
    )
