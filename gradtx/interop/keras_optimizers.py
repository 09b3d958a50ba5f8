"""Keras's optimizers in addition to their base class, with Keras's own formulas."""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gradtx.composition.chain import chain
from gradtx.composition.groups import partition
from gradtx.core.pair import GradientTransformation
from gradtx.interop import expressions
from gradtx.interop.reading import REQUIRED, Leaf, Options, literal, multiplied
from gradtx.optimizers.adadelta import adadelta
from gradtx.optimizers.adafactor import scale_by_factored_rms
from gradtx.optimizers.adagrad import adagrad
from gradtx.optimizers.adam import adam
from gradtx.optimizers.adamax import adamax
from gradtx.optimizers.amsgrad import amsgrad
from gradtx.optimizers.ftrl import ftrl
from gradtx.optimizers.lamb import lamb
from gradtx.optimizers.lion import lion
from gradtx.optimizers.muon import scale_by_shape
from gradtx.optimizers.nadam import nadam
from gradtx.optimizers.orthogonalize import orthogonalize
from gradtx.optimizers.rmsprop import rmsprop, scale_by_rms
from gradtx.optimizers.sgd import sgd
from gradtx.schedules.decay import linear_schedule, relative_step_schedule
from gradtx.schedules.products import multiply_schedules
from gradtx.transforms.clipping import clip_by_block_rms
from gradtx.transforms.momentum import trace
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.transforms.trust import scale_by_param_block_rms
from gradtx.wrappers.predecay import decay_first
from gradtx.wrappers.schedule_free import schedule_free


class KerasCore(NamedTuple):
    """The part of a Keras optimizer that its class adds to the options of the base class.

    tx: turns gradients into updates; slots: the name of the slot for each of Keras's groups of
    variables, with a minus where the sign differs; scalar: the field for its last variable;
    decays: whether it applies weight decay itself.
    """

    tx: GradientTransformation
    slots: Sequence[Sequence[str]] = ()
    scalar: str | None = None
    layout: Callable[[Leaf], Sequence[tuple[str | None, tuple[int, ...]]]] | None = None
    decays: bool = False


def _sgd(o: Options, rate: Any, leaves: list[Leaf] | None) -> KerasCore:
    momentum, nesterov = o.number("momentum"), o.flag("nesterov")
    if momentum == 0:
        return KerasCore(sgd(rate))
    return KerasCore(chain(scale_by_learning_rate(rate), trace(momentum, nesterov)), [["trace"]])


def _adam(o: Options, rate: Any, leaves: list[Leaf] | None) -> KerasCore:
    b1, b2, eps = o.number("beta_1"), o.number("beta_2"), o.number("epsilon")
    if o.flag("amsgrad"):
        tx = amsgrad(rate, b1, b2, eps, max_before_correction=True, epsilon_hat=True)
        return KerasCore(tx, [["mu", "nu"], ["nu_max"]])
    return KerasCore(adam(rate, b1, b2, eps, epsilon_hat=True), [["mu", "nu"]])


def _adagrad(o: Options, rate: Any, leaves: list[Leaf] | None) -> KerasCore:
    start, eps = o.number("initial_accumulator_value"), o.number("epsilon")
    return KerasCore(adagrad(rate, start, eps), [["sum_of_squares"]])


def _rmsprop(o: Options, rate: Any, leaves: list[Leaf] | None) -> KerasCore:
    rho, eps, centered = o.number("rho"), o.number("epsilon"), o.flag("centered")
    momentum = o.number("momentum")
    tx = rmsprop(rate, rho, eps, centered=centered, momentum=momentum if momentum > 0 else None)
    slots = [["nu"], *([["-trace"]] if momentum > 0 else []), *([["mu"]] if centered else [])]
    return KerasCore(tx, slots)


def _adadelta(o: Options, rate: Any, leaves: list[Leaf] | None) -> KerasCore:
    return KerasCore(adadelta(rate, o.number("rho"), o.number("epsilon")), [["e_g", "e_x"]])


def _adamax(o: Options, rate: Any, leaves: list[Leaf] | None) -> KerasCore:
    b1, b2, eps = o.number("beta_1"), o.number("beta_2"), o.number("epsilon")
    return KerasCore(adamax(rate, b1, b2, eps, eps_in_max=False), [["mu", "nu"]])


def _nadam(o: Options, rate: Any, leaves: list[Leaf] | None) -> KerasCore:
    b1, b2, eps = o.number("beta_1"), o.number("beta_2"), o.number("epsilon")
    return KerasCore(
        nadam(rate, b1, b2, eps, momentum_decay=1.0), [["mu", "nu"]], scalar="momentum_product"
    )


def _ftrl(o: Options, rate: Any, leaves: list[Leaf] | None) -> KerasCore:
    names = (
        "learning_rate_power",
        "initial_accumulator_value",
        "l1_regularization_strength",
        "l2_regularization_strength",
        "l2_shrinkage_regularization_strength",
        "beta",
    )
    return KerasCore(
        ftrl(rate, **{key: o.number(key) for key in names}), [["accumulator", "linear"]]
    )


def _schedule_free_adamw(o: Options, rate: Any, leaves: list[Leaf] | None) -> KerasCore:
    b1, b2, eps = o.number("beta_1"), o.number("beta_2"), o.number("epsilon")
    warmup = o.integer("warmup_steps")
    if warmup > 1:
        rate = multiply_schedules(rate, linear_schedule(1 / warmup, 1.0, warmup - 1))
    base = chain(
        scale_by_rms(b2, eps, eps_in_sqrt=False, bias_correction=True), scale_by_learning_rate(rate)
    )
    return KerasCore(schedule_free(base, rate, b1, weight_lr_power=0.0), [["z", "nu"]])


def _lion(o: Options, rate: Any, leaves: list[Leaf] | None) -> KerasCore:
    b1, b2 = o.number("beta_1"), o.number("beta_2")
    return KerasCore(lion(rate, b1, b2, weight_decay=0.0), [["mu"]])


def _lamb(o: Options, rate: Any, leaves: list[Leaf] | None) -> KerasCore:
    b1, b2, eps = o.number("beta_1"), o.number("beta_2"), o.number("epsilon")
    return KerasCore(lamb(rate, b1, b2, eps), [["mu", "nu"]])


def _adafactor(o: Options, rate: Any, leaves: list[Leaf] | None) -> KerasCore:
    o.flag("relative_step")  # without an effect in Keras: the step is relative in any case
    tx = chain(
        scale_by_factored_rms(
            decay_rate=-o.number("beta_2_decay"),
            min_dim_size_to_factor=0,
            epsilon=o.number("epsilon_1"),
            factor_last_dims=True,
        ),
        clip_by_block_rms(o.number("clip_threshold")),
        scale_by_param_block_rms(o.number("epsilon_2")),
        scale_by_learning_rate(relative_step_schedule(rate)),
    )

    def layout(leaf: Leaf) -> list[tuple[str | None, tuple[int, ...]]]:
        if len(leaf.shape) < 2:
            return [(None, ()), (None, ()), ("v", leaf.shape)]
        rows, columns = leaf.shape[:-1], (*leaf.shape[:-2], leaf.shape[-1])
        return [("v_row", rows), ("v_col", columns), (None, leaf.shape)]

    return KerasCore(tx, layout=layout)


def _muon(o: Options, rate: Any, leaves: list[Leaf] | None) -> KerasCore:
    if leaves is None:
        raise ValueError(f"{o.where}: which leaves are matrices depends on params: pass them")
    excluded = o.take("exclude_layers", None) or []
    if not isinstance(excluded, list | tuple) or not all(isinstance(k, str) for k in excluded):
        raise TypeError(
            f"{o.where}: exclude_layers must be a list of strings, not {excluded!r:.80}"
        )
    embeddings = o.flag("exclude_embeddings")

    def is_adam(leaf: Leaf) -> bool:
        try:
            named = any(expressions.search(keyword, leaf.name) for keyword in excluded)
        except re.error as error:
            raise ValueError(f"{o.where}: exclude_layers: {error}") from None
        embedding = embeddings and "embedding" in leaf.name.lower()
        return len(leaf.shape) != 2 or embedding or named

    eps, ratio = o.number("epsilon"), o.number("adam_lr_ratio")
    slower = multiplied(rate, ratio)
    momentum, nesterov = o.number("momentum"), o.flag("nesterov")
    rms = o.optional("rms_rate", REQUIRED)
    coefficients = tuple(o.number(f"muon_{k}") for k in "abc")
    muon_tx = chain(
        trace(momentum, nesterov),
        orthogonalize(coefficients, o.integer("ns_steps"), 1e-7),
        *([] if rms is None else [scale_by_shape(rms)]),
        scale_by_learning_rate(rate),
    )
    adam_tx = adam(slower, o.number("adam_beta_1"), o.number("adam_beta_2"), eps, epsilon_hat=True)
    decays = [o.optional(key, REQUIRED) for key in ("weight_decay", "adam_weight_decay")]
    members = {
        label: [leaf for leaf in leaves if is_adam(leaf) == (label == "adam")]
        for label in ("muon", "adam")
    }
    groups = {
        label: decayed(tx, multiplied(rate, decay), members[label]) if decay else tx
        for label, tx, decay in zip(members, (muon_tx, adam_tx), decays, strict=True)
    }
    labels = [(literal(leaf.path), "adam" if is_adam(leaf) else "muon") for leaf in leaves]

    def layout(leaf: Leaf) -> list[tuple[str | None, tuple[int, ...]]]:
        if is_adam(leaf):
            return [("mu", leaf.shape), ("nu", leaf.shape)]
        return [("trace", leaf.shape)]

    return KerasCore(partition(groups, labels), layout=layout, decays=True)


def decayed(
    tx: GradientTransformation, decay: Any, leaves: list[Leaf] | None
) -> GradientTransformation:
    """`tx` after weight decay, which applies to the leaves that Keras does not exclude."""
    if leaves is None or all(leaf.decays for leaf in leaves):
        return decay_first(tx, decay)
    decaying = [literal(leaf.path) for leaf in leaves if leaf.decays]
    return decay_first(tx, decay, decaying) if decaying else tx


CORES: dict[str, Callable[[Options, Any, list[Leaf] | None], KerasCore]] = {
    "Adadelta": _adadelta,
    "Adafactor": _adafactor,
    "Adagrad": _adagrad,
    "Adam": _adam,
    "AdamW": _adam,
    "Adamax": _adamax,
    "Ftrl": _ftrl,
    "Lamb": _lamb,
    "Lion": _lion,
    "Muon": _muon,
    "Nadam": _nadam,
    "RMSprop": _rmsprop,
    "SGD": _sgd,
    "ScheduleFreeAdamW": _schedule_free_adamw,
}
