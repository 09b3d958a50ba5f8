"""From Keras: an optimizer, or its configuration, as a transformation that goes on from it."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradtx.compose import chain
from gradtx.config import check_depth
from gradtx.current import Current, current
from gradtx.groups import partition
from gradtx.interop.keras_optimizers import CORES, Core
from gradtx.interop.keras_schedules import learning_rate
from gradtx.interop.reading import (
    Arrays,
    Leaf,
    Options,
    arrays,
    filled,
    finite,
    literal,
    multiplied,
    ordered,
    steps_taken,
)
from gradtx.pair import GradientTransformation
from gradtx.schedules.decay import constant_schedule
from gradtx.schedules.piecewise import join_schedules
from gradtx.schedules.products import stretch_schedule
from gradtx.transforms.clipping import clip, clip_by_global_norm, clip_by_norm
from gradtx.transforms.scaling import scale
from gradtx.types import Params, State
from gradtx.wrappers.accumulation import accumulate
from gradtx.wrappers.averaging import ema_params
from gradtx.wrappers.loss_scaling import DynamicLossScaleState, dynamic_loss_scale
from gradtx.wrappers.predecay import decay_first

Fill = Callable[[State], State]


def from_keras(
    source: Any,
    params: Params | None = None,
    variables: Any = None,
    *,
    class_name: str | None = None,
    order: Sequence[str] | None = None,
) -> Any:
    """A Keras 3 optimizer as a transformation with Keras's own formulas.

    Args:
        source: the optimizer; or what ``keras.optimizers.serialize`` returned, perhaps through
            JSON; or what its ``get_config`` returned, with `class_name`.
        params: the parameters, to go on with the optimizer's state: the values of its variables,
            in a tree of any structure.
        variables: the optimizer's variables in their order, as arrays, or as a mapping from
            ``"0"``, ``"1"``, ... as in a saved ``.keras`` file; those of `source` unless given.
            Without any, the state is a new one.
        class_name: which optimizer a bare ``get_config`` dict belongs to.
        order: the paths of the leaves of `params` in the order of Keras's variables
            (``["dense/kernel", "dense/bias"]``); that of the tree unless given. A list of arrays
            has it right.

    Returns:
        The transformation; with `params` a pair of it and its state.

    Raises:
        ValueError: an unknown class, an unknown or missing option, a value out of range, variables
            of the wrong number or shape.
        TypeError: a value of the wrong type.

    Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, Ftrl, Lamb, Lion, Muon, Nadam, RMSprop, SGD
    and ScheduleFreeAdamW are known, and LossScaleOptimizer and MultiOptimizer around them, with
    every option of the base class. A learning rate that is a function of nothing is taken from the
    optimizer itself; a configuration has only its name. Nothing in a configuration is imported or
    evaluated.

    Keras takes the steps of a schedule from the count of micro-batches when it accumulates
    gradients, and its moving average of the weights moves at every micro-batch; so does this.

    >>> from_keras(
    ...     {
    ...         "class_name": "SGD",
    ...         "config": {
    ...             "learning_rate": 0.1,
    ...             "momentum": 0.0,
    ...             "nesterov": False,
    ...             "clipvalue": 1.0,
    ...         },
    ...     }
    ... )
    chain(clip(max_delta=1.0), sgd(learning_rate=0.1))
    """
    check_depth("from_keras", source)
    name, config, live = _read(source, class_name)
    where = f"from_keras: {name}"
    leaves = None
    values = None
    if params is not None:
        trained = getattr(live, "_trainable_variables", None) or None
        leaves = ordered(params, order, None if trained is None else [v.path for v in trained])
        for leaf, v in zip(leaves, trained or (), strict=bool(trained)):
            if tuple(v.shape) != leaf.shape:
                raise ValueError(
                    f"{where}: the variable {v.path} has the shape {tuple(v.shape)}, and the leaf "
                    f"{leaf.path!r} {leaf.shape}; give their order"
                )
        if variables is None and live is not None and live.built:
            variables = [v.value for v in live.variables]
        values = None if variables is None else Arrays(where, variables)
    elif variables is not None or order is not None:
        raise ValueError(f"{where}: variables and order need the parameters: pass params")
    tx, fill = _optimizer(name, config, leaves, values, live)
    if values is not None:
        values.finish()
    return tx if params is None else (tx, fill(tx.init(arrays(params))))


def _read(source: Any, class_name: str | None) -> tuple[str, Any, Any]:
    """The name of the class, the options, and the optimizer if it is one."""
    live = None
    if hasattr(source, "get_config") and hasattr(source, "variables"):
        live, class_name, source = source, type(source).__name__, source.get_config()
    if not isinstance(source, Mapping):
        raise TypeError(
            f"from_keras takes an optimizer or its configuration, not {type(source).__name__}"
        )
    if "class_name" in source:
        class_name, source = source["class_name"], source.get("config")
    if class_name is None:
        raise ValueError(
            "from_keras: a configuration without 'class_name' does not say of which optimizer it "
            "is: pass class_name, or what keras.optimizers.serialize returns"
        )
    if not isinstance(class_name, str):
        raise TypeError(f"from_keras: class_name must be a string, not {class_name!r:.80}")
    known = {key.lower(): key for key in (*CORES, "LossScaleOptimizer", "MultiOptimizer")}
    if class_name.lower() not in known:
        raise ValueError(
            f"from_keras: the optimizer {class_name!r:.80} is not known; there are "
            f"{', '.join(known.values())}"
        )
    return known[class_name.lower()], source, live


def _optimizer(
    name: str, config: Any, leaves: list[Leaf] | None, values: Arrays | None, live: Any
) -> tuple[GradientTransformation, Fill]:
    if name == "LossScaleOptimizer":
        return _loss_scaled(config, leaves, values, live)
    if name == "MultiOptimizer":
        return _several(config, leaves, values, live)
    return _single(name, config, leaves, values, live)


def _single(
    name: str, config: Any, leaves: list[Leaf] | None, values: Arrays | None, live: Any
) -> tuple[GradientTransformation, Fill]:
    o = Options(f"from_keras: {name}", config)
    o.skip("name", "jit_compile")
    steps = o.take("gradient_accumulation_steps", None)
    if steps is not None:
        steps = o.integer("gradient_accumulation_steps")
        if steps < 2:
            raise ValueError(f"{o.where}: gradient_accumulation_steps must be at least 2")
    raw = (
        0
        if values is None
        else steps_taken(f"{o.where}: iteration", values.take("iteration", (), integer=True))
    )
    rate = _rate(o, values, steps, live)
    core = CORES[name](o, rate, leaves)

    links = []
    factor = o.optional("loss_scale_factor")
    if factor is not None:
        if factor == 0:
            raise ValueError(f"{o.where}: loss_scale_factor must not be 0")
        links.append(scale(1 / factor))
    clips = {
        "clipnorm": clip_by_norm,
        "global_clipnorm": clip_by_global_norm,
        "clipvalue": clip,
    }
    limits = {key: o.optional(key) for key in clips}
    if sum(limit is not None for limit in limits.values()) > 1:
        raise ValueError(f"{o.where}: at most one of {', '.join(clips)} may be set")
    links += [clips[key](limit) for key, limit in limits.items() if limit is not None and limit > 0]
    tx = core.tx
    decay = None if core.decays else o.optional("weight_decay")
    if decay:
        tx = decay_first(tx, multiplied(rate, decay), _decaying(o.where, leaves, live))
    tx = tx if not links else chain(*links, tx)
    if steps is not None:
        tx = accumulate(tx, steps)
    average = _average(o, steps or 1)
    if average is not None:
        tx = chain(tx, average)
    o.finish()
    if values is None:
        return tx, lambda state: state
    given = _taken(core, leaves or [], values, steps, average is not None)
    window = steps or 1
    scalars = {
        "count": raw // window,
        "gradient_step": raw // window,
        "mini_step": raw % window,
        "acc_weight": raw % window,
        # schedule-free learning counts from 1, and weighs all steps alike
        "step_count": raw // window + 1,
        "weight_sum": raw // window,
        "EmaParamsState.count": raw,
        **given.pop("", {}),
    }
    if "acc_grads" in given:  # Keras keeps their sum, and we their mean
        given["acc_grads"] = {k: v / max(raw % window, 1) for k, v in given["acc_grads"].items()}
    return tx, lambda state: filled(state, given, scalars)


def _rate(o: Options, values: Arrays | None, steps: int | None, live: Any) -> Any:
    given = o.take("learning_rate")
    own = current(getattr(live, "_learning_rate", None))
    if isinstance(own, Current):
        return own
    rate = learning_rate(o.where, given)
    if callable(rate):
        return rate if steps is None else stretch_schedule(rate, stride=steps, offset=steps - 1)
    if values is not None:  # the one in force, which may have been set since
        rate = finite(f"{o.where}: learning_rate", values.take("learning_rate", ()))
    return rate


def _decaying(where: str, leaves: list[Leaf] | None, live: Any) -> list[str] | None:
    """Patterns of the leaves that decay, None for all of them."""
    excludes = getattr(live, "_exclude_from_weight_decay", None)
    pattern = getattr(live, "_exclude_from_weight_decay_pattern", None)
    if not excludes and pattern is None:
        return None
    if leaves is None or not live.built:
        raise ValueError(
            f"{where}: variables are excluded from weight decay; build the optimizer and pass "
            "params, so that it can be said which"
        )
    variables = zip(leaves, live._trainable_variables, strict=True)
    return [literal(leaf.path) for leaf, v in variables if live._use_weight_decay(v)]


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
    )


def _taken(
    core: Core, leaves: list[Leaf], values: Arrays, steps: int | None, average: bool
) -> dict[str, dict[str, Any]]:
    """The variables by slot and path, in the order in which Keras makes them."""
    given: dict[str, dict[str, Any]] = {}

    def take(slot: str | None, leaf: Leaf, shape: tuple[int, ...], integer: bool = False) -> None:
        sign = -1 if slot is not None and slot.startswith("-") else 1
        bare = "a placeholder" if slot is None else slot.removeprefix("-")
        value = values.take(f"{bare} of {leaf.name}", shape, integer)
        if slot is not None:
            given.setdefault(bare, {})[leaf.path] = sign * value

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
        given[""] = {core.scalar: values.take(core.scalar, ())}
    return given


def _loss_scaled(
    config: Any, leaves: list[Leaf] | None, values: Arrays | None, live: Any
) -> tuple[GradientTransformation, Fill]:
    o = Options("from_keras: LossScaleOptimizer", config)
    o.skip("name")
    start, period = o.number("initial_scale"), o.integer("dynamic_growth_steps")
    inner = o.take("inner_optimizer")
    o.finish()
    found: dict[str, Any] = {}
    if values is not None:
        values.take("iteration", (), integer=True)
        values.take("learning_rate", ())
        found["counter"] = values.take("step_counter", (), integer=True)
        found["loss_scale"] = values.take("dynamic_scale", ())
    name, inner, _ = _read(inner, None)
    if name in ("LossScaleOptimizer", "MultiOptimizer"):
        raise ValueError(f"{o.where}: the inner optimizer may not be a {name}")
    # Loss scaling of the inner one is off, as in Keras.
    inner = Options(o.where, inner).values
    inner = {**inner, "loss_scale_factor": None}
    tx, fill = _single(name, inner, leaves, values, getattr(live, "inner_optimizer", None))
    wrapped = dynamic_loss_scale(tx, start, period, min_loss_scale=0.0)
    if values is None:
        return wrapped, lambda state: state

    def fill_all(state: DynamicLossScaleState) -> State:
        return filled(state._replace(inner_state=()), {}, found)._replace(
            inner_state=fill(state.inner_state)
        )

    return wrapped, fill_all


def _several(
    config: Any, leaves: list[Leaf] | None, values: Arrays | None, live: Any
) -> tuple[GradientTransformation, Fill]:
    o = Options("from_keras: MultiOptimizer", config)
    o.skip("name")
    factor = o.optional("loss_scale_factor")
    routes = Options(o.where, o.take("optimizer_map"))
    o.finish()
    if routes.take("class_name") != "OptimizerMap":
        raise ValueError(f"{o.where}: optimizer_map must be an OptimizerMap")
    routes = Options(f"{o.where}: optimizer_map", routes.take("config"))
    default = routes.take("default_optimizer")
    by_pattern = routes.take("optimizer_map")
    if not isinstance(by_pattern, Mapping):
        raise TypeError(f"{routes.where} must be a dict, not {type(by_pattern).__name__}")
    routes.finish()
    if leaves is None:
        raise ValueError(f"{o.where}: its groups depend on the parameters: pass params")
    labels = [_route(o.where, list(map(str, by_pattern)), leaf.name) for leaf in leaves]
    if values is not None:
        values.take("iteration", (), integer=True)
        values.take("learning_rate", ())
    groups = {**{str(k): v for k, v in by_pattern.items()}, "default": default}
    lives: Sequence[Any] = [None] * len(groups)
    if live is not None:  # one optimizer may stand under several patterns; a configuration has two
        routed = live._optimizer_map
        lives = [*routed.values(), routed.default_optimizer]
        first: dict[int, str] = {}
        own = {k: first.setdefault(id(each), k) for k, each in zip(groups, lives, strict=True)}
        labels = [own[label] for label in labels]
        groups = {label: groups[label] for label in first.values()}
        lives = live._inner_optimizers
    made: dict[str, tuple[GradientTransformation, Fill]] = {}
    for (label, each), optimizer in zip(groups.items(), lives, strict=True):
        name, inner, _ = _read(each, None)
        if name not in CORES:
            raise ValueError(f"{o.where}: a {name} may not be inside it")
        inner = {**Options(o.where, inner).values, "loss_scale_factor": factor}
        mine = [leaf for leaf, own in zip(leaves, labels, strict=True) if own == label]
        made[label] = _single(name, inner, mine, values, optimizer)
    pairs = [(literal(leaf.path), own) for leaf, own in zip(leaves, labels, strict=True)]
    tx = partition({label: each for label, (each, _) in made.items()}, pairs)

    def fill_all(state: Any) -> State:
        return type(state)(
            {
                label: type(part)(made[label][1](part.inner_state))
                for label, part in state.inner_states.items()
            }
        )

    return tx, fill_all


def _route(where: str, patterns: list[str], name: str) -> str:
    """The pattern that a variable's path matches, an exact one first, as OptimizerMap does."""
    if name in patterns:
        return name
    try:
        matching = [p for p in patterns if re.fullmatch(p, name)]
    except re.error as error:
        raise ValueError(f"{where}: a pattern is no regular expression: {error}") from None
    if len(matching) > 1:
        raise ValueError(f"{where}: {name!r} matches several patterns: {matching}")
    return matching[0] if matching else "default"
