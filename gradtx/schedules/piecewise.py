"""Schedules of several pieces: joined, piecewise, one-cycle, warmup, warm restarts."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal

import jax.numpy as jnp

from gradtx.checks import (
    Fraction,
    NonNegative,
    Number,
    Positive,
    check,
    check_choice,
    check_no_schedule,
)
from gradtx.declarations.declaration import Kept
from gradtx.declarations.declared_schedule import schedule
from gradtx.numerics import is_zero
from gradtx.programs.tracing import is_tracer
from gradtx.schedules.counting import quotient, steps, within
from gradtx.schedules.decay import (
    exponential_decay,
    linear_schedule,
    power_cooldown_schedule,
)
from gradtx.types import Schedule


@schedule
def join_schedules(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """One schedule after another; each counts from the boundary at which it begins.

    Args:
        schedules: at least one.
        boundaries: the steps at which the second, the third, ... begin, in ascending order.

    Raises:
        ValueError: there is not exactly one boundary fewer than schedules, or they do not ascend.

    >>> schedule = join_schedules([lambda t: 1.0, lambda t: 10.0 + t], [5])
    >>> float(schedule(4)), float(schedule(7))
    (1.0, 12.0)
    """
    if not schedules:
        raise ValueError("join_schedules: there is no schedule to join")
    for each in schedules:
        check("join_schedules", "each of schedules", each, Schedule)
    if len(schedules) != len(boundaries) + 1:
        raise ValueError(
            f"join_schedules: {len(schedules)} schedules need {len(schedules) - 1} boundaries, "
            f"not {len(boundaries)}"
        )
    begins = [steps(boundary) for boundary in boundaries]
    if not any(map(is_tracer, begins)) and begins != sorted(begins):
        raise ValueError(f"join_schedules: the boundaries {boundaries} do not ascend")

    def value(count: Any) -> Any:
        current = schedules[0](count)
        for boundary, after in zip(begins, schedules[1:], strict=True):
            current = jnp.where(count < boundary, current, after(count - boundary))
        return current

    return value


def _scales(where: str, boundaries_and_scales: dict[int, float] | None) -> dict[int, float]:
    scales = boundaries_and_scales or {}
    for boundary, scale in scales.items():
        check(where, "a boundary", boundary, Number)
        check(where, f"the scale at {boundary}", scale, NonNegative)
        check_no_schedule(where, f"the scale at {boundary}", scale)
    return {steps(boundary): scale for boundary, scale in sorted(scales.items())}


@schedule
def piecewise_constant_schedule(
    init_value: Number, boundaries_and_scales: dict[int, float] | None = None
) -> Callable[[Any], Any]:
    """A value that is multiplied by a scale at each boundary.

    Args:
        init_value: the value at the start.
        boundaries_and_scales: ``{step: scale}``, scales of at least 0.

    Raises:
        ValueError: a scale is negative.

    >>> schedule = piecewise_constant_schedule(1.0, {5: 0.5})
    >>> float(schedule(4)), float(schedule(5))
    (1.0, 0.5)
    """
    scales = _scales("piecewise_constant_schedule", boundaries_and_scales)

    def value(count: Any) -> Any:
        current = init_value
        for boundary, scale in scales.items():
            current = current * jnp.where(count < boundary, 1.0, scale)
        return current

    return value


def _linear(start: Any, end: Any, part: Any) -> Any:
    return start + (end - start) * part


def _cosine(start: Any, end: Any, part: Any) -> Any:
    return end + (start - end) / 2 * (jnp.cos(jnp.pi * part) + 1)


@schedule
def piecewise_interpolate_schedule(
    interpolate_type: str, init_value: Number, boundaries_and_scales: dict[int, float] | None = None
) -> Callable[[Any], Any]:
    """A value that moves along a curve, and at each boundary has been multiplied by a scale.

    Args:
        interpolate_type: ``"linear"`` or ``"cosine"``.
        init_value: the value at the start.
        boundaries_and_scales: ``{step: scale}``, scales of at least 0.

    Raises:
        ValueError: another type of curve, or a negative scale.

    >>> float(piecewise_interpolate_schedule("linear", 1.0, {10: 3.0})(5))
    2.0
    """
    curves = {"linear": _linear, "cosine": _cosine}
    if interpolate_type not in curves:
        raise ValueError(
            f"piecewise_interpolate_schedule: interpolate_type must be 'linear' or 'cosine', not "
            f"{interpolate_type!r}"
        )
    scales = _scales("piecewise_interpolate_schedule", boundaries_and_scales)
    return _interpolated(curves[interpolate_type], init_value, list(scales.items()))


def _interpolated(
    curve: Callable[[Any, Any, Any], Any], init_value: Any, scales: Sequence[tuple[Any, Any]]
) -> Schedule:
    """A value that moves along a curve to ``(boundary, scale)`` after another, in ascending order.

    At a boundary that equals the previous one the value jumps.
    """

    def value_at(count: Any) -> Any:
        start, begin, current = init_value, 0, init_value
        for boundary, scale in scales:
            end = start * scale
            length = boundary - begin
            length = max(length, 1) if isinstance(length, int | float) else jnp.maximum(length, 1)
            part = jnp.clip(quotient(count - begin, length), 0, 1)
            value = within(curve(start, end, part), start, end)
            current = jnp.where(count < begin, current, value)
            start, begin = end, boundary
        return jnp.where(count < begin, current, start)

    return value_at


def _at_part(part: Any, transition_steps: Any) -> Any:
    """The last step of a part of a cycle, and a known one as an integer."""
    step = part * transition_steps
    return steps(int(step)) if isinstance(step, int | float) else jnp.floor(step)


@schedule
def linear_onecycle_schedule(
    transition_steps: Positive,
    peak_value: Number,
    pct_start: Fraction = 0.3,
    pct_final: Fraction = 0.85,
    div_factor: Positive = 25.0,
    final_div_factor: Positive = 1e4,
) -> Schedule:
    """Up to the peak, down again, and further down, linearly.

    Args:
        transition_steps: the steps of the cycle, above 0.
        peak_value: the highest value.
        pct_start: the part of the cycle after which it is reached.
        pct_final: the part of the cycle after which the start's value is reached again.
        div_factor: the ratio of the peak to the initial value.
        final_div_factor: the ratio of the initial value to the final value.

    Raises:
        ValueError: `pct_final` is below `pct_start`.

    Source: L. N. Smith and N. Topin, Super-Convergence: Very Fast Training of Neural Networks Using
    Large Learning Rates, 2018, arXiv:1708.07120.

    >>> float(linear_onecycle_schedule(100, 1.0)(30))
    1.0
    """
    known = isinstance(pct_start, int | float) and isinstance(pct_final, int | float)
    if known and pct_final < pct_start:
        raise ValueError(
            f"linear_onecycle_schedule: pct_final must be at least pct_start, which is {pct_start},"
            f" not {pct_final}"
        )
    return _interpolated(
        _linear,
        peak_value / div_factor,
        [
            (_at_part(pct_start, transition_steps), div_factor),
            (_at_part(pct_final, transition_steps), 1.0 / div_factor),
            (_at_part(1, transition_steps), 1.0 / final_div_factor),
        ],
    )


@schedule
def cosine_onecycle_schedule(
    transition_steps: Positive,
    peak_value: Number,
    pct_start: Fraction = 0.3,
    div_factor: Positive = 25.0,
    final_div_factor: Positive = 1e4,
    *,
    convention: Literal["optax", "torch"] = "optax",
) -> Schedule:
    """Up to the peak and down again, along half cosines.

    Args:
        transition_steps: the steps of the cycle, above 0.
        peak_value: the highest value.
        pct_start: the part of the cycle after which it is reached.
        div_factor: the ratio of the peak to the initial value.
        final_div_factor: the ratio of the initial value to the final value.
        convention: where the cycle ends: ``"optax"``, after its last step; ``"torch"``, in its last
            step, as in PyTorch's ``OneCycleLR(optimizer, peak_value, transition_steps)``, whose
            peak is a step earlier too, and not at a whole number of steps unless
            ``pct_start * transition_steps`` is one.

    Raises:
        ValueError: there is no such convention.

    Source: L. N. Smith and N. Topin, Super-Convergence, 2018, arXiv:1708.07120.

    >>> float(cosine_onecycle_schedule(100, 1.0)(30))
    1.0
    >>> float(cosine_onecycle_schedule(100, 1.0, convention="torch")(29))
    1.0
    """
    check_choice("cosine_onecycle_schedule", "convention", convention, ["optax", "torch"])
    if convention == "torch":
        peak, last = steps(pct_start * transition_steps - 1), steps(transition_steps - 1)
    else:
        peak, last = _at_part(pct_start, transition_steps), _at_part(1, transition_steps)
    pieces = [(peak, div_factor), (last, 1.0 / (div_factor * final_div_factor))]
    if convention == "torch" and not any(map(is_tracer, (peak, last))) and peak >= last:
        del pieces[1]  # PyTorch takes the first piece that does not end before a step
    return _interpolated(_cosine, peak_value / div_factor, pieces)


def _warmed_up(init_value: Any, peak_value: Any, warmup_steps: Any, then: Schedule) -> Schedule:
    """Linearly up to the peak, `then` another schedule from there."""
    if is_zero(warmup_steps):
        return then
    return join_schedules(
        [linear_schedule(init_value, peak_value, warmup_steps), then], [warmup_steps]
    )


@schedule
def warmup_constant_schedule(
    init_value: Number, peak_value: Number, warmup_steps: NonNegative
) -> Schedule:
    """Linearly up to a value, then constant.

    Args:
        init_value: the value at the start.
        peak_value: the value from `warmup_steps` on.
        warmup_steps: at least 0.

    >>> float(warmup_constant_schedule(0.0, 1.0, 10)(5))
    0.5
    """
    return _warmed_up(init_value, peak_value, warmup_steps, lambda count: peak_value)


@schedule
def warmup_cosine_decay_schedule(
    init_value: Number,
    peak_value: Number,
    warmup_steps: NonNegative,
    decay_steps: Positive,
    end_value: Number = 0.0,
    exponent: NonNegative = 1.0,
) -> Schedule:
    """Linearly up to the peak, then along half a cosine down.

    Args:
        init_value: the value at the start.
        peak_value: the value after `warmup_steps`.
        warmup_steps: at least 0.
        decay_steps: the steps of warmup and decay together, more than `warmup_steps`.
        end_value: the value from `decay_steps` on; where the peak is 0, this is 0 too.
        exponent: at least 0; the half cosine is raised to it, as in :func:`cosine_decay_schedule`.

    Raises:
        ValueError: `decay_steps` is not above `warmup_steps`.

    Source: I. Loshchilov and F. Hutter, SGDR, 2017, arXiv:1608.03983.

    >>> schedule = warmup_cosine_decay_schedule(0.0, 1.0, 10, 110)
    >>> float(schedule(10)), round(float(schedule(60)), 6)
    (1.0, 0.5)
    """
    known = isinstance(warmup_steps, int | float) and isinstance(decay_steps, int | float)
    if known and decay_steps <= warmup_steps:
        raise ValueError(
            "warmup_cosine_decay_schedule: decay_steps counts the steps of the warmup too, and "
            f"must be more than warmup_steps, which are {warmup_steps}, not {decay_steps}"
        )
    end = end_value * (peak_value != 0)  # a rate of 0 stays 0, as in Optax
    decay = _half_cosine(peak_value, end, decay_steps - warmup_steps, exponent)
    return _warmed_up(init_value, peak_value, warmup_steps, decay)


@schedule
def warmup_exponential_decay_schedule(
    init_value: Number,
    peak_value: Number,
    warmup_steps: NonNegative,
    transition_steps: Number,
    decay_rate: NonNegative,
    transition_begin: NonNegative = 0,
    staircase: bool = False,
    end_value: Number | None = None,
) -> Schedule:
    """Linearly up to the peak, then an exponential decay.

    Args:
        init_value: the value at the start.
        peak_value: the value after `warmup_steps`.
        warmup_steps: at least 0.
        transition_steps: this and the rest as in :func:`exponential_decay`, from `warmup_steps` on.
        decay_rate: the rate, at least 0.
        transition_begin: the steps after the warmup before the decay begins.
        staircase: round the exponent down.
        end_value: a bound of the decayed value.

    >>> float(warmup_exponential_decay_schedule(0.0, 1.0, 10, 10, 0.5)(20))
    0.5
    """
    decay = exponential_decay(
        peak_value, transition_steps, decay_rate, transition_begin, staircase, end_value
    )
    return _warmed_up(init_value, peak_value, warmup_steps, decay)


@schedule
def wsd_schedule(
    peak_value: Number,
    warmup_steps: NonNegative,
    total_steps: Positive,
    decay_steps: Positive,
    shape: str = "linear",
    init_value: Number = 0.0,
    end_value: Number = 0.0,
) -> Schedule:
    r"""Warm-up, stable, decay (WSD, a trapezoid): linearly up, constant, and down at the end.

    With the part :math:`r = \mathrm{clip}((t - T + n) / n, 0, 1)` of the fall that is over, the
    value from the end of the warm-up on is

    .. math:: b + (a - b) (1 - f(r)), \qquad
        f(r) = r, \quad (1 - \cos \pi r) / 2, \quad \sqrt r

    Until step :math:`T - n` it does not depend on :math:`T` or :math:`n`. So one long run serves
    several totals: continue a checkpoint of its stable part with the schedule of another total,
    and the cool-down branches from there.

    Args:
        peak_value: :math:`a`, the value between the warm-up and the fall.
        warmup_steps: at least 0.
        total_steps: :math:`T`, the steps of warm-up, stable part and fall together.
        decay_steps: :math:`n`, the steps of the fall.
        shape: of the fall: ``"linear"``, ``"cosine"`` or ``"1-sqrt"``.
        init_value: the value at the start.
        end_value: :math:`b`, the value from `total_steps` on.

    Raises:
        ValueError: another shape, or `total_steps` below the steps of warm-up and fall.

    Optax has no such schedule; there it is joined from three.

    Source: S. Hu et al., MiniCPM, 2024, arXiv:2404.06395; A. Hägele et al., Scaling Laws and
    Compute-Optimal Training Beyond Fixed Training Durations, 2024, arXiv:2405.18392, with the fall
    ``"1-sqrt"``, which is :func:`power_cooldown_schedule`.

    >>> schedule = wsd_schedule(1.0, 10, 100, 20)
    >>> [float(schedule(t)) for t in (5, 10, 80, 90, 100)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    known = all(isinstance(n, int | float) for n in (warmup_steps, total_steps, decay_steps))
    if known and total_steps < warmup_steps + decay_steps:
        raise ValueError(
            f"wsd_schedule: total_steps counts the steps of the warm-up ({warmup_steps}) and of "
            f"the fall ({decay_steps}) too, and must not be less, as {total_steps} is"
        )
    if shape == "linear":
        fall: Schedule = linear_schedule(peak_value, end_value, decay_steps)
    elif shape == "cosine":
        fall = _half_cosine(peak_value, end_value, decay_steps)
    elif shape == "1-sqrt":
        fall = power_cooldown_schedule(peak_value, decay_steps, end_value=end_value)
    else:
        raise ValueError(
            f"wsd_schedule: shape must be 'linear', 'cosine' or '1-sqrt', not {shape!r}"
        )
    stable = total_steps - decay_steps - warmup_steps
    then = join_schedules([lambda count: peak_value, fall], [stable])
    return _warmed_up(init_value, peak_value, warmup_steps, then)


def _half_cosine(start: Any, end: Any, transition_steps: Any, exponent: Any = 1) -> Schedule:
    n = steps(transition_steps)

    def value(count: Any) -> Any:
        part = quotient(jnp.clip(count, 0, n), n)
        left = jnp.clip((jnp.cos(jnp.pi * part) + 1) / 2, 0, 1)
        moved = end + (start - end) * left**exponent
        return within(jnp.where(count >= n, end, moved), start, end)

    return value


def _cycles(where: str, cycles: Iterable[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Arguments that can be read more than once, which those of a generator cannot."""
    return cycles if isinstance(cycles, list | tuple) else list(cycles)


@schedule
def sgdr_schedule(cosine_kwargs: Annotated[Iterable[dict[str, Any]], Kept(_cycles)]) -> Schedule:
    """Warm restarts: one :func:`warmup_cosine_decay_schedule` after another.

    Args:
        cosine_kwargs: the arguments of each, as dicts.

    Source: I. Loshchilov and F. Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, 2017,
    arXiv:1608.03983.

    >>> cycle = dict(init_value=0.0, peak_value=1.0, warmup_steps=1, decay_steps=10)
    >>> float(sgdr_schedule([cycle, cycle])(11))
    1.0
    """
    cycles = [warmup_cosine_decay_schedule(**kwargs) for kwargs in cosine_kwargs]
    ends = list(itertools.accumulate(kwargs["decay_steps"] for kwargs in cosine_kwargs))
    return join_schedules(cycles, ends[:-1])
