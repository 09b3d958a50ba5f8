"""PyTorch's schedulers as schedules of the number of times they have been stepped."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.core.pair import GradientTransformation
from gradtx.interop.reading import finite, powers
from gradtx.schedules.cyclic import cosine_restarts_schedule, cyclic_schedule
from gradtx.schedules.decay import (
    constant_schedule,
    cosine_decay_schedule,
    linear_schedule,
    polynomial_schedule,
)
from gradtx.schedules.piecewise import (
    join_schedules,
    piecewise_constant_schedule,
    piecewise_interpolate_schedule,
)
from gradtx.schedules.products import (
    multiplicative_schedule,
    multiply_schedules,
    stretch_schedule,
)
from gradtx.transforms.plateau import reduce_on_plateau
from gradtx.types import Schedule

ParamGroup = Mapping[str, Any]

# A function is compared with itself, compiled, so many epochs after the present one.
_LOOKED_AT = (*range(128), *(1 << n for n in range(7, 20)))


def is_plateau(scheduler: Any) -> bool:
    """Whether a scheduler waits for a metric to improve."""
    return type(scheduler).__name__ == "ReduceLROnPlateau"


def plateau(
    where: str, scheduler: Any, i: int, rate: float, steps_per_epoch: int
) -> tuple[GradientTransformation, dict[str, Any]]:
    """``ReduceLROnPlateau`` for group `i` at its current rate, and the numbers of its state."""
    s = scheduler
    _check_group(where, s, i)
    tolerance = s.threshold or float(jnp.finfo(jnp.float32).tiny)
    relative = s.threshold_mode == "rel"
    tx = reduce_on_plateau(
        s.factor,
        s.patience + 1,
        tolerance if relative else 0.0,
        0.0 if relative else tolerance,
        s.cooldown,
        steps_per_epoch,
        _last_rate(s, rate, s.min_lrs[i]) / rate if rate else 0.0,
        mode=s.mode,
    )
    return tx, {
        "best_value": s.best,
        "plateau_count": s.num_bad_epochs,
        "cooldown_count": s.cooldown_counter,
        "ReduceLROnPlateauState.count": 0,
    }


def _last_rate(scheduler: Any, rate: float, least: float) -> float:
    """The rate that ``ReduceLROnPlateau`` leaves as it is: a change of up to `eps` is not made."""
    while rate - (new := max(rate * scheduler.factor, least)) > scheduler.eps:
        rate = new
    return rate


def epoch(scheduler: Any) -> int:
    """The number of steps that a scheduler has taken."""
    first = getattr(scheduler, "_schedulers", [scheduler])[0]
    return int(getattr(scheduler, "last_epoch", first.last_epoch))


def rate_schedule(where: str, scheduler: Any, i: int, group: ParamGroup) -> Schedule:
    """The learning rate of group `i` as a function of the number of steps of a scheduler.

    Raises:
        ValueError: the scheduler is unknown or has no schedule here (the error says which); the
            group was added after the scheduler was made; or the current rate is not its rate.
    """
    _check_group(where, scheduler, i)
    schedule = _schedule(where, scheduler, i, group)
    now, scheduled = float(group["lr"]), float(schedule(jnp.int32(epoch(scheduler))))
    if not abs(now - scheduled) <= 1e-5 * max(abs(now), abs(scheduled)):
        raise ValueError(
            f"{where}: the learning rate in force is {now:g}, and {type(scheduler).__name__} gives "
            f"{scheduled:g} at its epoch {epoch(scheduler)}: something else has set it since"
        )
    return schedule


def momentum_schedule(scheduler: Any, i: int, group: ParamGroup) -> Schedule | None:
    """The schedule of group `i`'s momentum, if the scheduler cycles momentum; otherwise None."""
    if not getattr(scheduler, "cycle_momentum", False):
        return None
    if type(scheduler).__name__ == "OneCycleLR":
        return _phases(scheduler, group, "momentum")
    return _cycle(scheduler, scheduler.max_momentums[i], scheduler.base_momentums[i])


def steps_of_epoch(where: str, counts: Collection[int], taken: int, every: int) -> int:
    """How many steps of the epoch in progress are over.

    Args:
        where: the name of the optimizer, for error messages.
        counts: the steps that parameters have taken; empty if nothing counts them, which is taken
            to be the end of an epoch.
        taken: the steps of the scheduler.
        every: the steps of the optimizer for each step of the scheduler.

    Raises:
        ValueError: the counts do not say.
    """
    # The parameters that were never without a gradient have the clock of the optimizer.
    clock = max(counts, default=taken * every)
    phases = {count % every for count in counts if count // every == taken} or {0}
    if every > 1 and (clock // every != taken or len(phases) > 1):
        raise ValueError(
            f"{where}: its parameters have taken {', '.join(map(str, sorted(counts)))} steps, and "
            f"the scheduler {taken} of {every} steps each: that does not say how far the epoch in "
            "progress is; leave the scheduler out, and give replace a schedule of your own"
        )
    return clock % every


def begun(inner: Schedule, taken: int, over: int, count: int, every: int) -> Schedule:
    r"""A schedule of a scheduler's steps, `taken` of them over, on the clock of some parameters.

    The parameters have taken `count` steps, and `over` of the `every` steps of the epoch are over.
    At their step :math:`t` the scheduler has taken `taken` + :math:`\lfloor` (:math:`t` - `count` +
    `over`) / `every` :math:`\rfloor`.
    """
    ahead = taken * every + over - count
    epochs, steps = divmod(max(ahead, 0), every)
    if every > 1 or epochs:
        inner = stretch_schedule(inner, every=every, offset=epochs)
    if steps:
        inner = stretch_schedule(inner, offset=steps)
    if ahead >= 0:
        return inner
    # Its first step was in the middle of the run.
    return join_schedules([constant_schedule(float(inner(jnp.int32(0)))), inner], [-ahead])


def _check_group(where: str, scheduler: Any, i: int) -> None:
    if not i < _groups(scheduler):
        raise ValueError(
            f"{where}: the scheduler {type(scheduler).__name__} was made before this group was "
            "added: make it again"
        )


def _groups(s: Any) -> int:
    """The number of parameter groups when a scheduler was made."""
    parts = getattr(s, "_schedulers", None)
    if parts:
        return min(map(_groups, parts))
    return len(s.min_lrs if is_plateau(s) else s.base_lrs)


def _schedule(where: str, s: Any, i: int, group: ParamGroup) -> Schedule:
    name = type(s).__name__
    if name in _OF_BASE:
        return _OF_BASE[name](s, i, float(s.base_lrs[i]))
    if name in _OTHERS:
        return _OTHERS[name](where, s, i, group)
    known = [*_OF_BASE, *_OTHERS, "ReduceLROnPlateau"]
    raise ValueError(
        f"{where}: the scheduler {name!r:.80} is not known; there are {', '.join(sorted(known))}"
    )


def _function(s: Any, i: int) -> Callable[[Any], Any]:
    function: Callable[[Any], Any] = s.lr_lambdas[i]
    try:
        jax.eval_shape(lambda t: jnp.asarray(function(t)), jax.ShapeDtypeStruct((), jnp.int32))
    except TypeError as error:
        raise ValueError(
            f"from_torch: a function of {type(s).__name__} cannot be compiled: write it with "
            f"jax.numpy, such as jnp.where for if ({error!s:.80})"
        ) from None
    _check_compiled(type(s).__name__, function, s.last_epoch)
    return function


def _check_compiled(name: str, function: Callable[[Any], Any], epoch: int) -> None:
    """Raise ValueError if a function of integers is another one compiled: ``10 ** -epoch`` is 0."""
    known: dict[int, float] = {}
    for later in _LOOKED_AT:
        try:
            known[epoch + later] = finite(name, function(epoch + later))
        except (ArithmeticError, LookupError, TypeError, ValueError):
            break  # beyond the epochs that it is written for
    largest = max(map(abs, known.values()), default=0.0)
    compiled = jax.jit(jax.vmap(lambda t: jnp.asarray(function(t), float)))
    found = np.asarray(compiled(jnp.array([*known], jnp.int32)))
    for (at, value), other in zip(known.items(), map(float, found), strict=True):
        if not abs(other - value) <= 1e-2 * largest:
            raise ValueError(
                f"from_torch: a function of {name} is {value:g} at epoch {at}, and {other:g} when "
                "compiled, where an epoch is an int32: write it with floats, as 10.0 ** -epoch for "
                "10 ** -epoch"
            )


def _constant(s: Any, i: int, base: float) -> Schedule:
    if s.total_iters == 0:  # the step at which PyTorch ends it never comes
        return constant_schedule(base * s.factor)
    return join_schedules(
        [constant_schedule(base * s.factor), constant_schedule(base)], [s.total_iters]
    )


def _milestones(s: Any, i: int, base: float) -> Schedule:
    return piecewise_constant_schedule(base, {m: s.gamma**n for m, n in s.milestones.items()})


def _share(s: Any, end: float, start: float) -> float:
    """`end` as a fraction of `start`, in which gradtx's schedules are written."""
    if start == 0.0 != end:
        raise ValueError(
            f"from_torch: {type(s).__name__} goes from 0 to {end:g}, which is not a multiple of 0: "
            "leave the scheduler out, and give replace a schedule of your own"
        )
    return end / start if start else 0.0


def _cosine(s: Any, i: int, base: float) -> Schedule:
    return cosine_decay_schedule(base, s.T_max, _share(s, s.eta_min, base), periodic=True)


def _restarts(s: Any, i: int, base: float) -> Schedule:
    alpha = _share(s, s.eta_min, base)
    return cosine_restarts_schedule(base, s.T_0, t_mul=s.T_mult, alpha=alpha)


# Schedules from the base rate and the epoch alone.
_OF_BASE: dict[str, Callable[[Any, int, float], Schedule]] = {
    "LambdaLR": lambda s, i, base: multiply_schedules(base, _function(s, i)),
    "MultiplicativeLR": lambda s, i, base: multiplicative_schedule(base, _function(s, i)),
    "StepLR": lambda s, i, base: powers(base, s.step_size, s.gamma, staircase=True),
    "MultiStepLR": _milestones,
    "ConstantLR": _constant,
    "LinearLR": lambda s, i, base: linear_schedule(
        base * s.start_factor, base * s.end_factor, s.total_iters
    ),
    "ExponentialLR": lambda s, i, base: powers(base, 1, s.gamma, staircase=False),
    "PolynomialLR": lambda s, i, base: polynomial_schedule(base, 0.0, s.power, s.total_iters),
    "CosineAnnealingLR": _cosine,
    "CosineAnnealingWarmRestarts": _restarts,
}
# Schedulers that multiply the current rate; the others set the rate.
_FACTORS = (
    "ConstantLR",
    "ExponentialLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "PolynomialLR",
    "StepLR",
)


def _chained(where: str, s: Any, i: int, group: ParamGroup) -> Schedule:
    names = [type(each).__name__ for each in s._schedulers]
    others = [name for name in names if name not in _FACTORS]
    if others:
        raise ValueError(
            f"{where}: ChainedScheduler of {', '.join(others)}: only those that multiply the rate "
            f"have a product here ({', '.join(_FACTORS)}); give replace a schedule of your own"
        )
    base = float(s._schedulers[0].base_lrs[i])
    parts = zip(names, s._schedulers, strict=True)
    return multiply_schedules(base, *(_OF_BASE[name](each, i, 1.0) for name, each in parts))


def _sequential(where: str, s: Any, i: int, group: ParamGroup) -> Schedule:
    names = [type(each).__name__ for each in s._schedulers]
    others = [name for name in names if name not in _OF_BASE]
    if others or "MultiplicativeLR" in names[1:]:
        raise ValueError(
            f"{where}: SequentialLR of {', '.join(names)}: only "
            f"{', '.join(_OF_BASE)} have a part here, MultiplicativeLR the first; give replace "
            "join_schedules of your own"
        )
    parts = zip(names, s._schedulers, strict=True)
    return join_schedules(
        [_OF_BASE[name](each, i, float(each.base_lrs[i])) for name, each in parts],
        list(s._milestones),
    )


def _cycle(s: Any, low: float, high: float) -> Schedule:
    up = round(s.total_size * s.step_ratio, 6)
    return cyclic_schedule(float(low), float(high), up, s.total_size - up, s.mode, s.gamma)


def _cyclic(where: str, s: Any, i: int, group: ParamGroup) -> Schedule:
    if s._scale_fn_custom is not None:
        raise ValueError(f"{where}: CyclicLR with a scale_fn of its own has no schedule here")
    return _cycle(s, s.base_lrs[i], s.max_lrs[i])


def _phases(s: Any, group: ParamGroup, what: str) -> Schedule:
    """The schedule by which OneCycleLR changes the ``lr`` or the ``momentum`` of a group."""
    start = value = float(group[s._schedule_phases[0][f"start_{what}"]])
    scales: dict[int, float] = {}
    for phase in s._schedule_phases:
        if scales and phase["end_step"] <= max(scales):
            continue  # PyTorch takes the first phase that does not end before a step
        end = float(group[phase[f"end_{what}"]])
        scales[phase["end_step"]] = _share(s, end, value)
        value = end
    curve = "cosine" if s._anneal_func_type == "cos" else "linear"
    return piecewise_interpolate_schedule(curve, start, scales)


def _averaging(where: str, s: Any, i: int, group: ParamGroup) -> Schedule:
    """SWALR, which anneals from the rate at which it began."""
    end, length = finite(f"{where}: swa_lr", group["swa_lr"]), s.anneal_epochs
    if s.last_epoch >= length:
        return constant_schedule(end)
    done = s.anneal_func(s.last_epoch / length)
    start = (float(group["lr"]) - done * end) / (1 - done)
    if s._anneal_strategy == "cos":
        return cosine_decay_schedule(start, length, _share(s, end, start))
    return linear_schedule(start, end, length)


_OTHERS: dict[str, Callable[[str, Any, int, ParamGroup], Schedule]] = {
    "ChainedScheduler": _chained,
    "CyclicLR": _cyclic,
    "OneCycleLR": lambda where, s, i, group: _phases(s, group, "lr"),
    "SWALR": _averaging,
    "SequentialLR": _sequential,
}
