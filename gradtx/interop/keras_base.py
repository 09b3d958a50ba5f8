"""The options that the base class adds to each of Keras's optimizers."""

from collections.abc import Callable
from typing import Any

from gradtx.composition.chain import chain
from gradtx.core.pair import GradientTransformation
from gradtx.declarations.host_values import HostValue, as_schedule
from gradtx.interop.keras_optimizers import CORES, KerasCore, decayed
from gradtx.interop.keras_schedules import learning_rate
from gradtx.interop.reading import (
    REQUIRED,
    Arrays,
    Leaf,
    Options,
    filled,
    finite,
    literal,
    multiplied,
    steps_taken,
)
from gradtx.schedules.decay import constant_schedule
from gradtx.schedules.piecewise import join_schedules
from gradtx.schedules.products import stretch_schedule
from gradtx.transforms.clipping import clip, clip_by_global_norm, clip_by_norm
from gradtx.transforms.parameter_averages import ema_params
from gradtx.transforms.projecting import project
from gradtx.transforms.scaling import scale
from gradtx.types import State
from gradtx.wrappers.accumulation import accumulate

Fill = Callable[[State], State]


def single(
    name: str, config: Any, leaves: list[Leaf] | None, values: Arrays | None, live: Any
) -> tuple[GradientTransformation, Fill]:
    """One optimizer with the options of the base class, and how its variables fill a state."""
    o = Options(f"from_keras: {name}", config)
    o.skip("name", "jit_compile", "is_legacy_optimizer")
    steps = _accumulation(o)
    iteration = _iteration(o, values)
    rate = _rate(o, values, steps, live)
    leaves = _decaying(o.where, leaves, live)
    core = CORES[name](o, rate, leaves)
    unscaled, clips = _unscaled(o), _clips(o)
    default = REQUIRED if name == "AdamW" else None
    decay = None if core.decays else o.optional("weight_decay", default)
    tx = core.tx if not decay else decayed(core.tx, multiplied(rate, decay), leaves)
    if steps is None:
        clips = unscaled + clips
    tx = chain(*clips, tx) if clips else tx
    if steps is not None:  # Keras divides by the factor before it collects, and clips afterwards
        tx = accumulate(tx, steps)
        tx = chain(*unscaled, tx) if unscaled else tx
    average = _average(o, steps or 1)
    if average is not None:
        tx = chain(tx, average)
    constraints = _constraints(o.where, leaves, live)
    if constraints:
        tx = chain(tx, *constraints)
    o.finish()
    if values is None:
        return tx, lambda state: state
    slots = _slots(core, leaves or [], values, steps, average is not None)
    scalars = _counters(iteration, steps or 1) | slots.pop("", {})
    if "acc_grads" in slots:  # Keras keeps their sum, and we their mean
        count = max(iteration % (steps or 1), 1)
        slots["acc_grads"] = {path: g / count for path, g in slots["acc_grads"].items()}
    return tx, lambda state: filled(state, slots, scalars)


def _accumulation(o: Options) -> int | None:
    """How many batches each step is accumulated from; None for no accumulation."""
    if o.take("gradient_accumulation_steps", None) is None:
        return None
    steps = o.integer("gradient_accumulation_steps")
    if steps < 2:
        raise ValueError(f"{o.where}: gradient_accumulation_steps must be at least 2")
    return steps


def _iteration(o: Options, values: Arrays | None) -> int:
    """The number of batches so far, where the optimizer's variables are there."""
    if values is None:
        return 0
    return steps_taken(f"{o.where}: iteration", values.take("iteration", (), integer=True))


def _unscaled(o: Options) -> list[GradientTransformation]:
    """The division of gradients by the factor of the loss, if there is one."""
    factor = o.optional("loss_scale_factor")
    if factor == 0:
        raise ValueError(f"{o.where}: loss_scale_factor must not be 0")
    return [] if factor is None else [scale(1 / factor)]


def _clips(o: Options) -> list[GradientTransformation]:
    """The clip of gradients before the optimizer, if there is one."""
    clips: dict[str, Callable[[Any], GradientTransformation]] = {
        "clipnorm": clip_by_norm,
        "global_clipnorm": clip_by_global_norm,
        "clipvalue": clip,
    }
    limits = {key: o.optional(key) for key in clips}
    if sum(limit is not None for limit in limits.values()) > 1:
        raise ValueError(f"{o.where}: at most one of {', '.join(clips)} may be set")
    return [clips[key](limit) for key, limit in limits.items() if limit is not None and limit > 0]


def _counters(iteration: int, window: int) -> dict[str, Any]:
    """The counters of states after so many batches, in windows of some."""
    steps, batches = divmod(iteration, window)
    return {
        "count": steps,
        "gradient_step": steps,
        "mini_step": batches,
        "acc_weight": batches,
        # schedule-free learning counts from 1, and weighs all steps alike
        "step_count": steps + 1,
        "weight_sum": steps,
        "EmaParamsState.count": iteration,
    }


def _rate(o: Options, values: Arrays | None, steps: int | None, live: Any) -> Any:
    configured_rate = o.take("learning_rate")
    live_rate = as_schedule(getattr(live, "_learning_rate", None))
    if isinstance(live_rate, HostValue):
        return live_rate
    rate = learning_rate(o.where, configured_rate)
    if callable(rate):
        return rate if steps is None else stretch_schedule(rate, stride=steps, offset=steps - 1)
    if values is not None:  # the one in force, which may have been set since
        rate = finite(f"{o.where}: learning_rate", values.take("learning_rate", ()))
    return rate


def _decaying(where: str, leaves: list[Leaf] | None, live: Any) -> list[Leaf] | None:
    """The leaves, each marked by whether weight decay applies to it."""
    excludes = getattr(live, "_exclude_from_weight_decay", None)
    pattern = getattr(live, "_exclude_from_weight_decay_pattern", None)
    if not excludes and pattern is None:
        return leaves
    if leaves is None or not live.built:
        raise ValueError(
            f"{where}: variables are excluded from weight decay; build the optimizer and pass "
            "params, so that it can be said which"
        )
    variables = zip(leaves, live._trainable_variables, strict=True)
    return [leaf._replace(decays=live._use_weight_decay(v)) for leaf, v in variables]


# Keras's constraints, and the projections that they are.
_PROJECTIONS = {
    "MaxNorm": "max_norm",
    "MinMaxNorm": "min_max_norm",
    "NonNeg": "non_negative",
    "UnitNorm": "unit_norm",
}


def _constraints(where: str, leaves: list[Leaf] | None, live: Any) -> list[GradientTransformation]:
    """The projections that stand for the constraints of Keras's variables."""
    chosen: dict[tuple[str, Any], list[str]] = {}
    variables = getattr(live, "_trainable_variables", ())
    for leaf, v in zip(leaves or [], variables, strict=bool(leaves and variables)):
        constraint = getattr(v, "constraint", None)
        if constraint is None:
            continue
        name = type(constraint).__name__
        if name not in _PROJECTIONS or not type(constraint).__module__.startswith("keras."):
            raise ValueError(
                f"{where}: the constraint {name} of {leaf.name} is not known; there are "
                f"{', '.join(_PROJECTIONS)}. Remove it, and chain project(...) with a function "
                "after what this returns"
            )
        options = Options(f"{where}: {name}", constraint.get_config())
        arguments = tuple((key, _argument(options, key)) for key in options.values)
        chosen.setdefault((_PROJECTIONS[name], arguments), []).append(literal(leaf.path))
    return [project(name, paths, dict(arguments)) for (name, arguments), paths in chosen.items()]


def _argument(o: Options, key: str) -> Any:
    value = o.take(key)
    if key != "axis":
        return finite(f"{o.where}: {key}", value)
    return tuple(value) if isinstance(value, list | tuple) else value


def _average(o: Options, window: int) -> GradientTransformation | None:
    momentum = o.number("ema_momentum", 0.99)
    every = o.take("ema_overwrite_frequency", None)
    if every is not None:
        every = o.integer("ema_overwrite_frequency")
    if not o.flag("use_ema", False):
        return None
    # The average starts as the parameters after the first window.
    start = constant_schedule(0.0)
    return ema_params(
        join_schedules([start, constant_schedule(momentum)], [window]),
        overwrite_every=every or None,
        window=window,
        every_leaf=True,
    )


def _slots(
    core: KerasCore, leaves: list[Leaf], values: Arrays, steps: int | None, average: bool
) -> dict[str, dict[str, Any]]:
    """The optimizer's variables by slot and path, taken in the order in which Keras makes them."""
    slots: dict[str, dict[str, Any]] = {}

    def take(slot: str | None, leaf: Leaf, shape: tuple[int, ...], integer: bool = False) -> None:
        sign = -1 if slot is not None and slot.startswith("-") else 1
        bare = "a placeholder" if slot is None else slot.removeprefix("-")
        value = values.take(f"{bare} of {leaf.name}", shape, integer)
        if slot is not None:
            slots.setdefault(bare, {})[leaf.path] = sign * value

    before = ([["average"]] if average else []) + ([["acc_grads"]] if steps else [])
    for group in (*before, *core.slots):
        for leaf in leaves:
            for name in group:
                take(name, leaf, leaf.shape)
    if core.layout is not None:
        for leaf in leaves:
            for slot, shape in core.layout(leaf):
                take(slot, leaf, shape, integer=slot is None and shape == ())
    if core.scalar is not None and leaves:
        slots[""] = {core.scalar: values.take(core.scalar, ())}
    return slots
