"""From PyTorch: an optimizer with its state as a transformation that goes on from it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradtx.compose import chain, identity
from gradtx.groups import partition
from gradtx.interop.reading import Leaf, Options, array, arrays, filled, finite, literal, ordered
from gradtx.optimizers.adadelta import adadelta
from gradtx.optimizers.adafactor import scale_by_factored_rms
from gradtx.optimizers.adagrad import adagrad
from gradtx.optimizers.adam import adam, scale_by_adam
from gradtx.optimizers.adamax import adamax
from gradtx.optimizers.amsgrad import scale_by_amsgrad
from gradtx.optimizers.asgd import asgd
from gradtx.optimizers.muon import MuonDimensionNumbers
from gradtx.optimizers.nadam import scale_by_nadam
from gradtx.optimizers.orthogonalize import orthogonalize, scale_by_shape
from gradtx.optimizers.radam import scale_by_radam
from gradtx.optimizers.rmsprop import scale_by_rms, scale_by_stddev
from gradtx.optimizers.rprop import rprop
from gradtx.optimizers.sgd import sgd
from gradtx.pair import GradientTransformation
from gradtx.schedules.decay import relative_step_schedule
from gradtx.transforms.averaging import trace
from gradtx.transforms.clipping import clip_by_block_rms
from gradtx.transforms.decay import add_decayed_weights
from gradtx.transforms.scaling import scale, scale_by_learning_rate
from gradtx.transforms.trust import scale_by_param_block_rms
from gradtx.types import Params, State

_EXECUTION = ("foreach", "capturable", "differentiable", "fused", "initial_lr", "param_names")


def from_torch(
    source: Any,
    params: Params,
    *,
    class_name: str | None = None,
    order: Sequence[str] | None = None,
) -> tuple[GradientTransformation, State]:
    r"""A PyTorch optimizer as a transformation with PyTorch's own formulas, and its state.

    Args:
        source: the optimizer, or its ``state_dict()`` with `class_name`.
        params: the parameters, in a tree of any structure.
        class_name: which optimizer a state dict belongs to, ``"AdamW"``.
        order: the paths of the leaves of `params` in the order of the optimizer's parameters, group
            after group (``["0.weight", "0.bias"]`` for a flat dict of such names); that of the tree
            unless given. A list of arrays has it right.

    Returns:
        The transformation and its state. Several parameter groups become a :func:`partition` with
        the labels ``"0"``, ``"1"``, ...

    Raises:
        ValueError: an unknown class, an unknown or missing option, a value out of range, a state
            of other shapes, parameters of one group that have taken different numbers of steps.
        TypeError: a value of the wrong type.

    Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, ASGD, Muon, NAdam, RAdam, RMSprop, Rprop, SGD
    and SparseAdam (for gradients that are `Rows`) are known, with `maximize` and both kinds of
    weight decay; a scheduler is not part of an optimizer: pass a schedule to :func:`replace`. A
    parameter that has had no gradient so far has no state there, and new slots here.

    PyTorch's Muon iterates in bfloat16, this in float32; and Adafactor adds :math:`\epsilon_1^2`
    to the squares instead of bounding their mean by it.

    >>> state = {
    ...     "state": {},
    ...     "param_groups": [
    ...         {
    ...             "params": [0],
    ...             "lr": 0.1,
    ...             "momentum": 0.9,
    ...             "dampening": 0,
    ...             "weight_decay": 0,
    ...             "nesterov": False,
    ...             "maximize": False,
    ...         }
    ...     ],
    ... }
    >>> from_torch(state, [np.zeros(2)], class_name="SGD")[0]
    sgd(learning_rate=0.1, momentum=0.9)
    """
    if hasattr(source, "param_groups") and hasattr(source, "state_dict"):
        class_name, source = type(source).__name__, source.state_dict()
    if not isinstance(source, Mapping):
        raise TypeError(f"from_torch takes an optimizer or its state dict, not {source!r:.80}")
    if not isinstance(class_name, str):
        raise ValueError(
            "from_torch: a state dict does not say of which optimizer it is: pass class_name"
        )
    if class_name not in _CORES:
        raise ValueError(
            f"from_torch: the optimizer {class_name!r:.80} is not known; there are "
            f"{', '.join(_CORES)}"
        )
    where = f"from_torch: {class_name}"
    o = Options(where, source)
    groups, states = o.take("param_groups"), o.take("state")
    o.finish()
    if not isinstance(groups, list) or not groups or not isinstance(states, Mapping):
        raise TypeError(f"{where}: param_groups must be a list and state a dict")
    leaves = ordered(params, order, None)
    made = []
    labels: list[tuple[str, str]] = []
    rest = list(leaves)
    for i, group in enumerate(groups):
        options = Options(f"{where}, group {i}" if len(groups) > 1 else where, group)
        indices = options.take("params")
        if not isinstance(indices, list | tuple):
            raise TypeError(f"{options.where}: params must be a list, not {indices!r:.80}")
        mine, rest = rest[: len(indices)], rest[len(indices) :]
        if len(mine) < len(indices):
            break
        tx, core = _group(class_name, options)
        labels += [(literal(leaf.path), str(i)) for leaf in mine]
        held = [states.get(index, states.get(str(index))) for index in indices]
        made.append((tx, _taken(options.where, core, mine, held)))
    total = sum(len(group.get("params", ())) for group in groups if isinstance(group, Mapping))
    if rest or total != len(leaves):
        raise ValueError(f"{where}: it has {total} parameters, and there are {len(leaves)} leaves")
    if len(made) == 1:
        tx, given = made[0]
        return tx, filled(tx.init(arrays(params)), *given)
    whole = partition({str(i): tx for i, (tx, _) in enumerate(made)}, labels)
    state: Any = whole.init(arrays(params))
    parts = {k: filled(part, *made[int(k)][1]) for k, part in state.inner_states.items()}
    return whole, type(state)(parts)


class _Core(NamedTuple):
    """tx: gradients, weights decayed, to updates; slots: ours by theirs, with how one is the other.

    scalars: likewise for numbers.
    """

    tx: GradientTransformation
    slots: Mapping[str, Any]
    scalars: Mapping[str, str] = {}


def _group(name: str, o: Options) -> tuple[GradientTransformation, _Core]:
    o.skip(*_EXECUTION)
    rate = o.number("lr")
    core = _CORES[name](o, rate)
    sign = [scale(-1.0)] if o.flag("maximize", False) else []
    # Most add weight decay to the gradient; what does otherwise has taken the option.
    decay = o.number("weight_decay") if o.is_unread("weight_decay") else 0.0
    links = [*sign, *([add_decayed_weights(decay)] if decay else [])]
    o.finish()
    return (chain(*links, core.tx) if links else core.tx), core


def _taken(
    where: str, core: _Core, leaves: list[Leaf], states: list[Any]
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    slots: dict[str, dict[str, Any]] = {}
    steps: dict[str, float] = {}
    scalars: dict[str, Any] = {}
    for leaf, held in zip(leaves, states, strict=True):
        if not held:
            continue
        if not isinstance(held, Mapping):
            raise TypeError(f"{where}: the state of {leaf.path!r} must be a dict, not {held!r:.80}")
        steps[leaf.path] = finite(f"{where}: step of {leaf.path!r}", held.get("step", 1))
        for theirs, ours in core.slots.items():
            ours, convert = ours if isinstance(ours, tuple) else (ours, None)
            value = held.get(theirs)
            if value is None:
                continue
            found = array(f"{where}: {theirs} of {leaf.path!r}", value)
            slots.setdefault(ours, {})[leaf.path] = found if convert is None else convert(found)
        for theirs, ours in core.scalars.items():
            scalars[ours] = finite(f"{where}: {theirs} of {leaf.path!r}", held.get(theirs))
    if len(set(steps.values())) > 1:
        raise ValueError(f"{where}: the parameters have taken different numbers of steps: {steps}")
    known = set(core.slots) | set(core.scalars) | {"step", "eta", "mu"}
    unknown = {key for held in states if held for key in held} - known
    if unknown:
        raise ValueError(f"{where}: unknown entries {sorted(map(str, unknown))} in the state")
    if steps:
        scalars["count"] = next(iter(steps.values()))
    return slots, scalars


def _sgd(o: Options, rate: float) -> _Core:
    momentum, dampening = o.number("momentum"), o.number("dampening")
    nesterov = o.flag("nesterov")
    tx = sgd(rate, momentum or None, nesterov and momentum != 0, dampening=dampening or None)
    return _Core(tx, {"momentum_buffer": "trace"})


def _decoupled(o: Options, rate: float, *links: GradientTransformation) -> GradientTransformation:
    return chain(
        *links, add_decayed_weights(o.number("weight_decay")), scale_by_learning_rate(rate)
    )


def _adam(o: Options, rate: float, decoupled: bool = False) -> _Core:
    (b1, b2), eps = o.pair("betas"), o.number("eps")
    slots = {"exp_avg": "mu", "exp_avg_sq": "nu", "max_exp_avg_sq": "nu_max"}
    if o.flag("amsgrad"):
        by = scale_by_amsgrad(b1, b2, eps, max_before_correction=True)
    else:
        by = scale_by_adam(b1, b2, eps)
    if o.flag("decoupled_weight_decay", False) or decoupled:
        return _Core(_decoupled(o, rate, by), slots)
    return _Core(chain(by, scale_by_learning_rate(rate)), slots)


def _adamw(o: Options, rate: float) -> _Core:
    return _adam(o, rate, decoupled=True)


def _sparse_adam(o: Options, rate: float) -> _Core:
    (b1, b2), eps = o.pair("betas"), o.number("eps")
    return _Core(adam(rate, b1, b2, eps, epsilon_hat=True), {"exp_avg": "mu", "exp_avg_sq": "nu"})


def _adagrad(o: Options, rate: float) -> _Core:
    tx = adagrad(
        rate,
        o.number("initial_accumulator_value"),
        o.number("eps"),
        lr_decay=o.number("lr_decay"),
        eps_in_sqrt=False,
    )
    return _Core(tx, {"sum": "sum_of_squares"})


def _rmsprop(o: Options, rate: float) -> _Core:
    momentum = o.number("momentum")
    by = scale_by_stddev if o.flag("centered") else scale_by_rms
    links = by(o.number("alpha"), o.number("eps"), 0.0, False), scale_by_learning_rate(rate)
    tx = chain(links[0], trace(momentum), links[1]) if momentum > 0 else chain(*links)
    return _Core(tx, {"square_avg": "nu", "grad_avg": "mu", "momentum_buffer": "trace"})


def _adadelta(o: Options, rate: float) -> _Core:
    tx = adadelta(rate, o.number("rho"), o.number("eps"))
    return _Core(tx, {"square_avg": "e_g", "acc_delta": "e_x"})


def _adamax(o: Options, rate: float) -> _Core:
    (b1, b2), eps = o.pair("betas"), o.number("eps")
    return _Core(adamax(rate, b1, b2, eps), {"exp_avg": "mu", "exp_inf": "nu"})


def _nadam(o: Options, rate: float) -> _Core:
    (b1, b2), eps = o.pair("betas"), o.number("eps")
    by = scale_by_nadam(b1, b2, eps, momentum_decay=o.number("momentum_decay"))
    return _Core(
        _either(o, rate, by),
        {"exp_avg": "mu", "exp_avg_sq": "nu"},
        {"mu_product": "momentum_product"},
    )


def _radam(o: Options, rate: float) -> _Core:
    (b1, b2), eps = o.pair("betas"), o.number("eps")
    by = scale_by_radam(b1, b2, eps, epsilon_hat=True)
    return _Core(_either(o, rate, by), {"exp_avg": "mu", "exp_avg_sq": "nu"})


def _either(o: Options, rate: float, by: GradientTransformation) -> GradientTransformation:
    if o.flag("decoupled_weight_decay"):
        return _decoupled(o, rate, by)
    return chain(by, scale_by_learning_rate(rate))


def _asgd(o: Options, rate: float) -> _Core:
    tx = asgd(rate, o.number("lambd"), o.number("alpha"), o.number("t0"), o.number("weight_decay"))
    return _Core(tx, {"ax": "ax"})


def _rprop(o: Options, rate: float) -> _Core:
    (minus, plus), (least, largest) = o.pair("etas"), o.pair("step_sizes")
    tx = rprop(rate, minus, plus, least, largest)
    return _Core(tx, {"prev": "prev_updates", "step_size": "step_sizes"})


def _adafactor(o: Options, rate: float) -> _Core:
    eps = o.take("eps")
    if not isinstance(eps, list | tuple) or len(eps) != 2:
        raise TypeError(f"{o.where}: eps must be a pair, not {eps!r:.80}")
    smallest = np.finfo(np.float32).eps if eps[0] is None else finite(f"{o.where}: eps", eps[0])
    decay = o.number("weight_decay")
    tx = chain(
        scale_by_factored_rms(
            decay_rate=-o.number("beta2_decay"),
            min_dim_size_to_factor=0,
            epsilon=float(smallest) ** 2,
            factor_last_dims=True,
        ),
        clip_by_block_rms(o.number("d")),
        scale_by_param_block_rms(finite(f"{o.where}: eps", eps[1])),
        scale_by_learning_rate(relative_step_schedule(rate), flip_sign=False),
        add_decayed_weights(rate * decay) if decay else identity(),
        scale(-1.0),
    )
    rows, columns = (("v_row", lambda x: x[..., 0]), ("v_col", lambda x: x[..., 0, :]))
    return _Core(tx, {"row_var": rows, "col_var": columns, "variance": "v"})


def _muon(o: Options, rate: float) -> _Core:
    momentum, nesterov = o.number("momentum"), o.flag("nesterov")
    coefficients = o.take("ns_coefficients")
    if not isinstance(coefficients, list | tuple):
        raise TypeError(f"{o.where}: ns_coefficients must be three numbers, not {coefficients!r}")
    adjust = o.take("adjust_lr_fn")
    if adjust not in (None, "original", "match_rms_adamw"):
        raise ValueError(f"{o.where}: adjust_lr_fn must be 'original' or 'match_rms_adamw'")
    # A weight of PyTorch has its outputs first.
    numbers = MuonDimensionNumbers(reduction_axis=1, output_axis=0)
    where = f"{o.where}: ns_coefficients"
    by = chain(
        trace(momentum, nesterov),
        orthogonalize(
            tuple(finite(where, c) for c in coefficients),
            o.integer("ns_steps"),
            o.number("eps"),
            weight_dimension_numbers=numbers,
        ),
        scale_by_shape(0.2 if adjust == "match_rms_adamw" else None, numbers),
    )
    # Its momentum is a mean, ours a sum; the iteration does not see the difference.
    sum_of_mean = ("trace", lambda x: x / (1 - momentum))
    return _Core(_decoupled(o, rate, by), {"momentum_buffer": sum_of_mean})


_CORES: dict[str, Callable[[Options, float], _Core]] = {
    "ASGD": _asgd,
    "Adadelta": _adadelta,
    "Adafactor": _adafactor,
    "Adagrad": _adagrad,
    "Adam": _adam,
    "AdamW": _adamw,
    "Adamax": _adamax,
    "Muon": _muon,
    "NAdam": _nadam,
    "RAdam": _radam,
    "RMSprop": _rmsprop,
    "Rprop": _rprop,
    "SGD": _sgd,
    "SparseAdam": _sparse_adam,
}
