"""Keras's learning-rate schedules, read from their configurations."""

from collections.abc import Callable, Mapping
from typing import Any

from gradtx.interop.reading import Options, finite, powers
from gradtx.schedules.cyclic import cosine_restarts_schedule
from gradtx.schedules.decay import (
    constant_schedule,
    cosine_decay_schedule,
    inverse_time_decay,
    linear_schedule,
    polynomial_schedule,
)
from gradtx.schedules.piecewise import join_schedules
from gradtx.types import Schedule


def learning_rate(where: str, value: Any) -> float | Schedule:
    """A number, or the schedule that a configuration describes.

    Raises:
        ValueError: an unknown schedule, an unknown or missing option, a value out of range.
        TypeError: a value of the wrong type.
    """
    if not isinstance(value, Mapping):
        return finite(f"{where}: learning_rate", value)
    name = value.get("class_name")
    if not isinstance(name, str) or name not in _SCHEDULES:
        raise ValueError(
            f"{where}: the schedule {name!r:.80} is not known; there are {', '.join(_SCHEDULES)}"
        )
    o = Options(f"{where}: {name}", value.get("config"))
    o.skip("name")
    schedule = _SCHEDULES[name](o)
    o.finish()
    return schedule


def _exponential(o: Options) -> Schedule:
    start, steps, rate = _common(o)
    return powers(start, steps, rate, o.flag("staircase"))


def _inverse_time(o: Options) -> Schedule:
    start, steps, rate = _common(o)
    return inverse_time_decay(start, steps, rate, o.flag("staircase"))


def _common(o: Options) -> tuple[float, int, float]:
    start, rate = o.number("initial_learning_rate"), o.number("decay_rate")
    return start, _steps(o, "decay_steps"), rate


def _steps(o: Options, key: str) -> int:
    steps = o.whole(key)
    if steps < 1:
        raise ValueError(f"{o.where}: {key} must be at least 1, not {steps}")
    return steps


def _piecewise(o: Options) -> Schedule:
    boundaries, values = o.take("boundaries"), o.take("values")
    if not isinstance(boundaries, list | tuple) or not isinstance(values, list | tuple):
        raise TypeError(f"{o.where}: boundaries and values must be lists")
    # Keras includes a boundary in the piece before it.
    after = [int(finite(f"{o.where}: boundaries", b)) + 1 for b in boundaries]
    return join_schedules(
        [constant_schedule(finite(f"{o.where}: values", v)) for v in values], after
    )


def _polynomial(o: Options) -> Schedule:
    start, end = o.number("initial_learning_rate"), o.number("end_learning_rate")
    steps = _steps(o, "decay_steps")
    return polynomial_schedule(start, end, o.number("power"), steps, cycle=o.flag("cycle"))


def _cosine(o: Options) -> Schedule:
    start, alpha = o.number("initial_learning_rate"), o.number("alpha")
    steps = _steps(o, "decay_steps")
    target = o.optional("warmup_target")
    warmup = o.integer("warmup_steps", 0)
    if target is None or warmup == 0:
        return cosine_decay_schedule(start if target is None else target, steps, alpha)
    return join_schedules(
        [linear_schedule(start, target, warmup), cosine_decay_schedule(target, steps, alpha)],
        [warmup],
    )


def _restarts(o: Options) -> Schedule:
    return cosine_restarts_schedule(
        o.number("initial_learning_rate"),
        _steps(o, "first_decay_steps"),
        o.number("t_mul"),
        o.number("m_mul"),
        o.number("alpha"),
    )


_SCHEDULES: dict[str, Callable[[Options], Schedule]] = {
    "CosineDecay": _cosine,
    "CosineDecayRestarts": _restarts,
    "ExponentialDecay": _exponential,
    "InverseTimeDecay": _inverse_time,
    "PiecewiseConstantDecay": _piecewise,
    "PolynomialDecay": _polynomial,
}
