"""What is searched for each optimizer: hyperparameters, their ranges, and where these are from.

All get the same number of trials. The first is at the published settings, the others are spread
over the ranges. Learning rates span three decades for all, including those of the AdamW beside Muon
and its variants, which is searched in the same trials and not in addition to them.
"""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.stats import qmc

import gradtx
from benchmarks.convergence import optimizers

Build = Callable[..., gradtx.GradientTransformation]


class Range(NamedTuple):
    """Even in the logarithm of a number, or of what a decay is short of one."""

    low: float
    high: float
    below_one: bool = False

    def at(self, u: np.ndarray) -> np.ndarray:
        x = self.low * (self.high / self.low) ** u
        return 1 - x if self.below_one else x


class Space(NamedTuple):
    """An optimizer and its search.

    build: from the arguments in `published`, of which those in `scheduled` come as schedules;
    published: where the search begins; ranges: of the arguments that are searched;
    rate: the argument whose basin is measured.
    """

    build: Build
    published: Mapping[str, float]
    ranges: Mapping[str, Range]
    source: str
    scheduled: tuple[str, ...] = ()
    rate: str | None = "learning_rate"

    def settings(self, count: int) -> dict[str, np.ndarray]:
        """A number of settings: the published ones first, then a Halton sequence."""
        points = qmc.Halton(max(len(self.ranges), 1), rng=0).random(count - 1)
        found = {name: np.full(count, value) for name, value in self.published.items()}
        for (name, span), u in zip(self.ranges.items(), points.T, strict=False):
            found[name][1:] = span.at(u)
        return found


def hidden(params: Any) -> Any:
    """The matrices between layers, if there are any; otherwise whatever has two dimensions."""

    def numbers(name: str, p: jax.Array) -> Any:
        wanted = name == "hidden" if "hidden" in params else p.ndim == 2
        return gradtx.MuonDimensionNumbers() if wanted else None

    return {k: jax.tree.map(functools.partial(numbers, k), part) for k, part in params.items()}


def with_adamw(build: Build, numbers: str = "weight_dimension_numbers") -> Build:
    """An optimizer of hidden matrices, with an AdamW of a rate of its own for the rest."""

    def built(adam_learning_rate: Any, **settings: Any) -> gradtx.GradientTransformation:
        others = gradtx.adamw(adam_learning_rate, weight_decay=settings.get("weight_decay", 0.0))
        return build(others=others, **{numbers: hidden}, **settings)

    return built


def muon(adam_learning_rate: Any, **settings: Any) -> gradtx.GradientTransformation:
    return gradtx.muon(
        adam_learning_rate=adam_learning_rate,
        adam_weight_decay=settings.get("weight_decay", 0.0),
        muon_weight_dimension_numbers=hidden,
        **settings,
    )


def adam_on_spheres(
    learning_rate: Any, adam_learning_rate: Any, b1: Any
) -> gradtx.GradientTransformation:
    return gradtx.hyperball(gradtx.adam(adam_learning_rate, b1), learning_rate, hidden)


def muon_on_spheres(
    learning_rate: Any, adam_learning_rate: Any, beta: Any
) -> gradtx.GradientTransformation:
    inner = muon(learning_rate=1.0, adam_learning_rate=adam_learning_rate, beta=beta)
    return gradtx.hyperball(inner, learning_rate, hidden)


RATE = Range(3e-4, 3e-1)
SGD = Range(3e-3, 3.0)
MOMENTUM = Range(0.02, 0.5, below_one=True)
DECAY = Range(1e-3, 1.0)
ALGOPERF = "AlgoPerf (arXiv:2306.07179), its rates times 3 to 30, for small nets"
BOTH = ("learning_rate", "adam_learning_rate")


def space(
    build: Build,
    rate: tuple[float, Range] | None,
    source: str,
    scheduled: tuple[str, ...] = ("learning_rate",),
    /,
    **others: tuple[float, Range],
) -> Space:
    searched = others if rate is None else {"learning_rate": rate, **others}
    return Space(
        build,
        {name: value for name, (value, _) in searched.items()},
        {name: span for name, (_, span) in searched.items()},
        source,
        scheduled,
        None if rate is None else "learning_rate",
    )


# Those that papers and users compare, each with its published settings and ranges.
PRINCIPAL: dict[str, Space] = {
    "adamw": space(
        gradtx.adamw, (1e-3, RATE), ALGOPERF, b1=(0.9, MOMENTUM), weight_decay=(1e-2, DECAY)
    ),
    "adam": space(gradtx.adam, (1e-3, RATE), ALGOPERF, b1=(0.9, MOMENTUM)),
    "sgd, momentum": space(
        functools.partial(gradtx.sgd, nesterov=True), (0.1, SGD), ALGOPERF, momentum=(0.9, MOMENTUM)
    ),
    "lion": space(
        gradtx.lion,
        (1e-4, Range(3e-5, 3e-2)),
        "Lion (arXiv:2302.06675), section 5: rates a tenth of AdamW's, decay ten times",
        b1=(0.9, MOMENTUM),
        weight_decay=(0.1, Range(1e-2, 10.0)),
    ),
    "muon": space(
        muon,
        (0.02, Range(1e-3, 1.0)),
        "Muon (K. Jordan et al., 2024): 0.02, AdamW for what is not hidden",
        BOTH,
        adam_learning_rate=(3e-3, RATE),
        beta=(0.95, Range(0.01, 0.25, below_one=True)),
        weight_decay=(1e-2, DECAY),
    ),
    "normuon": space(
        with_adamw(gradtx.normuon),
        (3e-3, RATE),
        "NorMuon (arXiv:2510.05491): Adam's rates",
        BOTH,
        adam_learning_rate=(3e-3, RATE),
        b1=(0.95, Range(0.01, 0.25, below_one=True)),
        weight_decay=(1e-2, DECAY),
    ),
    "soap": space(
        gradtx.soap,
        (3e-3, RATE),
        "SOAP (arXiv:2409.11321), section 5: 3e-3, decays of 0.95",
        b1=(0.95, MOMENTUM),
        weight_decay=(1e-2, DECAY),
    ),
    "shampoo": space(
        gradtx.shampoo,
        (1e-3, RATE),
        "Distributed Shampoo with Adam's grafting (arXiv:2309.06497)",
        b1=(0.9, MOMENTUM),
        weight_decay=(1e-2, DECAY),
    ),
    "schedule_free_adamw": space(
        functools.partial(gradtx.schedule_free_adamw, warmup_steps=15),
        (2.5e-3, Range(1e-3, 1.0)),
        "The Road Less Scheduled (arXiv:2405.15682): 2.5e-3, rates above AdamW's",
        (),
        b1=(0.9, Range(0.02, 0.3, below_one=True)),
        weight_decay=(1e-2, DECAY),
    ),
    "prodigy": space(
        gradtx.prodigy,
        None,
        "Prodigy (arXiv:2306.06101): a rate of 1; the coefficient from 0.5 to 2",
        estim_lr_coef=(1.0, Range(0.5, 2.0)),
        weight_decay=(1e-2, DECAY),
    )._replace(published={"learning_rate": 1.0, "estim_lr_coef": 1.0, "weight_decay": 1e-2}),
    "dog": space(
        gradtx.dog,
        None,
        "DoG (arXiv:2302.12022): a rate of 1",
        (),
        weight_decay=(0.0, Range(1e-5, 1e-1)),
    ),
    "adafactor": space(
        optimizers()["adafactor"],
        (1e-2, Range(1e-3, 1.0)),
        "Adafactor (arXiv:1804.04235): 1e-2, relative to the parameter's size",
    ),
    "nadamw": space(
        gradtx.nadamw, (1e-3, RATE), ALGOPERF, b1=(0.9, MOMENTUM), weight_decay=(1e-2, DECAY)
    ),
    "adopt": space(gradtx.adopt, (1e-3, RATE), "ADOPT (arXiv:2411.02853)", b1=(0.9, MOMENTUM)),
    "ademamix": space(
        gradtx.ademamix,
        (1e-3, RATE),
        "AdEMAMix (arXiv:2409.03137): alpha of 2 to 10; the slow mean as long as the run",
        b3=(0.99, Range(1e-3, 3e-2, below_one=True)),
        alpha=(5.0, Range(2.0, 10.0)),
        weight_decay=(1e-2, DECAY),
    ),
    "lamb": space(
        gradtx.lamb,
        (1e-2, Range(3e-4, 3e-1)),
        "LAMB (arXiv:1904.00962): 1e-2 on small batches",
        b1=(0.9, MOMENTUM),
        weight_decay=(1e-2, DECAY),
    ),
    "mars_adamw": space(
        gradtx.mars_adamw,
        (3e-3, RATE),
        "MARS (arXiv:2411.10438): 3e-3, gamma of 0.025",
        gamma=(0.025, Range(5e-3, 0.1)),
        weight_decay=(1e-2, DECAY),
    ),
    "sophia": space(
        gradtx.sophia,
        (1e-3, RATE),
        "Sophia (arXiv:2305.14342): Hutchinson's estimate each ten steps; gamma of 0.01 to 0.05",
        gamma=(0.01, Range(1e-3, 0.1)),
        weight_decay=(1e-2, DECAY),
    ),
    "hyperball, adam": space(
        adam_on_spheres,
        (1e-2, Range(3e-4, 3e-1)),
        "Hyperball (arXiv:2606.16899): relative steps; Adam for what is not hidden",
        BOTH,
        adam_learning_rate=(3e-3, RATE),
        b1=(0.9, MOMENTUM),
    ),
    "hyperball, muon": space(
        muon_on_spheres,
        (1e-2, Range(3e-4, 3e-1)),
        "Hyperball (arXiv:2606.16899): relative steps; Adam for what is not hidden",
        BOTH,
        adam_learning_rate=(3e-3, RATE),
        beta=(0.95, Range(0.01, 0.25, below_one=True)),
    ),
}

# What is averaged over the run, goes over into SGD or finds its own size has no schedule, nor what
# computes its parameters from the sum of all gradients: a rate of zero would make them zero.
UNSCHEDULED = (
    *("adabound", "adagrad_da", "asgd", "cocob", "dowg", "ftrl", "lbfgs", "mechanize sgd"),
    *("polyak_sgd", "schedule_free_sgd"),
)
# Published rates that are neither Adam's nor SGD's.
RATES = {
    "adahessian": (0.15, Range(1e-3, 1.0)),
    "adadelta": (1.0, Range(1e-2, 10.0)),
    "dadapt_adamw": (1.0, Range(0.5, 2.0)),
    "dowg": (1.0, Range(0.5, 2.0)),
    "cocob": (1.0, Range(0.5, 2.0)),
    "fromage": (1e-2, Range(1e-3, 1.0)),
    "galore": (1e-2, RATE),
    "lars": (1.0, Range(3e-2, 30.0)),
    "mars_lion": (1e-3, Range(3e-5, 3e-2)),
    "momo": (1.0, Range(1e-2, 10.0)),
    "polyak_sgd": (1.0, Range(1e-2, 10.0)),
    "rprop": (1e-3, RATE),
    "schedule_free_sgd": (1.0, Range(1e-2, 10.0)),
    "sign_sgd": (1e-3, Range(3e-5, 3e-2)),
    "signum": (1e-3, Range(3e-5, 3e-2)),
    "simplified_ademamix": (1e-5, Range(1e-5, 1e-2)),
    "splus": (0.1, Range(1e-2, 10.0)),
    "tiger": (1e-3, Range(3e-5, 3e-2)),
    **dict.fromkeys(
        (
            *("adagrad", "adagrad_da", "adagrad_decay", "asgd", "ftrl", "novograd", "noisy_sgd"),
            *("optimistic_gradient_descent", "proximal_adagrad", "proximal_gradient_descent"),
            *("rowwise_adagrad", "sgd", "sm3"),
        ),
        (0.1, SGD),
    ),
}
# What these were measured with before they had such an argument.
BEFORE: dict[str, dict[str, Any]] = {
    "adabelief": {"weight_decay": None},
    "galore": {"proj_type": "reverse_std"},
}
# Optimizers of hidden matrices that leave the rest to another one.
MATRICES = ("adamuon", "muon2", "muown", "newton_muon", "polargrad")


def outside(name: str) -> Space:
    """Of an optimizer that is a ``module:function``, or its space if that is what is there.

    Raises:
        ImportError: there is no such module.
        ValueError: nothing of that name is in it.
        TypeError: it is neither a function nor a `Space`.
    """
    module, _, attribute = name.partition(":")
    build = getattr(importlib.import_module(module), attribute, None)
    if build is None:
        raise ValueError(f"{name}: there is no {attribute!r} in the module {module!r}")
    if isinstance(build, Space):
        return build
    if not callable(build):
        raise TypeError(f"{name} must be a function of hyperparameters, or a Space, not {build!r}")
    return derived(name, build, {})


def other(name: str) -> Space:
    """Of any other optimizer that gradtx publishes."""
    then = BEFORE.get(name, {})
    build = functools.partial(optimizers()[name], **then) if then else optimizers()[name]
    return derived(name, build, then)


def number(default: Any, otherwise: float) -> float:
    """The default of an argument if that is a number."""
    return float(default) if isinstance(default, int | float) else otherwise


def around(default: Any) -> tuple[float, Range]:
    """A learning rate, and the three decades around it; Adam's if the argument has no default."""
    rate = number(default, 0.0)
    return (rate, Range(rate / 10**1.5, rate * 10**1.5)) if rate > 0 else (1e-3, RATE)


def derived(name: str, build: Build, then: Mapping[str, Any]) -> Space:
    """What is searched by its arguments: its learning rate, first decay and weight decay."""
    names = {n: p for n, p in inspect.signature(build).parameters.items() if n not in then}
    rate = next((n for n in ("learning_rate", "max_learning_rate") if n in names), None)
    found: dict[str, tuple[float, Range]] = {}
    scheduled: tuple[str, ...] = ()
    if rate is not None and name != "lbfgs":
        found[rate] = RATES.get(name) or around(names[rate].default)
        scheduled = () if name in UNSCHEDULED else (rate,)
    if "b1" in names:
        found["b1"] = (number(names["b1"].default, 0.9), MOMENTUM)
    if "weight_decay" in names:
        found["weight_decay"] = (number(names["weight_decay"].default, 0.0), DECAY)
    if name in MATRICES:
        build = with_adamw(build)
        found["adam_learning_rate"] = (3e-3, RATE)
        scheduled = BOTH
    return Space(
        build,
        {key: value for key, (value, _) in found.items()},
        {key: span for key, (_, span) in found.items()},
        "its defaults, and the ranges of its kin",
        scheduled,
        rate if rate in found else None,
    )


def spaces() -> dict[str, Space]:
    """Of every optimizer that gradtx publishes, those that are compared most first."""
    rest = [name for name in optimizers() if name not in PRINCIPAL]
    return PRINCIPAL | {name: other(name) for name in rest}
