"""From PyTorch: an optimizer with its state as a transformation that continues from it."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checkpoint.config import check_depth
from gradtx.composition.chain import chain
from gradtx.composition.groups import partition
from gradtx.core.pair import GradientTransformation
from gradtx.inspection.hyperparams import replace
from gradtx.interop import torch_schedulers as schedulers
from gradtx.interop.reading import (
    Leaf,
    Options,
    array,
    arrays,
    filled,
    finite,
    literal,
    ordered,
    steps_taken,
)
from gradtx.interop.torch_lbfgs import from_lbfgs
from gradtx.interop.torch_optimizers import CORES, TorchCore
from gradtx.leaves.paths import path_string, with_paths
from gradtx.transforms.decay import add_decayed_weights
from gradtx.transforms.scaling import scale
from gradtx.types import Params, Schedule, State
from gradtx.wrappers.conditional import skip_if_none
from gradtx.wrappers.loss_scaling import DynamicLossScaleState, dynamic_loss_scale

_EXECUTION = ("foreach", "capturable", "differentiable", "fused", "param_names")
# Options that schedulers leave in a group.
_SCHEDULED = ("initial_lr", "max_lr", "min_lr", "swa_lr", "base_momentum", "max_momentum")
# PyTorch computes ASGD's rate one step ahead, Rprop's never again, and bounds Adafactor's.
_UNSCHEDULED = ("ASGD", "Rprop")
_UNSCALED = (*_UNSCHEDULED, "Adafactor")
# PyTorch counts no steps of these, and nothing but a schedule depends on their number.
_UNCOUNTED = ("Muon", "SGD")


def from_torch(
    source: Any,
    params: Params,
    *,
    class_name: str | None = None,
    order: Sequence[str] | None = None,
    scheduler: Any = None,
    steps_per_epoch: int | None = None,
    own_steps: bool | None = None,
    scaler: Any = None,
) -> tuple[GradientTransformation, State]:
    r"""A PyTorch optimizer as a transformation with PyTorch's own formulas, and its state.

    Args:
        source: the optimizer, or its ``state_dict()`` with `class_name`.
        params: the parameters, in a tree of any structure: arrays, or PyTorch's own, as in
            ``dict(model.named_parameters())`` with its keys as `order`.
        class_name: which optimizer a state dict belongs to, ``"AdamW"``.
        order: the paths of the leaves of `params` in the order of the optimizer's parameters, group
            after group (``["0.weight", "0.bias"]`` for a flat dict of such names). By default
            leaves are found by name, if the optimizer was made with ``named_parameters()``;
            otherwise they are taken in the order of the tree, if no two have the same shape. A list
            of arrays is in the right order by itself.
        scheduler: the optimizer's scheduler. The learning rate becomes a schedule, and so does the
            momentum if the scheduler cycles it. A saved scheduler has neither its class nor its
            functions: make it again and load its state.
        steps_per_epoch: how many steps of the optimizer there are for each step of the scheduler,
            which follows the last of them; counted from the optimizer's first step. None is 1, and
            an error if the parameters have taken more steps than the scheduler. SGD and Muon do
            not count steps: pass a number for these, and hand them over at the end of an epoch.
        own_steps: whether each parameter counts its own steps. PyTorch does so: a step leaves out
            the parameters whose gradient is `None`. Each parameter is then a group of its own,
            which takes longer to compile. By default this is done if parameters have taken
            different numbers of steps and there is no scheduler, whose steps they would share. If
            False, parameters that have taken equally many steps share a count.
        scaler: the run's ``GradScaler``, or its ``state_dict()``: the transformation is then a
            :func:`dynamic_loss_scale` around the optimizer, with the scale and the steps since it
            changed. None, or one that is disabled, for none.

    Returns:
        The transformation and its state. Several parameter groups become a :func:`partition` with
        the labels ``"0"``, ``"1"``, ...; so do the parameters of one group that have taken
        different numbers of steps, with labels such as ``"0/20"``, or that count their own steps,
        with labels such as ``"0/weight"``.

    Raises:
        ValueError: an unknown class, an unknown or missing option, a value out of range, a state
            of other shapes or not finite, a scheduler that has no schedule here, steps that do not
            say how much of an epoch is over or need `steps_per_epoch`, `own_steps` with a
            scheduler, leaves that cannot be told apart (the error says what to do), a `scaler` that
            shrinks by another factor than it grows by.
        TypeError: a value of the wrong type.

    Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, ASGD, LBFGS, Muon, NAdam, RAdam, RMSprop,
    Rprop, SGD and SparseAdam (for gradients that are `Rows`) are supported, with `maximize` and
    both kinds of weight decay. A parameter that has had no gradient so far has no state in PyTorch,
    and gets new slots here.

    Schedulers: ChainedScheduler, ConstantLR, CosineAnnealingLR, CosineAnnealingWarmRestarts,
    CyclicLR, ExponentialLR, LambdaLR, LinearLR, MultiStepLR, MultiplicativeLR, OneCycleLR,
    PolynomialLR, ReduceLROnPlateau, SequentialLR, StepLR and SWALR. ReduceLROnPlateau becomes
    :func:`reduce_on_plateau` with ``accumulation_size=steps_per_epoch``: each step is given the
    metric as the extra argument ``value``, and an epoch is judged by the mean of its values in its
    last step, which is the first that a reduction affects. Hand over at the end of an epoch. Where
    the best metric is below 0 and the threshold relative, PyTorch takes a metric that stays the
    same for an improvement; here it is none.

    One iteration of PyTorch's LBFGS is one step here. If none has been taken, the first has length
    1 in the Euclidean norm, where PyTorch uses the sum of absolute values. With ``strong_wolfe``
    the directions are PyTorch's and the line search is :func:`scale_by_zoom_linesearch`. A step and
    a change of the gradient are remembered if the cosine between them is above 0.01; PyTorch asks
    for an inner product above 1e-10, so that directions differ where the loss is curved 40,000
    times more along one axis than along another.

    PyTorch's Muon iterates in bfloat16, this one in float32.

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
    >>> from_torch(state, [jnp.zeros(2)], class_name="SGD")[0]
    sgd(learning_rate=0.1, momentum=0.9)
    """
    tx, state = _converted(source, params, class_name, order, scheduler, steps_per_epoch, own_steps)
    return (tx, state) if scaler is None else _scaled(tx, state, scaler)


def _converted(
    source: Any,
    params: Params,
    class_name: str | None,
    order: Sequence[str] | None,
    scheduler: Any,
    steps_per_epoch: int | None,
    own_steps: bool | None,
) -> tuple[GradientTransformation, State]:
    """The transformation and its state, without a loss scale."""
    class_name, groups, states = _read(source, class_name)
    where = f"from_torch: {class_name}"
    _check_steps(where, scheduler, steps_per_epoch, own_steps)
    names, shapes = _names_and_shapes(where, source, groups)
    several = len(groups) > 1
    matters = bool(states) or several
    # The state of L-BFGS is of all parameters in one vector.
    unnoticed = several or class_name == "LBFGS"
    leaves = ordered(params, order, names, shapes, matters=matters, grouped=unnoticed)
    params = arrays(params)
    if class_name != "SGD" and any(map(jnp.iscomplexobj, jax.tree.leaves(params))):
        raise ValueError(
            f"{where}: PyTorch treats the two parts of a complex parameter as two real ones: hand "
            "them over as such (see split_real_and_imaginary)"
        )
    options, members = _members(where, groups, leaves)
    states_of_groups = [
        [states.get(k, states.get(str(k))) for k in o.values["params"]] for o in options
    ]
    if class_name == "LBFGS":
        if scheduler is not None or len(options) > 1:
            raise ValueError(f"{where}: it has one group, and takes no scheduler here")
        return from_lbfgs(options[0], leaves, states_of_groups[0], params)
    parts = list(_parts(options, members, states_of_groups))
    if own_steps is None:
        differ = len(parts) > len(options) or len({part.steps for part in parts}) > 1
        own_steps = scheduler is None and differ
    if own_steps:
        parts = [one for part in parts for one in _each(part)]
    every = _every(where, parts, scheduler, steps_per_epoch)
    over = _over(where, parts, scheduler, every)
    optimizers = {}
    for part in parts:
        values = {k: v for k, v in options[part.group].values.items() if k != "params"}
        if class_name == "Adafactor":
            values["eps"] = _known_eps(values.get("eps"), members[part.group], params)
        o = Options(part.where, values)
        plan = _plan(class_name, o, part, scheduler, over, every)
        optimizers[part.label] = _resumed(class_name, o, part, plan, own_steps)
    return _joined(parts, optimizers, params)


def _known_eps(eps: Any, group: list[Leaf], params: Params) -> Any:
    """Adafactor's pair, of which the first is by default that of the group's first parameter."""
    if not (isinstance(eps, list | tuple) and len(eps) == 2 and eps[0] is None):
        return eps
    types = {path_string(path): p.dtype for path, p in with_paths(params)[0]}
    first = types[group[0].path] if group else jnp.float32
    return float(jnp.finfo(first).eps), eps[1]


def _check_steps(
    where: str, scheduler: Any, steps_per_epoch: int | None, own_steps: bool | None
) -> None:
    if isinstance(steps_per_epoch, bool) or not isinstance(steps_per_epoch, int | None):
        raise TypeError(f"{where}: steps_per_epoch must be an integer, not {steps_per_epoch!r:.80}")
    if steps_per_epoch is not None and steps_per_epoch < 1:
        raise ValueError(f"{where}: steps_per_epoch must be at least 1, not {steps_per_epoch}")
    if own_steps is not None and not isinstance(own_steps, bool):
        raise TypeError(f"{where}: own_steps must be True, False or None, not {own_steps!r:.80}")
    if own_steps and scheduler is not None:
        raise ValueError(
            f"{where}: a scheduler also steps where a parameter has no gradient, so own_steps is "
            "not possible with one: hand over without it, and chain scale_by_schedule last"
        )


def _scaled(
    tx: GradientTransformation, state: State, scaler: Any
) -> tuple[GradientTransformation, State]:
    """A transformation and its state, in the loss scaling of a ``GradScaler``."""
    where = "from_torch: scaler"
    saved = scaler.state_dict() if hasattr(scaler, "state_dict") else scaler
    if not isinstance(saved, Mapping):
        raise TypeError(f"{where}: a GradScaler or its state dict, not {saved!r:.80}")
    if not saved:  # as PyTorch saves one that is disabled
        return tx, state
    o = Options(where, saved)
    scale, grows, shrinks = (o.number(f) for f in ("scale", "growth_factor", "backoff_factor"))
    period, unchanged = (o.take(name) for name in ("growth_interval", "_growth_tracker"))
    o.finish()
    if abs(grows * shrinks - 1) > 1e-6:
        raise ValueError(
            f"{where}: it grows by {grows} and shrinks by {shrinks}, and dynamic_loss_scale "
            "undoes what it did: put dynamic_loss_scale around the optimizer by hand"
        )
    scaled = dynamic_loss_scale(tx, scale, period, grows, 0.0)
    new: Any = DynamicLossScaleState(
        jnp.asarray(scale, jnp.float32), jnp.asarray(unchanged, jnp.int32), state
    )
    return scaled, new


def _read(source: Any, class_name: str | None) -> tuple[str, list[Any], Mapping[Any, Any]]:
    """The optimizer's class name, its parameter groups, and the parameters' states."""
    if hasattr(source, "param_groups") and hasattr(source, "state_dict"):
        class_name, source = type(source).__name__, source.state_dict()
    check_depth("from_torch", source)
    if not isinstance(source, Mapping):
        raise TypeError(f"from_torch takes an optimizer or its state dict, not {source!r:.80}")
    if not isinstance(class_name, str):
        raise ValueError(
            "from_torch: a state dict does not say of which optimizer it is: pass class_name"
        )
    known = sorted([*CORES, "LBFGS"])
    if class_name not in known:
        raise ValueError(
            f"from_torch: the optimizer {class_name!r:.80} is not known; there are "
            f"{', '.join(known)}"
        )
    where = f"from_torch: {class_name}"
    o = Options(where, source)
    groups, states = o.take("param_groups"), o.take("state")
    o.finish()
    if not isinstance(groups, list) or not groups or not isinstance(states, Mapping):
        raise TypeError(f"{where}: param_groups must be a list and state a dict")
    return class_name, groups, states


def _names_and_shapes(
    where: str, source: Any, groups: list[Any]
) -> tuple[list[str] | None, list[tuple[int, ...]] | None]:
    """The names and the shapes of the parameters; None if they are not given."""
    names_of_groups = [
        group.get("param_names") if isinstance(group, Mapping) else None for group in groups
    ]
    for group_names in names_of_groups:
        if group_names is not None and not (
            isinstance(group_names, list | tuple)
            and all(isinstance(name, str) for name in group_names)
        ):
            raise TypeError(
                f"{where}: param_names must be a list of strings, not {group_names!r:.80}"
            )
    names = None
    if None not in names_of_groups:
        names = [name for group_names in names_of_groups for name in group_names or ()]
    if isinstance(source, Mapping):
        return names, None
    return names, [tuple(p.shape) for group in source.param_groups for p in group["params"]]


def _members(
    where: str, groups: list[Any], leaves: list[Leaf]
) -> tuple[list[Options], list[list[Leaf]]]:
    """The options and the leaves of each parameter group."""
    options = [
        Options(f"{where}, group {i}" if len(groups) > 1 else where, group)
        for i, group in enumerate(groups)
    ]
    for o in options:
        if not isinstance(o.take("params"), list | tuple):
            raise TypeError(f"{o.where}: params must be a list, not {o.values['params']!r:.80}")
    sizes = [len(o.values["params"]) for o in options]
    if sum(sizes) != len(leaves):
        raise ValueError(
            f"{where}: it has {sum(sizes)} parameters, and there are {len(leaves)} leaves"
        )
    rest = iter(leaves)
    return options, [list(itertools.islice(rest, size)) for size in sizes]


class _Part(NamedTuple):
    """The parameters of a group that have taken equally many steps; None if no state says how many.

    With SGD's dampening, parameters that have had no gradient are a part of their own: their first
    gradient is not dampened.
    """

    label: str
    where: str
    group: int
    leaves: list[Leaf]
    states: list[Any]
    steps: int | None


def _parts(
    options: list[Options], members: list[list[Leaf]], states_of_groups: list[list[Any]]
) -> Iterator[_Part]:
    for i, (o, leaves, states) in enumerate(zip(options, members, states_of_groups, strict=True)):
        steps: list[int | None] = []
        for leaf, state in zip(leaves, states, strict=True):
            at = f"{o.where}: the state of {leaf.path!r}"
            if not isinstance(state, Mapping | None):
                raise TypeError(f"{at} must be a dict, not {state!r:.80}")
            entries = state or {}
            steps.append(steps_taken(f"{at}: step", entries["step"]) if "step" in entries else None)
        if any(count is not None for count in steps):
            steps = [count or 0 for count in steps]
        dampened = o.number("dampening", 0.0) != 0
        keys = [bool(state) for state in states] if dampened else steps
        distinct = list(dict.fromkeys(keys)) or [None]
        for key in distinct:
            indices = [k for k, other in enumerate(keys) if other == key]
            yield _Part(
                str(i) if len(distinct) == 1 else f"{i}/{int(key or 0)}",
                o.where,
                i,
                [leaves[k] for k in indices],
                [states[k] for k in indices],
                steps[indices[0]] if indices else None,
            )


def _each(part: _Part) -> Iterator[_Part]:
    """A group of its own for each parameter of a group."""
    for leaf, state in zip(part.leaves, part.states, strict=True):
        label = f"{part.group}/{leaf.path}"
        yield part._replace(label=label, leaves=[leaf], states=[state])


class _Rates(NamedTuple):
    """A group's learning rate, its momentum if it is cycled, and transformations that come last.

    steps: those taken; scalars: numbers of the state of `last`.
    """

    rate: Any
    steps: int
    momentum: Schedule | None = None
    last: Sequence[GradientTransformation] = ()
    scalars: Mapping[str, Any] = {}


def _every(where: str, parts: list[_Part], scheduler: Any, steps_per_epoch: int | None) -> int:
    """How many steps of the optimizer there are for each of the scheduler."""
    if steps_per_epoch is not None:
        return steps_per_epoch
    clock = max((part.steps for part in parts if part.steps), default=0)
    if scheduler is None or isinstance(scheduler, Mapping):
        return 1
    epoch = schedulers.epoch(scheduler)
    if clock > epoch:
        raise ValueError(
            f"{where}: its parameters have taken {clock} steps and {type(scheduler).__name__} "
            f"{epoch}: pass steps_per_epoch, the steps between two of the scheduler (1 for a "
            "scheduler of single steps that was made in the middle of the run)"
        )
    return 1


def _over(where: str, parts: list[_Part], scheduler: Any, every: int) -> int:
    """How many steps of the scheduler's epoch are over, for all parameters."""
    if isinstance(scheduler, Mapping):
        raise TypeError(
            f"{where}: what a scheduler saves has neither its class nor its functions: make the "
            "scheduler again, with any optimizer that has as many groups, load its state with "
            "load_state_dict, and pass the scheduler itself"
        )
    if scheduler is None:
        return 0
    # A parameter that has had no gradient so far says nothing.
    counts = {part.steps for part in parts if part.steps}
    if schedulers.is_plateau(scheduler):
        if max(counts, default=0) % every:
            raise ValueError(
                f"{where}: its parameters have taken {max(counts)} steps, which are no whole "
                f"epochs of {every}, and ReduceLROnPlateau does not know the metric of the epoch "
                "in progress: hand over at the end of an epoch"
            )
        return 0
    return schedulers.steps_of_epoch(where, counts, schedulers.epoch(scheduler), every)


def _plan(name: str, o: Options, part: _Part, scheduler: Any, over: int, every: int) -> _Rates:
    rate = o.number("lr")
    # Where there is a state there was a step: the first one is not dampened.
    steps = int(any(part.states)) if part.steps is None else part.steps
    if scheduler is None:
        return _Rates(rate, steps)
    plateau = schedulers.is_plateau(scheduler)
    if name in (_UNSCALED if plateau else _UNSCHEDULED):
        raise ValueError(
            f"{o.where}: the step is not a multiple of the rate in force, as "
            f"{type(scheduler).__name__} needs: leave the scheduler out"
        )
    if plateau:
        last, scalars = schedulers.plateau(o.where, scheduler, part.group, rate, every)
        return _Rates(rate, steps, None, [last], scalars)
    inner = schedulers.rate_schedule(o.where, scheduler, part.group, o.values)
    momentum = schedulers.momentum_schedule(scheduler, part.group, o.values)
    epoch = schedulers.epoch(scheduler)
    if name in _UNCOUNTED:
        steps = max(steps, epoch * every)
    begun = [
        None if s is None else schedulers.begun(s, epoch, over, steps, every)
        for s in (inner, momentum)
    ]
    return _Rates(begun[0], steps, begun[1])


def _core(name: str, o: Options, plan: _Rates) -> TorchCore:
    """The optimizer of a parameter group, with the options that every PyTorch optimizer has."""
    o.skip(*_EXECUTION, *_SCHEDULED)
    core = CORES[name](o, plan.rate)
    tx = core.tx
    if plan.momentum is not None:
        if core.momentum is None:
            raise ValueError(f"{o.where}: its momentum cannot follow a scheduler here")
        tx = replace(tx, {core.momentum: plan.momentum})
    sign = [scale(-1.0)] if o.flag("maximize", False) else []
    # Most add weight decay to the gradient; the others have read the option.
    decay = o.number("weight_decay") if o.is_unread("weight_decay") else 0.0
    first = [*sign, *([add_decayed_weights(decay)] if decay else [])]
    o.finish()
    return core._replace(tx=chain(*first, tx, *plan.last) if first or plan.last else tx)


class _Resumed(NamedTuple):
    """A part's optimizer, and the slots and scalars of its state."""

    tx: GradientTransformation
    slots: dict[str, dict[str, Any]]
    scalars: dict[str, Any]


def _resumed(name: str, o: Options, part: _Part, plan: _Rates, own_steps: bool) -> _Resumed:
    """A part's optimizer with its numbers; with `own_steps` it counts only steps with gradients."""
    core = _core(name, o, plan)
    if name == "ASGD":
        _check_eta(o, part, plan)
    slots, scalars = _slots_and_scalars(o.where, core, part)
    # A momentum that has begun has taken a step: the next is dampened, and its schedule goes on.
    begun = max(plan.steps, 1) if any(part.states) else 0
    counts = {"count": plan.steps, "TraceWithCountState.count": begun}
    tx = skip_if_none(core.tx) if own_steps else core.tx
    return _Resumed(tx, slots, {**scalars, **counts, **plan.scalars})


def _check_eta(o: Options, part: _Part, plan: _Rates) -> None:
    """Raise ValueError if ASGD's next step has the rate of an earlier `lr`."""
    lambd, alpha = o.number("lambd"), o.number("alpha")
    for leaf, entries in zip(part.leaves, part.states, strict=True):
        if not entries or "eta" not in entries:
            continue
        at = f"{o.where}: {{}} of {leaf.path!r}"
        eta = finite(at.format("eta"), entries["eta"])
        step = finite(at.format("step"), entries.get("step"))
        now = plan.rate / (1 + lambd * plan.rate * step) ** alpha if step else plan.rate
        if not math.isclose(eta, now, rel_tol=1e-4):
            raise ValueError(
                f"{o.where}: the next step at {leaf.path!r} has the rate {eta:g}, which PyTorch "
                f"computed from an earlier lr; from the present lr the rate is {now:g}: set eta in "
                "the state, or take a step first"
            )


def _joined(
    parts: list[_Part], optimizers: dict[str, _Resumed], params: Params
) -> tuple[GradientTransformation, State]:
    """One optimizer of all parts, and its state: a partition if there are several."""
    if len(optimizers) == 1:
        ((tx, slots, scalars),) = optimizers.values()
        return tx, filled(tx.init(params), slots, scalars)
    labels = [(literal(leaf.path), part.label) for part in parts for leaf in part.leaves]
    tx = partition({label: optimizer.tx for label, optimizer in optimizers.items()}, labels)
    state: Any = tx.init(params)
    inner_states = {
        label: filled(inner, optimizers[label].slots, optimizers[label].scalars)
        for label, inner in state.inner_states.items()
    }
    return tx, type(state)(inner_states)


def _slots_and_scalars(
    where: str, core: TorchCore, part: _Part
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    slots: dict[str, dict[str, Any]] = {}
    scalars: dict[str, Any] = {}
    for leaf, entries in zip(part.leaves, part.states, strict=True):
        if not entries:
            continue
        for entry, slot_name in core.slots.items():
            slot_name, convert = slot_name if isinstance(slot_name, tuple) else (slot_name, None)
            value = entries.get(entry)
            if value is None:
                continue
            at = f"{where}: {entry} of {leaf.path!r}"
            slot = array(at, value)
            try:
                slot = slot if convert is None else convert(slot)
            except IndexError:
                raise ValueError(f"{at} has the shape {slot.shape}") from None
            slots.setdefault(slot_name, {})[leaf.path] = slot
        for entry, scalar in core.scalars.items():
            scalars[scalar] = finite(f"{where}: {entry} of {leaf.path!r}", entries.get(entry))
    known = set(core.slots) | set(core.scalars) | {"step", "eta", "mu"}
    unknown = {key for entries in part.states if entries for key in entries} - known
    if unknown:
        raise ValueError(f"{where}: unknown entries {sorted(map(str, unknown))} in the state")
    return slots, scalars
