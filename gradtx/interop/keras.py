"""From Keras: an optimizer, or its configuration, as a transformation that continues from it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gradtx.checkpoint.config import check_depth
from gradtx.composition.groups import partition
from gradtx.core.pair import GradientTransformation
from gradtx.interop import expressions
from gradtx.interop.keras_base import Fill, single
from gradtx.interop.keras_legacy import is_legacy, legacy
from gradtx.interop.keras_optimizers import CORES
from gradtx.interop.reading import Arrays, Leaf, Options, arrays, filled, literal, ordered
from gradtx.types import Params, State
from gradtx.wrappers.loss_scaling import DynamicLossScaleState, dynamic_loss_scale


def from_keras(
    source: Any,
    params: Params | None = None,
    variables: Any = None,
    *,
    class_name: str | None = None,
    order: Sequence[str] | None = None,
) -> Any:
    """A Keras optimizer as a transformation with Keras's own formulas.

    Args:
        source: the optimizer; or the result of ``keras.optimizers.serialize``, perhaps through
            JSON; or that of its ``get_config``, with `class_name`.
        params: the parameters, to continue from the optimizer's state: the values of its variables,
            in a tree of any structure.
        variables: the optimizer's variables in their order, as arrays, or as a mapping from
            ``"0"``, ``"1"``, ... as in a saved ``.keras`` file; those of `source` by default.
            Without any, the state is new.
        class_name: which optimizer a bare ``get_config`` dict belongs to.
        order: the paths of the leaves of `params` in the order of Keras's variables
            (``["dense/kernel", "dense/bias"]``). By default leaves are found by the paths of
            the variables of `source`; without these they are taken in the order of the tree, if no
            two have the same shape. A list of arrays is in the right order by itself.

    Returns:
        The transformation; with `params`, a pair of the transformation and its state.

    Raises:
        ValueError: an unknown class, an unknown or missing option, a value out of range, variables
            of the wrong number or shape, leaves that cannot be told apart, a constraint of your
            own.
        TypeError: a value of the wrong type.

    Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, Ftrl, Lamb, Lion, Muon, Nadam, RMSprop, SGD
    and ScheduleFreeAdamW are supported, with every option of the base class, and LossScaleOptimizer
    and MultiOptimizer around them. A learning rate that is a function without arguments is taken
    from the optimizer itself, since a configuration has only its name. Nothing in a configuration
    is imported or evaluated, and a pattern that might take long to match, such as one with a
    repetition inside of another, is refused.

    The optimizers of TensorFlow before 2.11 (OptimizerV2, ``tf.keras.optimizers.legacy``) are
    recognized by the options that only they have, such as ``decay`` or ``lr``, and keep their own
    formulas; `variables` are then the result of their ``get_weights``.

    When Keras accumulates gradients, its schedules count micro-batches, and its moving average of
    the weights moves with each of them. The same happens here.

    Constraints of the variables become :func:`project`, whose norms have no epsilon, and which
    gives equal entries to a zero vector that must have a norm. Constraints, and the arguments of
    ``exclude_from_weight_decay``, are known to the optimizer only, not to its configuration.

    In both, a gradient of `None` leaves a parameter and its slots as they are, and the step counts
    for all parameters. With ``use_ema`` Keras still moves the average of such a parameter, and so
    does ``tx.update(grads, state, params)``; :func:`apply_gradients` does not show such parameters
    to the optimizer, and raises an error. With accumulation, a parameter without a gradient in
    the last micro-batch of a window does not move, in Keras either. Keras on JAX adds what was
    collected to the next window; on PyTorch it is left out, as here.

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
        if variables is None and live is not None:
            variables = _weights(live, is_legacy(config))
        names = None if trained is None else [str(v.path) for v in trained]
        shapes = None if trained is None else [tuple(v.shape) for v in trained]
        leaves = ordered(params, order, names, shapes, matters=variables is not None)
        values = None if variables is None else Arrays(where, variables)
    elif variables is not None or order is not None:
        raise ValueError(f"{where}: variables and order need the parameters: pass params")
    tx, fill = _optimizer(name, config, leaves, values, live)
    if values is not None:
        values.finish()
    return tx if params is None else (tx, fill(tx.init(arrays(params))))


def _read(source: Any, class_name: str | None) -> tuple[str, Any, Any]:
    """The optimizer's class name, its options, and the live optimizer if that was given."""
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


def _weights(live: Any, old: bool) -> Any:
    """The arrays of a Keras optimizer; None before the optimizer has been built."""
    if old:
        return live.get_weights() or None
    return [v.value for v in live.variables] if live.built else None


def _optimizer(
    name: str, config: Any, leaves: list[Leaf] | None, values: Arrays | None, live: Any
) -> tuple[GradientTransformation, Fill]:
    if is_legacy(config):
        return legacy(name, config, leaves, values)
    if name == "LossScaleOptimizer":
        return _loss_scaled(config, leaves, values, live)
    if name == "MultiOptimizer":
        return _several(config, leaves, values, live)
    return single(name, config, leaves, values, live)


# Older models have these options of the base class in a LossScaleOptimizer too, where Keras
# takes them with these values alone.
_OF_THE_BASE = {
    "weight_decay": None,
    "clipnorm": None,
    "global_clipnorm": None,
    "clipvalue": None,
    "use_ema": False,
    "ema_momentum": 0.99,
    "ema_overwrite_frequency": None,
    "loss_scale_factor": None,
    "gradient_accumulation_steps": None,
}


def _loss_scaled(
    config: Any, leaves: list[Leaf] | None, values: Arrays | None, live: Any
) -> tuple[GradientTransformation, Fill]:
    o = Options("from_keras: LossScaleOptimizer", config)
    o.skip("name", *(key for key, value in _OF_THE_BASE.items() if o.values.get(key) == value))
    start, period = o.number("initial_scale"), o.integer("dynamic_growth_steps")
    inner = o.take("inner_optimizer")
    o.finish()
    scalars: dict[str, Any] = {}
    if values is not None:
        values.take("iteration", (), integer=True)
        values.take("learning_rate", ())
        scalars["counter"] = values.take("step_counter", (), integer=True)
        scalars["loss_scale"] = values.take("dynamic_scale", ())
    name, inner, _ = _read(inner, None)
    if name in ("LossScaleOptimizer", "MultiOptimizer"):
        raise ValueError(f"{o.where}: the inner optimizer may not be a {name}")
    # Loss scaling of the inner one is off, as in Keras.
    inner = Options(o.where, inner).values
    inner = {**inner, "loss_scale_factor": None}
    tx, fill = single(name, inner, leaves, values, getattr(live, "inner_optimizer", None))
    wrapped = dynamic_loss_scale(tx, start, period, min_loss_scale=0.0)
    if values is None:
        return wrapped, lambda state: state

    def fill_all(state: DynamicLossScaleState) -> State:
        return filled(state._replace(inner_state=()), {}, scalars)._replace(
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
        first_labels = {
            k: first.setdefault(id(each), k) for k, each in zip(groups, lives, strict=True)
        }
        labels = [first_labels[label] for label in labels]
        groups = {label: groups[label] for label in first.values()}
        lives = live._inner_optimizers
    optimizers: dict[str, tuple[GradientTransformation, Fill]] = {}
    for (label, each), optimizer in zip(groups.items(), lives, strict=True):
        name, inner, _ = _read(each, None)
        if name not in CORES:
            raise ValueError(f"{o.where}: a {name} may not be inside it")
        inner = {**Options(o.where, inner).values, "loss_scale_factor": factor}
        mine = [
            leaf for leaf, leaf_label in zip(leaves, labels, strict=True) if leaf_label == label
        ]
        optimizers[label] = single(name, inner, mine, values, optimizer)
    pairs = [
        (literal(leaf.path), leaf_label) for leaf, leaf_label in zip(leaves, labels, strict=True)
    ]
    tx = partition({label: each for label, (each, _) in optimizers.items()}, pairs)

    def fill_all(state: Any) -> State:
        return type(state)(
            {
                label: type(part)(optimizers[label][1](part.inner_state))
                for label, part in state.inner_states.items()
            }
        )

    return tx, fill_all


def _route(where: str, patterns: list[str], name: str) -> str:
    """The pattern that a variable's path matches, an exact one first, as OptimizerMap does."""
    if name in patterns:
        return name
    try:
        matching = [p for p in patterns if expressions.fullmatch(p, name)]
    except re.error as error:
        raise ValueError(f"{where}: the pattern {error}") from None
    if len(matching) > 1:
        raise ValueError(f"{where}: {name!r} matches several patterns: {matching}")
    return matching[0] if matching else "default"
