"""Operations: those of the products of matrices in a program, and of stacks that are divided."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from gradtx.ownership.owners import Stack
from gradtx.programs.interpreter import equations


def operations(program: Any) -> int:
    """The multiplications and additions in products of matrices, in all iterations of loops.

    Args:
        program: the result of `jax.make_jaxpr`. A loop of unknown length counts once, and all
            branches of a conditional count.

    >>> import jax, jax.numpy as jnp
    >>> operations(jax.make_jaxpr(jnp.matmul)(jnp.zeros((2, 3)), jnp.zeros((3, 4))))
    48
    """
    total = 0
    for equation, turns in equations(getattr(program, "jaxpr", program)):
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            summed = math.prod(equation.invars[0].aval.shape[i] for i in contracted)
            total += turns * 2 * summed * math.prod(equation.outvars[0].aval.shape)
    return total


def _most(stacks: Sequence[Stack], of: Callable[[Stack], int]) -> dict[tuple[str, ...], int]:
    """The largest load of a device, for the stacks that are divided over the same axes."""
    loads: dict[tuple[str, ...], list[int]] = {}
    for stack in stacks:
        load = loads.setdefault(stack.axes, [0] * stack.devices)
        for device in stack.busy:
            load[device] += of(stack)
    return {axes: max(load) for axes, load in loads.items()}


def busiest(stacks: Sequence[Stack]) -> int:
    """The operations of the device that has most of them."""
    return sum(_most(stacks, lambda stack: operations(stack.program)).values())


def messages(stacks: Sequence[Stack]) -> list[tuple[tuple[str, ...], int, int]]:
    """The axes of each message that brings matrices to owners, and its bytes there and back.

    Stacks that go in one message are padded only by the difference between owners.
    """
    together = [stack for stack in stacks if stack.in_one_message]
    there = _most(together, lambda stack: stack.bytes[0])
    back = _most(together, lambda stack: stack.bytes[1])
    alone = [(stack.axes, *stack.bytes) for stack in stacks if not stack.in_one_message]
    return [*alone, *((axes, there[axes], back[axes]) for axes in there)]


def equal_share(stacks: Sequence[Stack]) -> float:
    """The operations of one device if all devices had equally many."""
    return sum(
        operations(stack.program) * stack.count / (stack.each * stack.devices) for stack in stacks
    )


def owners_lines(stacks: Sequence[Stack]) -> list[str]:
    """Lines of a report on each stack of matrices, its devices and messages, and the load."""
    lines = []
    for stack in stacks:
        products, (there, back) = operations(stack.program), stack.bytes
        sent = f"{sum(stack.arrays)} collectives, {there:,} bytes there and {back:,} back"
        if stack.in_one_message:
            sent = f"in the message below, {there:,} bytes there and {back:,} back"
        devices = f"{stack.devices} devices"
        if stack.first is not None:
            devices = f"{len(stack.busy)} of {devices}, from {stack.first} on"
        lines.append(
            f"{stack.count} matrices {stack.shape}: {stack.each} whole on each of {devices}; "
            f"{sent}; {products:,} operations in products"
        )
    together = [stack for stack in stacks if stack.in_one_message]
    for axes, there, back in messages(together):
        count = sum(stack.axes == axes for stack in together)
        lines.append(
            f"{count} shapes in one message: 2 collectives, {there:,} bytes there and {back:,} back"
        )
    if equal := equal_share(stacks):
        most = busiest(stacks)
        lines.append(f"the busiest device: {most:,} operations, {most / equal:.2f} of equal shares")
    return lines
