"""What the documentation says of each builder, from its declaration and from trying it."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

import gradtx
from gradtx.names.namespace import homes

ROWS, COLUMNS = 512, 256
SHAPE = jax.ShapeDtypeStruct((ROWS, COLUMNS), jnp.float32)
SCALAR = jax.ShapeDtypeStruct((), jnp.float32)
TOUCHED = gradtx.Rows(
    jax.ShapeDtypeStruct((4,), jnp.int32),
    jax.ShapeDtypeStruct((4, COLUMNS), jnp.float32),
    SHAPE.shape,
)

# Values for arguments without a default. Around `sgd`, which keeps nothing, a wrapper's state is
# its own.
INNER = ("inner", "optimizer", "opt", "base_optimizer", "fast_optimizer", "adv_optimizer")
ARGUMENTS: dict[str, Any] = {
    **dict.fromkeys(INNER, gradtx.sgd(0.1)),
    "learning_rate": 0.1,
    "init_step": ("heuristic", 1e-6),
    "decay": 0.9,
    "max_delta": 1.0,
    "max_norm": 1.0,
    "threshold": 1.0,
    "clipping": 0.01,
    "step_size": 0.1,
    "step_size_fn": gradtx.constant_schedule(0.1),
    "mask": True,
    "freeze_mask": False,
    "eta": 0.1,
    "gamma": 0.55,
    "gradients": gradtx.spsa(),
    "projection": gradtx.projections.projection_non_negative,
    "every": 2,
    "every_k_schedule": 2,
    "sync_period": 2,
    "slow_step_size": 0.5,
    "max_consecutive_errors": 3,
    "max_backtracking_steps": 10,
    "max_linesearch_steps": 10,
    "l2_norm_clip": 1.0,
    "noise_multiplier": 1.0,
    "seed": 0,
}
# What a schedule is drawn with, over `STEPS`.
STEPS = 200
SCHEDULED: dict[str, Any] = {
    "init_value": 1.0,
    "value": 1.0,
    "end_value": 0.1,
    "peak_value": 1.0,
    "max_value": 1.0,
    "base_value": 0.1,
    "transition_steps": 100,
    "decay_steps": STEPS,
    "first_decay_steps": 50,
    "warmup_steps": 40,
    "decay_rate": 0.3,
    "power": 2.0,
    "factor": gradtx.constant_schedule(0.98),
    "interpolate_type": "linear",
    "boundaries": [80],
    "schedules": [gradtx.linear_schedule(0.0, 1.0, 80), gradtx.cosine_decay_schedule(1.0, 120)],
    "factors": (gradtx.cosine_decay_schedule(1.0, STEPS), gradtx.cyclic_schedule(0.5, 1.0, 20)),
    "cosine_kwargs": [
        {"init_value": 0.0, "peak_value": peak, "warmup_steps": 10, "decay_steps": 100}
        for peak in (1.0, 0.5)
    ],
    "inner": gradtx.cosine_decay_schedule(1.0, STEPS // 2),
}
# The matrix on which all are tried is no factor of LoRA.
NO_PAIRS: dict[str, Any] = {"pairs": lambda tree: []}
LORA = ("lora_plus", "lora_fa", "riemannian_lora")
LORA += tuple(f"scale_by_{name}" for name in LORA)
# Those whose start is not the peak that `SCHEDULED` has, and what other names need.
OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(LORA, NO_PAIRS),
    "differentially_private_aggregate": {"seed": 0},
    "dpsgd": {"seed": 0},
    "linear_schedule": {"init_value": 0.0, "end_value": 1.0},
    "half_life_schedule": {"init_value": 0.9, "end_value": 0.9999},
    "wsd_schedule": {"warmup_steps": 20, "total_steps": STEPS, "decay_steps": 60},
    "warmup_constant_schedule": {"init_value": 0.0},
    "warmup_cosine_decay_schedule": {"init_value": 0.0},
    "warmup_exponential_decay_schedule": {"init_value": 0.0},
    "piecewise_constant_schedule": {"boundaries_and_scales": {60: 0.5, 140: 0.2}},
    "piecewise_interpolate_schedule": {"boundaries_and_scales": {60: 0.5, 140: 0.2}},
    "cyclic_schedule": {"step_size_up": 25},
}
FAMILIES = {
    "optimizers": "optimizer",
    "transforms": "transform",
    "wrappers": "wrapper",
    "schedules": "schedule",
    "estimators": "estimator",
    "composition": "composition",
    "sparse": "wrapper",
    "distributed": "distributed",
}
NOT_ALONE = ("mars", "orthogonalize", "sizes_and_directions")
WRAPPED = ("schedule_free_adamw", "schedule_free_sgd")  # optimizers in the file of a wrapper
GIVEN: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("", {}),
    ("parameters", {"params": SHAPE}),
    ("loss", {"value": SCALAR}),
    ("parameters, loss", {"params": SHAPE, "value": SCALAR}),
    ("loss function", {"params": SHAPE, "value": SCALAR, "grad": SHAPE, "value_fn": None}),
)


@dataclass(frozen=True)
class Entry:
    """One line of the catalogue; what could not be tried is None."""

    name: str
    kind: str
    file: str
    summary: str
    bytes: float | None = None
    needs: str | None = None
    rows: bool | None = None
    year: str = ""
    paper: str = ""


def docstring(name: str) -> str:
    return inspect.getdoc(getattr(gradtx, name)) or ""


def source(text: str) -> tuple[str, str]:
    """The year and the arXiv number or DOI of the first paper that a docstring names."""
    found = re.search(r"^Source: (.*?)(?:\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
    if found is None:
        return "", ""
    first = found[1].partition(";")[0]
    year = re.search(r"\b(?:18|19|20)\d\d\b(?!\.)", re.sub(r"arXiv:\S+|doi:\S+", "", first))
    paper = re.search(r"arXiv:\d{4}\.\d{4,5}|arXiv:[\w.-]+/\d+|doi:[^\s,;]+[^\s,;.]", found[1])
    return year[0] if year else "", paper[0] if paper else ""


def kind_of(name: str, module: str) -> str:
    if name in WRAPPED:
        return "optimizer"
    kind = FAMILIES.get(module.split(".")[1], "wrapper")
    if kind == "optimizer":
        if name.startswith("scale_by_") or name in NOT_ALONE:
            return "rule"
        if name.endswith("_estimator_diag_hessian"):
            return "transform"
    return kind


def made(builder: Any, values: Mapping[str, Any]) -> Any:
    """What a builder builds from `values` for what has no default; None if one is missing."""
    required = [p for p in builder.signature.parameters.values() if p.default is p.empty]
    if not {p.name for p in required} <= set(values):
        return None
    if required and required[0].kind is inspect.Parameter.VAR_POSITIONAL:
        return builder.public(*values[required[0].name])
    return builder.public(**{p.name: values[p.name] for p in required} | OWN.get(builder.name, {}))


def works(tx: Any, updates: Any, params: Any = None, **extra: Any) -> bool:
    """Whether one step can be traced; refusals are what a user would see."""
    if "value_fn" in extra:
        extra["value_fn"] = lambda p, **_: jnp.sum(p)

    def step(updates: Any, params: Any, arrays: Any) -> Any:
        state = tx.init(jnp.zeros(SHAPE.shape) if params is None else params)
        return tx.update(updates, state, params, **arrays, **functions)[0]

    functions = {k: v for k, v in extra.items() if callable(v)}
    arrays = {k: v for k, v in extra.items() if not callable(v)}
    try:
        jax.eval_shape(step, updates, params, arrays)
    except Exception:
        return False
    return True


def tried(tx: Any) -> dict[str, Any]:
    needs = next((label for label, given in GIVEN if works(tx, SHAPE, **given)), None)
    if needs is None:
        return {}
    kept = gradtx.describe(tx, SHAPE).slot_bytes / (ROWS * COLUMNS)
    return {"bytes": kept, "needs": needs, "rows": works(tx, TOUCHED, **dict(GIVEN[-1][1]))}


def entry(name: str, builder: Any) -> Entry:
    module = builder.function.__module__
    text = docstring(name)
    summary = re.sub(r":\w+:(?=`)", "", text.partition("\n")[0])
    kind = kind_of(name, module)
    year, paper = source(text)
    tx = None if kind in ("schedule", "estimator") else made(builder, ARGUMENTS)
    facts = {} if tx is None else tried(tx)
    return Entry(name, kind, module.split(".")[-1], summary, year=year, paper=paper, **facts)


@functools.cache
def entries() -> dict[str, Entry]:
    """Every builder that gradtx publishes, by name."""
    found: dict[str, Callable[..., Any]] = {
        name: getattr(gradtx, name).builder
        for name in homes("gradtx")
        if hasattr(getattr(gradtx, name), "builder")
    }
    return {name: entry(name, builder) for name, builder in sorted(found.items())}


def schedule(name: str) -> Any:
    """The schedule that is drawn on its entry, None if it is none by itself."""
    return made(getattr(gradtx, name).builder, SCHEDULED)
