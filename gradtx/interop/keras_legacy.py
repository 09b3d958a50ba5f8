"""OptimizerV2, the optimizers of tf.keras before 2.11 and of its ``legacy`` module."""

from collections.abc import Callable, Mapping
from typing import Any

from gradtx.composition.chain import chain
from gradtx.core.pair import GradientTransformation
from gradtx.interop.keras_base import Fill
from gradtx.interop.keras_optimizers import CORES, KerasCore
from gradtx.interop.keras_schedules import learning_rate
from gradtx.interop.reading import Arrays, Leaf, Options, filled, steps_taken
from gradtx.optimizers.adagrad import adagrad
from gradtx.optimizers.nadam import nadam
from gradtx.optimizers.rmsprop import rmsprop
from gradtx.schedules.decay import inverse_time_decay
from gradtx.schedules.products import multiply_schedules
from gradtx.transforms.clipping import clip, clip_by_global_norm, clip_by_norm

_OLD_NAMES = {"lr": "learning_rate", "schedule_decay": "decay"}
# Options that came later, with values for the formulas before them.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "Adagrad": {"initial_accumulator_value": 0.0},
    "Adam": {"amsgrad": False},
    "Ftrl": {"l2_shrinkage_regularization_strength": 0.0, "beta": 0.0},
    "RMSprop": {"momentum": 0.0, "centered": False},
}
_CLASSES = ("SGD", "Adam", "Adagrad", "RMSprop", "Adadelta", "Adamax", "Nadam", "Ftrl")


def is_legacy(config: Any) -> bool:
    """Whether a configuration is one of OptimizerV2, as its class or an option shows."""
    if not isinstance(config, Mapping):
        return False
    said = config.get("is_legacy_optimizer")
    if said is not None:
        return said is True
    return "use_ema" not in config and any(key in config for key in ("decay", *_OLD_NAMES))


def legacy(
    name: str, config: Mapping[str, Any], leaves: list[Leaf] | None, values: Arrays | None
) -> tuple[GradientTransformation, Fill]:
    """The optimizer with OptimizerV2's formulas, and the function that fills a state from weights.

    Raises:
        ValueError: OptimizerV2 had no such class; an option is unknown, missing, or out of range.
        TypeError: a value is of the wrong type.
    """
    where = f"from_keras: {name} of OptimizerV2"
    if name not in _CLASSES:
        raise ValueError(f"{where} is not known; there are {', '.join(_CLASSES)}")
    renamed = {_OLD_NAMES.get(key, key): value for key, value in config.items()}
    o = Options(where, {**_DEFAULTS.get(name, {}), **renamed})
    o.skip("name", "is_legacy_optimizer")
    count = 0
    if values is not None:
        count = steps_taken(f"{where}: iteration", values.take("iteration", (), integer=True))
    rate = learning_rate(where, o.take("learning_rate"))
    if name != "Nadam":
        rate = _decaying(rate, o.number("decay", 0.0))
    core = _CORES.get(name, CORES[name])(o, rate, leaves)
    clips: dict[str, Callable[[Any], GradientTransformation]] = {
        "clipvalue": clip,
        "clipnorm": clip_by_norm,
        "global_clipnorm": clip_by_global_norm,
    }
    limits = {key: o.optional(key) for key in clips}
    links = [clips[key](limit) for key, limit in limits.items() if limit is not None]
    o.finish()
    tx = chain(*links, core.tx) if links else core.tx
    if values is None:
        return tx, lambda state: state
    scalars: dict[str, Any] = {"count": count}
    if core.scalar is not None:
        scalars[core.scalar] = values.take(core.scalar, ())
    # One slot of all variables after the other, except for Ftrl, which has both of each together.
    single_slots = [[slot] for group in core.slots for slot in group]
    slots: dict[str, dict[str, Any]] = {}
    for group in core.slots if name == "Ftrl" else single_slots:
        for leaf in leaves or []:
            for slot in group:
                bare, sign = slot.removeprefix("-"), -1 if slot.startswith("-") else 1
                value = values.take(f"{bare} of {leaf.name}", leaf.shape)
                slots.setdefault(bare, {})[leaf.path] = sign * value
    return tx, lambda state: filled(state, slots, scalars)


def _decaying(rate: Any, decay: float) -> Any:
    if decay == 0:
        return rate
    if callable(rate):
        return multiply_schedules(rate, inverse_time_decay(1.0, 1, decay))
    return inverse_time_decay(rate, 1, decay)


def _adagrad(o: Options, rate: Any, leaves: list[Leaf] | None) -> KerasCore:
    start, eps = o.number("initial_accumulator_value"), o.number("epsilon")
    return KerasCore(adagrad(rate, start, eps, eps_in_sqrt=False), [["sum_of_squares"]])


def _rmsprop(o: Options, rate: Any, leaves: list[Leaf] | None) -> KerasCore:
    rho, eps, momentum = o.number("rho"), o.number("epsilon"), o.number("momentum")
    centered, moves = o.flag("centered"), momentum > 0
    tx = rmsprop(
        rate,
        rho,
        eps,
        eps_in_sqrt=moves,  # the kernel with momentum differs
        centered=centered,
        momentum=momentum if moves else None,
    )
    return KerasCore(
        tx, [["nu"], *([["-trace"]] if moves else []), *([["mu"]] if centered else [])]
    )


def _nadam(o: Options, rate: Any, leaves: list[Leaf] | None) -> KerasCore:
    b1, b2, eps = o.number("beta_1"), o.number("beta_2"), o.number("epsilon")
    tx = nadam(rate, b1, b2, eps, momentum_decay=o.number("decay"))
    return KerasCore(tx, [["mu", "nu"]], scalar="momentum_product")


_CORES: dict[str, Callable[[Options, Any, list[Leaf] | None], KerasCore]] = {
    "Adagrad": _adagrad,
    "Nadam": _nadam,
    "RMSprop": _rmsprop,
}
