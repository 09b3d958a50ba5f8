"""Every optimizer that is benchmarked, in both libraries. To benchmark another, add a line."""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Pair(NamedTuple):
    """One optimizer, as the expression that builds it in each library's namespace.

    optax: None where Optax has no such optimizer. least: the bytes that the algorithm cannot do
    without, over those of one pass (gradient and parameter read, parameter written, every slot read
    and written), and why they differ from it; None where matrix products count and not bytes.
    """

    label: str
    gradtx: str
    optax: str | None
    least: float | None = 1.0
    why: str = ""


def same(label: str, expression: str, least: float | None = 1.0, why: str = "") -> Pair:
    """An optimizer that both libraries build by one expression."""
    return Pair(label, expression, expression, least, why)


def both(expression: str, least: float | None = 1.0, why: str = "") -> Pair:
    """An optimizer that both libraries have, by its own name."""
    return same(expression.partition("(")[0], expression, least, why)


def ours(expression: str, least: float | None = 1.0, why: str = "") -> Pair:
    """An optimizer that Optax lacks."""
    return Pair(expression.partition("(")[0], expression, None, least, why)


def before_sgd(expression: str, least: float = 1.0, why: str = "") -> Pair:
    """A transform, made a step by gradient descent."""
    return same(f"{expression} + sgd", f"chain({expression}, sgd(1e-3))", least, why)


NORM = "the gradient is read for its norm before the step"
NORMS = "gradient and parameter are read for their norms before the step"
SIZE = "the parameter is read for its size before the step"
MARS = "gradient and last gradient are read for the norm of the corrected one before the step"
ROW = "the gradient is read for the means of its rows before the step"
START = "the slot that holds the start point is not written"
ESTIMATE = "where an estimate is due the parameter and its slot are read for it besides the step"
DISTANCE = "gradient, parameter and start point are read for their norms before the step; " + START
GROUPS: Mapping[str, list[Pair]] = {
    "everyday": [
        both("sgd(1e-3)"),
        same("sgd, momentum", "sgd(1e-3, momentum=0.9)"),
        both("adam(1e-3)"),
        both("adamw(1e-3)"),
        both("adagrad(1e-3)"),
        both("rmsprop(1e-3)"),
        both("lion(1e-3)"),
        same("clip + adamw", "chain(clip_by_global_norm(1.0), adamw(1e-3))", 8 / 7, NORM),
    ],
    "elementwise": [
        both("acprop(1e-3)"),
        both("adabelief(1e-3)"),
        ours("adabound(1e-3)"),
        both("adadelta(1e-3)"),
        ours("adagrad_decay(1e-3)"),
        ours("adagrad_da(1e-3)"),
        both("adamax(1e-3)"),
        both("adamaxw(1e-3)"),
        both("adan(1e-3)"),
        both("ademamix(1e-3)"),
        both("adopt(1e-3)"),
        both("amsgrad(1e-3)"),
        ours("asgd(1e-3)"),
        ours("diffgrad(1e-3)"),
        ours("ftrl(1e-3)"),
        ours("laprop(1e-3)"),
        both("madgrad(1e-3)", 8 / 9, START),
        ours("mars_adamw(1e-3)", 11 / 9, MARS),
        ours("mars_lion(1e-3)", 9 / 7, MARS),
        both("nadam(1e-3)"),
        both("nadamw(1e-3)"),
        both("noisy_sgd(1e-3)"),
        both("optimistic_adam(1e-3)"),
        both("optimistic_adam_v2(1e-3)"),
        both("optimistic_gradient_descent(1e-3)"),
        ours("proximal_adagrad(1e-3)"),
        ours("proximal_gradient_descent(1e-3)"),
        ours("qhadam(1e-3)"),
        both("radam(1e-3)"),
        both("rprop(1e-3)"),
        both("sign_sgd(1e-3)"),
        both("signum(1e-3)"),
        both("simplified_ademamix(1e-3)"),
        ours("tiger(1e-3)"),
        both("yogi(1e-3)"),
    ],
    "layerwise": [
        both(
            "adafactor(1e-3)",
            2.0,
            "the gradient is read for the means, for the clipping and for the step, the parameter "
            "for its size and for the step",
        ),
        ours("adam_mini(1e-3)", 6 / 5, ROW),
        ours(
            "came(1e-3)",
            8 / 5,
            "the gradient is read for the means, for the clipping and for the momentum, and the "
            "momentum again once its instability is known",
        ),
        both("fromage(1e-3)", 5 / 3, NORMS),
        both("lamb(1e-3)", 10 / 7, "moments and parameter are read again after the norms"),
        both("lars(1e-3)", 7 / 5, NORMS),
        both("novograd(1e-3)", 6 / 5, NORM),
        ours("rowwise_adagrad(1e-3)", 4 / 3, ROW),
        ours("rowwise_adam(1e-3)", 6 / 5, ROW),
        both("sm3(1e-3)"),
        ours("stable_adamw(1e-3)", 9 / 7, "the moments are read again after the norm"),
    ],
    "learning-rate-free": [
        both("cocob()", 12 / 13, START),
        both("dadapt_adamw()"),
        both("dog()", 6 / 5, DISTANCE),
        both("dowg()", 6 / 5, DISTANCE),
        same("mechanize, adam", "mechanize(adam(1.0))", 11 / 9, DISTANCE),
        both("momo()", 7 / 5, "momentum and parameter are read again after the inner products"),
        both(
            "momo_adam()", 10 / 7, "moments and parameter are read again after the inner products"
        ),
        both("polyak_sgd()", 4 / 3, NORM),
        both(
            "prodigy()",
            12 / 11,
            "gradient and parameter are read for the estimate before the step; " + START,
        ),
    ],
    "averaging and second-order": [
        both("schedule_free_adamw(1e-3)"),
        both("schedule_free_sgd(1e-3)"),
        both("sophia(1e-3)", 9 / 7, ESTIMATE),
        Pair("sophia, estimate first", "sophia(1e-3, hessian_first=True)", None, 9 / 7, ESTIMATE),
    ],
    "transforms and wrappers": [
        before_sgd("adaptive_grad_clip(0.01)", 5 / 3, NORMS),
        before_sgd("centralize()", 4 / 3, ROW),
        before_sgd("clip(1.0)"),
        before_sgd("clip_by_block_rms(1.0)", 4 / 3, NORM),
        before_sgd("clip_by_global_norm(1.0)", 4 / 3, NORM),
        before_sgd("ema(0.9)"),
        before_sgd("normalize()", 4 / 3, NORM),
        before_sgd("scale_by_param_block_norm()", 4 / 3, SIZE),
        before_sgd("scale_by_param_block_rms()", 4 / 3, SIZE),
        before_sgd("scale_by_stddev()"),
        before_sgd("scale_by_trust_ratio()", 5 / 3, NORMS),
        before_sgd("zero_nans()"),
        same(
            "apply_if_finite, adam",
            "apply_if_finite(adam(1e-3), 5)",
            8 / 7,
            "the gradient is read to see whether it is finite before the step",
        ),
        Pair(
            "cautious, adam",
            "cautious(adam(1e-3))",
            None,
            10 / 7,
            "gradient and moments are read again after the mask's mean",
        ),
        Pair("cautious, adam, no rescale", "cautious(adam(1e-3), rescale=False)", None),
        Pair("ema_params, adam", "chain(adam(1e-3), ema_params(0.999))", None),
        Pair("grokfast_ema, adam", "chain(grokfast_ema(), adam(1e-3))", None),
        Pair(
            "cautious decay, adam",
            "chain(scale_by_adam(), add_cautious_decayed_weights(0.1), "
            "scale_by_learning_rate(1e-3))",
            None,
        ),
    ],
    "matrix": [
        both("galore(1e-3)", None),
        both("muon(1e-3)", None),
    ],
}
PAIRS = [pair for group in GROUPS.values() for pair in group]


def bowl(params: Any) -> jax.Array:
    """A loss whose Hessian is a diagonal, for those that ask for the curvature."""
    return sum(jnp.sum(p**4) for p in jax.tree.leaves(params)) / 12


class Library(NamedTuple):
    """A library, and the transformation that an expression builds in it."""

    name: str
    tx: Any
    apply_updates: Callable[[Any, Any], Any]

    def step(self, params: Any, state: Any, gradients: Any) -> tuple[Any, Any]:
        # Some optimizers need the loss or its function; those that do not ignore them.
        updates, state = self.tx.update(gradients, state, params, value=1.0, obj_fn=bowl)
        return self.apply_updates(params, updates), state


class Names(dict[str, Any]):
    """A library's public names, looked up when asked for: gradtx loads them one by one.

    Optax has some of them in its `contrib`.
    """

    def __init__(self, library: ModuleType) -> None:
        super().__init__()
        self.library = library

    def __missing__(self, name: str) -> Any:
        for place in (self.library, getattr(self.library, "contrib", None)):
            if hasattr(place, name):
                return getattr(place, name)
        raise KeyError(name)


def build(module: str, expression: str) -> Library:
    library: ModuleType = import_module(module)
    # The expressions are those above or the user's own command line: nothing foreign is evaluated.
    tx = eval(expression, {}, Names(library))
    return Library(module, library.with_extra_args_support(tx), library.apply_updates)


def libraries(pair: Pair) -> list[Library]:
    """gradtx's, and Optax's if it has one."""
    return [build("gradtx", pair.gradtx), *(build("optax", x) for x in [pair.optax] if x)]


def chosen(words: Iterable[str]) -> list[Pair]:
    """The pairs of these labels and groups, `all` of them, or, if no word is given, the everyday.

    A word that is none of these is an expression for both libraries.
    """
    known = {"all": PAIRS} | {pair.label: [pair] for pair in PAIRS} | dict(GROUPS)
    return [p for word in words or ["everyday"] for p in known.get(word) or [same(word, word)]]
