"""Schedules of one piece: constant, polynomial, exponential, cosine."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from gradtx.checks import NonNegative, Number, Positive
from gradtx.declarations.declared_schedule import schedule
from gradtx.names.namespace import warn
from gradtx.numerics import is_zero
from gradtx.schedules.counting import floating, quotient, raised, steps, within
from gradtx.types import Array, Schedule


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
    transition_steps: Number,
    transition_begin: NonNegative = 0,
    *,
    cycle: bool = False,
) -> Callable[[Any], Any]:
    r"""From one value to another along a polynomial.

    .. math:: (a - b) \left(\frac{n - c}{n}\right)^p + b, \qquad c = \mathrm{clip}(t - t_0, 0, n)

    It is exactly `b` at the end (for `p` above 0), and never outside :math:`[a, b]`.

    Args:
        init_value: :math:`a`.
        end_value: :math:`b`.
        power: :math:`p \ge 0`.
        transition_steps: `n`; with 0 or less the value stays `init_value`, with a warning.
        transition_begin: :math:`t_0 \ge 0`, the steps before it begins.
        cycle: when the end is reached, go up again, and down over twice, three times, ... the
            steps: `n` is replaced by its least multiple that :math:`t - t_0` does not exceed
            (Keras).

    >>> float(polynomial_schedule(1.0, 0.0, 2, 10)(5))
    0.25
    """
    if _stays("polynomial_schedule", transition_steps):
        return lambda count: init_value
    n, begin = steps(transition_steps), steps(transition_begin)

    def value(count: Any) -> Any:
        if cycle:
            since = jnp.maximum(count - begin, 0)
            over = since % n
            rest = floating(jnp.where((since > 0) & (over == 0), 0, n - over))
            left = rest / (floating(since) + rest)
        else:
            # The rest, as one number: XLA computes 1 - c / n as 1 - c * (1 / n), rounded once,
            # which is negative at the end.
            left = quotient(n - jnp.clip(count - begin, 0, n), n)
        moved = within((init_value - end_value) * left**power + end_value, init_value, end_value)
        return _unless_still(n, moved, init_value)

    return value


def _stays(where: str, transition_steps: Any) -> bool:
    """Whether a transition has no steps; it warns of that, at the line that is not gradtx's own."""
    if not isinstance(transition_steps, int | float) or transition_steps > 0:
        return False
    warn(f"{where}: with transition_steps={transition_steps} the value stays init_value")
    return True


def _unless_still(n: Any, moved: Any, init_value: Any) -> Any:
    """A value that moved, or the first one where a number of steps only now known is 0 or less."""
    known = isinstance(n, int | float)
    return moved if known else jnp.where(n > 0, moved, init_value)


@schedule
def linear_schedule(
    init_value: Number,
    end_value: Number,
    transition_steps: Number,
    transition_begin: NonNegative = 0,
) -> Callable[[Any], Any]:
    """From one value to another linearly: :func:`polynomial_schedule` of power 1.

    Args:
        init_value: the value at the start.
        end_value: the value from ``transition_begin + transition_steps`` on.
        transition_steps: with 0 or less the value stays `init_value`, with a warning.
        transition_begin: the steps before it begins, at least 0.

    >>> float(linear_schedule(1.0, 0.0, 10)(5))
    0.5
    """
    return polynomial_schedule(init_value, end_value, 1, transition_steps, transition_begin)


@schedule
def power_cooldown_schedule(
    init_value: Number,
    transition_steps: Number,
    transition_begin: NonNegative = 0,
    power: NonNegative = 0.5,
    end_value: Number = 0.0,
) -> Callable[[Any], Any]:
    r"""A constant value, then a fall that is steep at first.

    .. math:: b + (a - b) \left(1 - \left(\frac{c}{n}\right)^p\right), \qquad
        c = \mathrm{clip}(t - t_0, 0, n)

    Args:
        init_value: :math:`a`.
        transition_steps: `n`, the steps of the fall; with 0 or less the value stays `init_value`,
            with a warning.
        transition_begin: :math:`t_0 \ge 0`, the steps before it.
        power: :math:`p \ge 0`; 1 makes the fall linear, and more makes it steep at the end.
        end_value: :math:`b`.

    Source: A. Hägele et al., Scaling Laws and Compute-Optimal Training Beyond Fixed Training
    Durations, 2024, arXiv:2405.18392, with the power 1/2. The fall in the records of
    https://github.com/KellerJordan/modded-nanogpt/pull/291, :math:`\min(a, k (T - t)^p)`, is
    ``polynomial_schedule(a, 0.0, p, T - t0, t0)``.

    >>> cooldown = power_cooldown_schedule(1.0, 100, 900)
    >>> [round(float(cooldown(t)), 3) for t in (900, 925, 1000)]
    [1.0, 0.5, 0.0]
    """
    if _stays("power_cooldown_schedule", transition_steps):
        return lambda count: init_value
    n, begin = steps(transition_steps), steps(transition_begin)

    def value(count: Any) -> Any:
        gone = jnp.clip(count - begin, 0, n)
        fall = (init_value - end_value) * quotient(gone, n) ** power
        # The quotient may be rounded to less than 1.
        fallen = jnp.where(gone >= n, end_value, init_value - fall)
        return _unless_still(n, within(fallen, init_value, end_value), init_value)

    return value


@schedule
def exponential_decay(
    init_value: Number,
    transition_steps: Number,
    decay_rate: NonNegative,
    transition_begin: NonNegative = 0,
    staircase: bool = False,
    end_value: Number | None = None,
) -> Callable[[Any], Any]:
    r"""Exponential decay of a value: :math:`a\, r^{(t - t_0) / n}`.

    Args:
        init_value: :math:`a`.
        transition_steps: `n`; with 0 or less the value stays `init_value`, with a warning.
        decay_rate: :math:`r \ge 0`; with 0 the value stays `init_value`.
        transition_begin: :math:`t_0 \ge 0`, the steps before it begins.
        staircase: round the exponent down.
        end_value: a bound: from below if :math:`r < 1`, otherwise from above.

    >>> float(exponential_decay(1.0, 10, 0.5)(20))
    0.25
    """
    if is_zero(decay_rate) or _stays("exponential_decay", transition_steps):
        return lambda count: init_value
    n, begin = steps(transition_steps), steps(transition_begin)

    def value(count: Any) -> Any:
        since = count - begin
        exponent = floating(since // n) if staircase else quotient(since, n)
        powered = raised(decay_rate, exponent)
        decayed = jnp.where(since <= 0, init_value, init_value * powered)
        if end_value is not None:
            decayed = _bounded(decayed, end_value, decay_rate)
        decayed = _unless_still(n, decayed, init_value)
        known = isinstance(decay_rate, int | float)
        return decayed if known else jnp.where(decay_rate == 0, init_value, decayed)

    return value


def _bounded(value: Any, end_value: Any, decay_rate: Any) -> Array:
    """A value that falls, or grows, no further than to the end."""
    below, above = jnp.maximum(value, end_value), jnp.minimum(value, end_value)
    if isinstance(decay_rate, int | float):
        return below if decay_rate < 1 else above
    return jnp.where(decay_rate < 1, below, above)


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
    half, period = steps(decay_steps), steps(2 * decay_steps)

    def value(count: Any) -> Any:
        since = count % period if periodic else jnp.minimum(count, half)
        wave = jnp.clip(0.5 * (1 + jnp.cos(jnp.pi * quotient(since, half))), 0, 1)
        part = within((1 - alpha) * wave**exponent + alpha, 1.0, alpha)
        return init_value * part

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
    n = steps(transition_steps)

    def value(count: Any) -> Any:
        time = floating(count // n) if staircase else quotient(count, n)
        return init_value / (1 + decay_rate * time)

    return value


@schedule
def relative_step_schedule(max_value: NonNegative | Schedule) -> Callable[[Any], Any]:
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
        return jnp.minimum(limit, 1 / jnp.sqrt(floating(count) + 1))

    return value
