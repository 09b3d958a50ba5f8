"""Every public transformation, once, with what it can do; the contracts run over this list."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import optax

import gradtx


@dataclass(frozen=True)
class Entry:
    """A transformation and its capabilities.

    make: builds it small; bad: arguments that must be refused; optax: its live twin there;
    rows: runs on the rows of a table; complex: runs on complex leaves; why: reasons for a False.
    """

    make: Callable[[], Any]
    bad: tuple[Mapping[str, Any], ...] = ()
    optax: Callable[[], Any] | None = None
    rows: bool = True
    complex: bool = True
    why: str = ""


NEGATIVE = {"learning_rate": -0.1}
NAN = {"learning_rate": float("nan")}
TEXT = {"learning_rate": "fast"}
RATES = (NEGATIVE, NAN, TEXT)

CATALOGUE: dict[str, Entry] = {
    # composition
    "chain": Entry(
        lambda: gradtx.chain(gradtx.clip(1.0), gradtx.scale(-0.1)),
        optax=lambda: optax.chain(optax.clip(1.0), optax.scale(-0.1)),
    ),
    "named_chain": Entry(
        lambda: gradtx.named_chain(("clip", gradtx.clip(1.0)), ("adam", gradtx.scale_by_adam())),
        optax=lambda: optax.named_chain(("clip", optax.clip(1.0)), ("adam", optax.scale_by_adam())),
    ),
    "identity": Entry(lambda: gradtx.identity(), optax=lambda: optax.identity()),
    "set_to_zero": Entry(lambda: gradtx.set_to_zero(), optax=lambda: optax.set_to_zero()),
    "stateless": Entry(lambda: gradtx.stateless(halve)),
    "stateless_with_tree_map": Entry(lambda: gradtx.stateless_with_tree_map(add_tenth)),
    "masked": Entry(lambda: gradtx.masked(gradtx.scale_by_adam(), is_matrix)),
    # sgd
    "sgd": Entry(
        lambda: gradtx.sgd(0.1, momentum=0.9, nesterov=True),
        bad=(*RATES, {"learning_rate": 0.1, "nesterov": "yes"}),
        optax=lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    ),
    "sign_sgd": Entry(lambda: gradtx.sign_sgd(0.1), bad=RATES, optax=lambda: optax.sign_sgd(0.1)),
    "scale_by_sign": Entry(lambda: gradtx.scale_by_sign(), optax=lambda: optax.scale_by_sign()),
    # adam
    "scale_by_adam": Entry(
        lambda: gradtx.scale_by_adam(),
        bad=({"b1": 1.0}, {"b2": -0.1}, {"eps": -1e-8}, {"eps": None}, {"nesterov": 1}),
        optax=lambda: optax.scale_by_adam(),
    ),
    "adam": Entry(
        lambda: gradtx.adam(1e-2, nesterov=True),
        bad=(*RATES, {}, {"learning_rate": 0.1, "b1": 1.0}, {"learning_rate": 0.1, "b3": 0.1}),
        optax=lambda: optax.adam(1e-2, nesterov=True),
    ),
    "adamw": Entry(
        lambda: gradtx.adamw(1e-2, weight_decay=0.1),
        bad=(*RATES, {"learning_rate": 0.1, "weight_decay": -1.0}),
        optax=lambda: optax.adamw(1e-2, weight_decay=0.1),
    ),
    # adagrad
    "scale_by_rss": Entry(
        lambda: gradtx.scale_by_rss(),
        bad=({"initial_accumulator_value": -1.0}, {"eps": -1.0}),
        optax=lambda: optax.scale_by_rss(),
    ),
    "adagrad": Entry(lambda: gradtx.adagrad(0.1), bad=RATES, optax=lambda: optax.adagrad(0.1)),
    # rmsprop
    "scale_by_rms": Entry(
        lambda: gradtx.scale_by_rms(bias_correction=True),
        bad=({"decay": 1.0}, {"eps": -1.0}),
        optax=lambda: optax.scale_by_rms(bias_correction=True),
    ),
    "scale_by_stddev": Entry(
        lambda: gradtx.scale_by_stddev(eps=1e-3),
        bad=({"decay": 1.0},),
        optax=lambda: optax.scale_by_stddev(eps=1e-3),
    ),
    "rmsprop": Entry(
        lambda: gradtx.rmsprop(0.01, momentum=0.9),
        bad=(*RATES, {"learning_rate": 0.1, "decay": 1.5}),
        optax=lambda: optax.rmsprop(0.01, momentum=0.9),
    ),
    # lion
    "scale_by_lion": Entry(
        lambda: gradtx.scale_by_lion(),
        bad=({"b1": 1.0}, {"mode": "soft"}),
        optax=lambda: optax.scale_by_lion(),
    ),
    "lion": Entry(lambda: gradtx.lion(1e-2), bad=RATES, optax=lambda: optax.lion(1e-2)),
    # scaling
    "scale": Entry(
        lambda: gradtx.scale(0.5), bad=({"step_size": "x"},), optax=lambda: optax.scale(0.5)
    ),
    "scale_by_schedule": Entry(
        lambda: gradtx.scale_by_schedule(gradtx.linear_schedule(1.0, 0.1, 10)),
        bad=({"step_size_fn": 0.1},),
        optax=lambda: optax.scale_by_schedule(optax.linear_schedule(1.0, 0.1, 10)),
    ),
    "scale_by_learning_rate": Entry(
        lambda: gradtx.scale_by_learning_rate(gradtx.exponential_decay(0.1, 10, 0.5)),
        bad=RATES,
        optax=lambda: optax.scale_by_learning_rate(optax.exponential_decay(0.1, 10, 0.5)),
    ),
    # decay
    "add_decayed_weights": Entry(
        lambda: gradtx.add_decayed_weights(0.1),
        bad=({"weight_decay": -0.1},),
        optax=lambda: optax.add_decayed_weights(0.1),
    ),
    # averaging
    "trace": Entry(
        lambda: gradtx.trace(0.9),
        bad=({"decay": "x"}, {"decay": float("nan")}),
        optax=lambda: optax.trace(0.9),
    ),
    "ema": Entry(lambda: gradtx.ema(0.9), bad=({"decay": 1.0},), optax=lambda: optax.ema(0.9)),
    # clipping
    "clip": Entry(
        lambda: gradtx.clip(0.5), bad=({"max_delta": -1.0},), optax=lambda: optax.clip(0.5)
    ),
    "clip_by_norm": Entry(lambda: gradtx.clip_by_norm(0.5), bad=({"max_norm": -1.0},), rows=False),
    "clip_by_block_rms": Entry(
        lambda: gradtx.clip_by_block_rms(0.5),
        bad=({"threshold": -1.0},),
        optax=lambda: optax.clip_by_block_rms(0.5),
        rows=False,
    ),
    "clip_by_global_norm": Entry(
        lambda: gradtx.clip_by_global_norm(0.5),
        bad=({"max_norm": -1.0}, {"max_norm": None}),
        optax=lambda: optax.clip_by_global_norm(0.5),
    ),
    # cleaning
    "zero_nans": Entry(lambda: gradtx.zero_nans(), optax=lambda: optax.zero_nans()),
    "centralize": Entry(lambda: gradtx.centralize(), optax=lambda: optax.centralize(), rows=False),
}


def halve(updates: Any, params: Any) -> Any:
    return gradtx.tree.map_updates(lambda g: g / 2, updates)


def is_matrix(path: str, leaf: Any) -> bool:
    return leaf.ndim > 1


def add_tenth(update: Any, param: Any) -> Any:
    return update + 0.1 * param
