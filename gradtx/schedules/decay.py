"""Schedules of one piece: constant, polynomial, exponential, cosine."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from gradtx.checks import Count, NonNegative, Number, Positive
from gradtx.declared_schedule import schedule


@schedule
def constant_schedule(value: Number) -> Callable[[Any], Any]:
    """The same value at every step.

    Args:
        value: the value.

    >>> constant_schedule(0.1)(7)
    0.1
    """
    return lambda count: value


@schedule
def polynomial_schedule(
    init_value: Number,
    end_value: Number,
    power: NonNegative,
    transition_steps: Count,
    transition_begin: Count = 0,
    *,
    cycle: bool = False,
) -> Callable[[Any], Any]:
    r"""From one value to another along a polynomial.

    .. math:: (a - b) (1 - c / n)^p + b, \qquad c = \mathrm{clip}(t - t_0, 0, n)

    Args:
        init_value: :math:`a`.
        end_value: :math:`b`.
        power: :math:`p \ge 0`.
        transition_steps: :math:`n \ge 0`; with 0 the value stays `init_value`.
        transition_begin: :math:`t_0 \ge 0`, the steps before it begins.
        cycle: when the end is reached go up again and down over twice, three times, ... the steps:
            `n` is replaced by its least multiple that :math:`t - t_0` does not exceed (Keras).

    >>> float(polynomial_schedule(1.0, 0.0, 2, 10)(5))
    0.25
    """

    def value(count: Any) -> Any:
        if transition_steps == 0:
            return init_value
        if cycle:
            since = jnp.maximum(count - transition_begin, 0)
            done = since / (transition_steps * jnp.maximum(jnp.ceil(since / transition_steps), 1))
        else:
            done = jnp.clip(count - transition_begin, 0, transition_steps) / transition_steps
        return (init_value - end_value) * (1 - done) ** power + end_value

    return value


@schedule
def linear_schedule(
    init_value: Number, end_value: Number, transition_steps: Count, transition_begin: Count = 0
) -> Callable[[Any], Any]:
    """From one value to another along a line: :func:`polynomial_schedule` of power 1.

    Args:
        init_value: the value at the start.
        end_value: the value from ``transition_begin + transition_steps`` on.
        transition_steps: at least 0; with 0 the value stays `init_value`.
        transition_begin: the steps before it begins, at least 0.

    >>> float(linear_schedule(1.0, 0.0, 10)(5))
    0.5
    """
    return polynomial_schedule(init_value, end_value, 1, transition_steps, transition_begin)


@schedule
def exponential_decay(
    init_value: Number,
    transition_steps: Count,
    decay_rate: NonNegative,
    transition_begin: Count = 0,
    staircase: bool = False,
    end_value: Number | None = None,
) -> Callable[[Any], Any]:
    r"""A value times a rate to the power of the time: :math:`a\, r^{(t - t_0) / n}`.

    Args:
        init_value: :math:`a`.
        transition_steps: :math:`n \ge 0`; with 0 the value stays `init_value`.
        decay_rate: :math:`r \ge 0`; with 0 the value stays `init_value`.
        transition_begin: :math:`t_0 \ge 0`, the steps before it begins.
        staircase: round the exponent down.
        end_value: a bound: from below if :math:`r < 1`, else from above.

    >>> float(exponential_decay(1.0, 10, 0.5)(20))
    0.25
    """
    bound = jnp.maximum if not _at_least_one(decay_rate) else jnp.minimum

    def value(count: Any) -> Any:
        if transition_steps == 0 or _is_zero(decay_rate):
            return init_value
        since = count - transition_begin
        exponent = since / transition_steps
        if staircase:
            exponent = jnp.floor(exponent)
        decayed = jnp.where(since <= 0, init_value, init_value * decay_rate**exponent)
        return decayed if end_value is None else bound(decayed, end_value)

    return value


def _is_zero(x: Any) -> bool:
    return isinstance(x, int | float) and x == 0


def _at_least_one(x: Any) -> bool:
    return isinstance(x, int | float) and x >= 1


@schedule
def cosine_decay_schedule(
    init_value: Number,
    decay_steps: Positive,
    alpha: Number = 0.0,
    exponent: NonNegative = 1.0,
    *,
    periodic: bool = False,
) -> Callable[[Any], Any]:
    r"""Half a cosine from a value down to a part of it.

    .. math:: a \left((1 - \alpha) \left(\tfrac12 (1 + \cos(\pi \min(t, n) / n))\right)^p
        + \alpha\right)

    Args:
        init_value: :math:`a`.
        decay_steps: :math:`n > 0`.
        alpha: :math:`\alpha`, the part of `init_value` that is left.
        exponent: :math:`p \ge 0`.
        periodic: go up again after `n` steps, as PyTorch's CosineAnnealingLR does.

    Source: I. Loshchilov and F. Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, 2017,
    arXiv:1608.03983, equation 5.

    >>> schedule = cosine_decay_schedule(1.0, 10)
    >>> float(schedule(0)), round(float(schedule(5)), 6), float(schedule(10))
    (1.0, 0.5, 0.0)
    """

    def value(count: Any) -> Any:
        done = count / decay_steps if periodic else jnp.minimum(count / decay_steps, 1.0)
        wave = 0.5 * (1 + jnp.cos(jnp.pi * done))
        return init_value * ((1 - alpha) * wave**exponent + alpha)

    return value


@schedule
def inverse_time_decay(
    init_value: Number,
    transition_steps: Positive,
    decay_rate: NonNegative,
    staircase: bool = False,
) -> Callable[[Any], Any]:
    r"""A value divided by one plus a multiple of the time: :math:`a / (1 + r\, t / n)`.

    Args:
        init_value: :math:`a`.
        transition_steps: :math:`n > 0`.
        decay_rate: :math:`r \ge 0`.
        staircase: round :math:`t / n` down.

    >>> float(inverse_time_decay(1.0, 10, 0.5)(20))
    0.5
    """

    def value(count: Any) -> Any:
        time = count / transition_steps
        return init_value / (1 + decay_rate * (jnp.floor(time) if staircase else time))

    return value


@schedule
def relative_step_schedule(max_value: NonNegative) -> Callable[[Any], Any]:
    r"""Adafactor's step size: :math:`\min(m, 1 / \sqrt{t + 1})`.

    Args:
        max_value: :math:`m \ge 0`; a number, or a schedule.

    Source: N. Shazeer and M. Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost,
    2018, arXiv:1804.04235, algorithm 4 (with :math:`m = 0.01`).

    >>> float(relative_step_schedule(0.9)(0)), float(relative_step_schedule(0.9)(3))
    (0.8999999761581421, 0.5)
    """

    def value(count: Any) -> Any:
        limit = max_value(count) if callable(max_value) else max_value
        return jnp.minimum(limit, 1 / jnp.sqrt(count + 1.0))

    return value
