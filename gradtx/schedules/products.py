"""Schedules made of others: multiplied, stretched in time."""

from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from gradtx.checks import Count, Number, PositiveCount, check
from gradtx.declarations.declaration import Kept
from gradtx.declarations.declared_schedule import schedule
from gradtx.declarations.host_values import as_schedule
from gradtx.schedules.counting import LAST
from gradtx.types import Schedule


def _factors(where: str, factors: tuple[Any, ...]) -> tuple[Any, ...]:
    for factor in factors:
        check(where, "a factor", factor, Number)
    return tuple(map(as_schedule, factors))


@schedule
def multiply_schedules(*factors: Annotated[Any, Kept(_factors)]) -> Schedule:
    """The product of schedules and numbers.

    Args:
        factors: schedules, numbers, arrays or functions without arguments.

    PyTorch's ChainedScheduler, where each scheduler multiplies the learning rate.

    Raises:
        TypeError: a factor is none of these.

    >>> import gradtx
    >>> warm = gradtx.linear_schedule(0.0, 1.0, 10)
    >>> round(float(multiply_schedules(0.1, warm, gradtx.exponential_decay(1.0, 5, 0.5))(5)), 6)
    0.025
    """

    def value(count: Any) -> Any:
        product: Any = 1.0
        for factor in factors:
            product = product * (factor(count) if callable(factor) else factor)
        return product

    return value


@schedule
def multiplicative_schedule(init_value: Number, factor: Schedule) -> Schedule:
    r"""A value multiplied by a factor at each step: :math:`a \prod_{i=1}^{t} f(i)`.

    Args:
        init_value: `a`.
        factor: `f`, a schedule.

    PyTorch's MultiplicativeLR. The product is taken from the start at every step, since a schedule
    keeps nothing: its time grows with the number of steps. Prefer a closed form where there is one.

    >>> float(multiplicative_schedule(1.0, lambda t: 0.5)(3))
    0.125
    """

    def value(count: Any) -> Any:
        start = jnp.asarray(init_value, jnp.result_type(float))
        turns = jnp.asarray(count).astype(int)
        return jax.lax.fori_loop(0, turns, lambda i, x: (x * factor(i + 1)).astype(x.dtype), start)

    return value


@schedule
def stretch_schedule(
    inner: Schedule, every: PositiveCount = 1, stride: PositiveCount = 1, offset: Count = 0
) -> Callable[[Any], Any]:
    r"""A schedule on another clock: :math:`s(k \lfloor t / n \rfloor + t_0)`.

    Args:
        inner: `s`.
        every: `n`, at least 1: this many steps count as one. ``every=steps_per_epoch`` turns a
            schedule over epochs, as used in PyTorch, into one over steps.
        stride: `k`, at least 1: each of those counts as this many. ``stride=N`` is the clock of
            Keras, which counts micro-batches when gradients of `N` are accumulated.
        offset: :math:`t_0 \ge 0`.

    The inner clock stops at the last step that a counter holds, :math:`2^{31} - 1`.

    >>> import gradtx
    >>> by_epoch = gradtx.piecewise_constant_schedule(1.0, {2: 0.1})
    >>> schedule = stretch_schedule(by_epoch, every=100)
    >>> round(float(schedule(199)), 6), round(float(schedule(200)), 6)
    (1.0, 0.1)
    """

    def value(count: Any) -> Any:
        # No further than the last step that a counter holds.
        turns = jnp.minimum(count // every, (LAST - offset) // stride)
        return inner(offset + stride * turns)

    return value
