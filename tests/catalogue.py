"""Every public transformation, once, with what it can do; the contracts run over this list."""

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import optax

import gradtx
from gradtx.declarations.declaration import Builder
from gradtx.names.namespace import homes


@dataclass(frozen=True)
class Entry:
    """A transformation and its capabilities.

    make: builds it small; bad: arguments that must be refused; optax: its live twin there;
    rows: runs on the rows of a table; complex: runs on complex leaves; why: reasons for a False;
    examples: takes gradients of single examples, these in the first dimension;
    keeps: of an optimizer, how many numbers it keeps for a matrix of ROWS x COLUMNS, as its paper
    counts them, scalars of the tree not included; rate: of an optimizer, a learning rate whose
    steps parameters in bfloat16 do not lose, where that of `make` is too small; dense: how many of
    the numbers it keeps are kept for the whole tree, and not for a leaf; alone: of an optimizer,
    that it is in none of the libraries that are tested beside, nor is its authors' code; leaves:
    the shapes of further leaves that the contracts' trees have for it, by name: those that belong
    together; cancels: of an optimizer, that terms of an update, each rounded by its link, nearly
    cancel in an entry.
    """

    make: Callable[[], Any]
    bad: tuple[Mapping[str, Any], ...] = ()
    optax: Callable[[], Any] | None = None
    rows: bool = True
    complex: bool = True
    why: str = ""
    examples: bool = False
    keeps: int = 0
    rate: float | None = None
    alone: bool = False
    dense: int = 0
    leaves: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    cancels: bool = False

    @functools.cached_property
    def made(self) -> Any:
        """What `make` builds, once for all that only look at it, as files of tests do when read."""
        return self.make()


@functools.cache
def builders() -> tuple[Builder, ...]:
    """The builders, of transformations, schedules and estimators, that gradtx publishes."""
    public = [getattr(gradtx, name) for name in homes("gradtx")]
    return tuple(each.builder for each in public if hasattr(each, "builder"))


def optimizers() -> list[str]:
    """The names of the complete optimizers, whichever file they are in."""
    links = {"mars", "orthogonalize", "sizes_and_directions"}
    names = {
        builder.name
        for builder in builders()
        if builder.function.__module__.startswith("gradtx.optimizers.")
        and not builder.name.startswith("scale_by_")
        and not builder.name.endswith("_estimator_diag_hessian")
    }
    return sorted(names - links | {"schedule_free_adamw", "schedule_free_sgd"})


@functools.cache
def has_an_optimizer(name: str) -> bool:
    """Whether this is the rule alone of an optimizer that is in the catalogue too.

    What takes steps in many programs takes them with the optimizer, and so with the rule.
    """
    whole = name.removeprefix("scale_by_")
    if whole == name or whole not in CATALOGUE:
        return False
    alone, rules = (
        {r.function.__code__ for r in CATALOGUE[n].made.rules or ()} for n in (name, whole)
    )
    return bool(alone) and alone <= rules


def dpsgd_of_optax() -> Any:
    """Optax's `dpsgd`, which passes its seed on under a deprecated name, and warns about it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return optax.contrib.dpsgd(0.1, 0.5, 0.1, seed=1, momentum=0.9)


# A matrix, and what optimizers keep for one; the ranks are those in the catalogue.
ROWS, COLUMNS = 512, 256
MATRIX = ROWS * COLUMNS
SIDES = ROWS + COLUMNS
SQUARES = ROWS**2 + COLUMNS**2
RANK, PAIRS = 1, 3  # of galore, apollo, fira and psgd_lra, and of lbfgs

NEGATIVE = {"learning_rate": -0.1}
NAN = {"learning_rate": float("nan")}
TEXT = {"learning_rate": "fast"}
RATES = (NEGATIVE, NAN, TEXT)
SIGNED = (NAN, TEXT)

# The shapes of the leaves that the contracts try, the bare one too, in a model of half the width.
WIDE = {"": (3,), "b": (3,), "w": (3, 2), "x0": (0,), "x03": (0, 3), "x203": (2, 0, 3)}
WIDE |= {"x30": (3, 0), "row": (2,), "w_too": (3, 2), "table": (5, 2)}
WIDE |= {"stack": (2, 3, 4), "stacks": (2, 2, 3, 2)}
# Whatever else the tests call a leaf.
NAMED = (
    "a",
    "bias",
    "c",
    "first",
    "h",
    "matrix",
    "odd",
    "second",
    "square",
    "third",
    "v",
    "y",
    "z",
)
WIDE |= dict.fromkeys(NAMED, (3,))
WIDE |= {name: (3,) for i in range(40) for name in (f"{i:02}", f"w{i}")}
NARROW = WIDE | {"b": (1,), "w": (3, 1)}

IN_OUT = gradtx.ByRole(convention="in_out")
FACTORS = {"lora_a": (8, 2), "lora_b": (2, 8)}

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
        bad=(
            *SIGNED,
            {"learning_rate": 0.1, "nesterov": "yes"},
            {"learning_rate": 0.1, "momentum": 2.0},
            {"learning_rate": 0.1, "momentum": -1.0},
        ),
        optax=lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
        keeps=MATRIX,
    ),
    "sign_sgd": Entry(
        lambda: gradtx.sign_sgd(0.1), bad=SIGNED, optax=lambda: optax.sign_sgd(0.1), keeps=0
    ),
    "scale_by_sign": Entry(lambda: gradtx.scale_by_sign(), optax=lambda: optax.scale_by_sign()),
    # adam
    "scale_by_adam": Entry(
        lambda: gradtx.scale_by_adam(),
        bad=({"b1": 1.0}, {"b2": -0.1}, {"eps": -1e-8}, {"eps": None}, {"nesterov": 1}),
        optax=lambda: optax.scale_by_adam(),
    ),
    "adam": Entry(
        lambda: gradtx.adam(1e-2, nesterov=True),
        bad=(
            *SIGNED,
            {},
            {"learning_rate": 0.1, "b1": 1.0},
            {"learning_rate": 0.1, "b3": 0.1},
        ),
        optax=lambda: optax.adam(1e-2, nesterov=True),
        keeps=2 * MATRIX,
        rate=0.1,
    ),
    "adamw": Entry(
        lambda: gradtx.adamw(1e-2, weight_decay=0.1),
        bad=(*SIGNED, {"learning_rate": 0.1, "weight_decay": -1.0}),
        optax=lambda: optax.adamw(1e-2, weight_decay=0.1),
        keeps=2 * MATRIX,
        rate=0.1,
    ),
    # adagrad
    "scale_by_rss": Entry(
        lambda: gradtx.scale_by_rss(),
        bad=({"initial_accumulator_value": -1.0}, {"eps": -1.0}),
        optax=lambda: optax.scale_by_rss(),
    ),
    "adagrad": Entry(
        lambda: gradtx.adagrad(0.1),
        bad=SIGNED,
        optax=lambda: optax.adagrad(0.1),
        keeps=MATRIX,
        rate=0.5,
    ),
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
        bad=(
            *SIGNED,
            {"learning_rate": 0.1, "decay": 1.5},
            {"learning_rate": 0.1, "momentum": 2.0},
        ),
        optax=lambda: optax.rmsprop(0.01, momentum=0.9),
        keeps=2 * MATRIX,
    ),
    # lion
    "scale_by_lion": Entry(
        lambda: gradtx.scale_by_lion(),
        bad=({"b1": 1.0}, {"mode": "soft"}),
        optax=lambda: optax.scale_by_lion(),
    ),
    "lion": Entry(
        lambda: gradtx.lion(1e-2), bad=SIGNED, optax=lambda: optax.lion(1e-2), keeps=MATRIX
    ),
    # scaling
    "scale": Entry(
        lambda: gradtx.scale(0.5), bad=({"step_size": "x"},), optax=lambda: optax.scale(0.5)
    ),
    "scale_by_batch_size": Entry(
        lambda: gradtx.scale_by_batch_size(16.0),
        bad=({"size": 0.0}, {"size": 16.0, "power": -1.0}),
    ),
    "scale_by_schedule": Entry(
        lambda: gradtx.scale_by_schedule(gradtx.linear_schedule(1.0, 0.1, 10)),
        bad=({"step_size_fn": 0.1},),
        optax=lambda: optax.scale_by_schedule(optax.linear_schedule(1.0, 0.1, 10)),
    ),
    "scale_by_learning_rate": Entry(
        lambda: gradtx.scale_by_learning_rate(gradtx.exponential_decay(0.1, 10, 0.5)),
        bad=SIGNED,
        optax=lambda: optax.scale_by_learning_rate(optax.exponential_decay(0.1, 10, 0.5)),
    ),
    # decay
    "add_decayed_weights": Entry(
        lambda: gradtx.add_decayed_weights(0.1),
        bad=({"weight_decay": -0.1},),
        optax=lambda: optax.add_decayed_weights(0.1),
    ),
    "add_row_decayed_weights": Entry(
        lambda: gradtx.add_row_decayed_weights(0.01, 5.0),
        bad=({"weight_decay": -0.1}, {"halflife": 0.0}),
    ),
    # averaging
    "trace": Entry(
        lambda: gradtx.trace(0.9),
        bad=({"decay": "x"}, {"decay": float("nan")}, {"decay": 2.0}, {"decay": -1.0}),
        optax=lambda: optax.trace(0.9),
    ),
    "ema": Entry(lambda: gradtx.ema(0.9), bad=({"decay": 1.0},), optax=lambda: optax.ema(0.9)),
    # clipping
    "clip": Entry(
        lambda: gradtx.clip(0.5), bad=({"max_delta": -1.0},), optax=lambda: optax.clip(0.5)
    ),
    "clip_by_norm": Entry(lambda: gradtx.clip_by_norm(0.5), bad=({"max_norm": -1.0},)),
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
    "clip_by_last_norm": Entry(
        lambda: gradtx.clip_by_last_norm(0.5), bad=({"max_norm": -1.0}, {"max_norm": None})
    ),
    # cleaning
    "zero_nans": Entry(lambda: gradtx.zero_nans(), optax=lambda: optax.zero_nans()),
    "centralize": Entry(lambda: gradtx.centralize(), optax=lambda: optax.centralize()),
    # second-order
    "hutchinson_estimator_diag_hessian": Entry(
        lambda: gradtx.hutchinson_estimator_diag_hessian(1),
        bad=({"random_seed": "x"}, {"random_seed": True}),
        rows=False,
        complex=False,
        why="the diagonal of a complex Hessian is not one number for each entry",
    ),
    "gnb_estimator_diag_hessian": Entry(
        lambda: gradtx.gnb_estimator_diag_hessian(sampled_loss, 4),
        bad=({"sampled_loss_fn": len}, {"sampled_loss_fn": len, "batch_size": 0}),
        rows=False,
        complex=False,
        why="the diagonal of a complex Hessian is not one number for each entry",
    ),
    "scale_by_sophia": Entry(
        lambda: gradtx.scale_by_sophia(update_interval=2, hessian_first=True),
        bad=({"b1": 1.0}, {"eps": 0.0}, {"update_interval": 0}, {"clip_threshold": -1.0}),
        rows=False,
        complex=False,
        why="the diagonal of a complex Hessian is not one number for each entry",
    ),
    "sophia": Entry(
        lambda: gradtx.sophia(1e-2, update_interval=2),
        bad=(*SIGNED, {"learning_rate": 0.1, "b2": 1.0}),
        rows=False,
        complex=False,
        why="the diagonal of a complex Hessian is not one number for each entry",
        keeps=2 * MATRIX,
    ),
    "scale_by_adahessian": Entry(
        lambda: gradtx.scale_by_adahessian(),
        bad=({"b1": 1.0}, {"b2": 1.0}, {"eps": -1.0}, {"hessian_power": 1.5}),
        rows=False,
        complex=False,
        why="the diagonal of a complex Hessian is not one number for each entry",
    ),
    "adahessian": Entry(
        lambda: gradtx.adahessian(0.1, weight_decay=0.01),
        bad=(*SIGNED, {"learning_rate": 0.1, "spatial_average": 1}),
        rows=False,
        complex=False,
        why="the diagonal of a complex Hessian is not one number for each entry",
        keeps=2 * MATRIX,
        alone=True,
    ),
    # matrix
    "scale_by_muon": Entry(
        lambda: gradtx.scale_by_muon(weight_dimension_numbers=as_matrices),
        bad=(
            *({"beta": 1.0}, {"ns_steps": 0}, {"preconditioning": "x"}, {"ns_dtype": "int8"}),
            *({"ns_coeffs": (1.0,)}, {"ns_coeffs": "bronze"}),
        ),
        rows=False,
    ),
    "muon": Entry(
        lambda: gradtx.muon(0.02),
        bad=(*RATES, {"learning_rate": 0.1, "ns_coeffs": "bronze"}),
        optax=lambda: optax.contrib.muon(0.02),
        rows=False,
        keeps=MATRIX,
    ),
    "scale_by_normuon": Entry(
        lambda: gradtx.scale_by_normuon(weight_dimension_numbers=as_matrices),
        bad=({"b1": 1.0}, {"b2": 1.0}, {"eps": -1.0}, {"rms": -1.0}, {"ns_steps": 0}),
        rows=False,
    ),
    "normuon": Entry(
        lambda: gradtx.normuon(0.02),
        bad=(*RATES, {"learning_rate": 0.1, "b1": 1.0}),
        rows=False,
        keeps=MATRIX + COLUMNS,
    ),
    "scale_by_adamuon": Entry(
        lambda: gradtx.scale_by_adamuon(weight_dimension_numbers=as_matrices),
        bad=({"decay": 1.0}, {"eps": -1.0}, {"rms": -1.0}, {"ns_coeffs": "bronze"}),
        rows=False,
    ),
    "adamuon": Entry(
        lambda: gradtx.adamuon(0.02),
        bad=(*RATES, {"learning_rate": 0.1, "decay": 1.0}),
        rows=False,
        keeps=2 * MATRIX,
    ),
    "scale_by_muon2": Entry(
        lambda: gradtx.scale_by_muon2(
            factored=True, ns_coeffs="standard", weight_dimension_numbers=as_matrices
        ),
        bad=({"decay": 1.0}, {"b2": 1.0}, {"eps": -1.0}, {"ns_steps": 0}, {"ns_coeffs": "bronze"}),
        rows=False,
    ),
    "muon2": Entry(
        lambda: gradtx.muon2(0.02),
        bad=(*RATES, {"learning_rate": 0.1, "decay": 1.0}),
        rows=False,
        keeps=2 * MATRIX,
        alone=True,
    ),
    "scale_by_input_moments": Entry(
        lambda: gradtx.scale_by_input_moments(every=2, weight_dimension_numbers=as_matrices),
        bad=({"decay": 1.0}, {"ridge": 0.0}, {"eps": -1.0}, {"every": 0}, {"block_size": 0}),
        rows=False,
    ),
    "newton_muon": Entry(
        lambda: gradtx.newton_muon(0.02, every=2),
        bad=(*RATES, {"learning_rate": 0.1, "beta": 1.0}, {"learning_rate": 0.1, "ridge": 0.0}),
        rows=False,
        keeps=MATRIX + 2 * ROWS**2,
        alone=True,
    ),
    "scale_by_polargrad": Entry(
        lambda: gradtx.scale_by_polargrad(weight_dimension_numbers=as_matrices),
        bad=({"decay": 1.0}, {"eps": -1.0}, {"ns_steps": 0}),
        rows=False,
    ),
    "polargrad": Entry(
        lambda: gradtx.polargrad(0.02),
        bad=(*RATES, {"learning_rate": 0.1, "decay": 1.0}),
        rows=False,
        keeps=MATRIX,
    ),
    "scale_by_dion": Entry(
        lambda: gradtx.scale_by_dion(0.5, weight_dimension_numbers=as_matrices),
        bad=({"rank_fraction": 0.0}, {"decay": 1.0}, {"eps": -1.0}, {"power_iters": 0}),
        rows=False,
    ),
    "dion": Entry(
        lambda: gradtx.dion(0.02),
        bad=(*RATES, {"learning_rate": 0.1, "decay": 1.0}),
        rows=False,
        keeps=MATRIX + COLUMNS * COLUMNS // 4,
    ),
    "scale_by_dion2": Entry(
        lambda: gradtx.scale_by_dion2(ns_coeffs="standard", weight_dimension_numbers=as_matrices),
        bad=({"fraction": 0.0}, {"decay": 1.0}, {"eps": -1.0}, {"ns_steps": 0}),
        rows=False,
    ),
    "dion2": Entry(
        lambda: gradtx.dion2(0.02),
        bad=(*RATES, {"learning_rate": 0.1, "decay": 1.0}),
        rows=False,
        keeps=MATRIX,
    ),
    "scale_by_dion3": Entry(
        lambda: gradtx.scale_by_dion3(ns_coeffs="standard", weight_dimension_numbers=as_matrices),
        bad=({"fraction": 0.0}, {"b2": 1.0}, {"eps": -1.0}, {"ns_coeffs": "bronze"}),
        rows=False,
    ),
    "dion3": Entry(
        lambda: gradtx.dion3(0.02),
        bad=(*RATES, {"learning_rate": 0.1, "decay": 1.0}),
        rows=False,
        keeps=MATRIX + COLUMNS,
    ),
    "scion": Entry(
        lambda: gradtx.scion(0.02),
        bad=(*RATES, {"learning_rate": 0.1, "radius": -1.0}),
        rows=False,
        keeps=MATRIX,
    ),
    "scale_by_spectral_sphere": Entry(
        lambda: gradtx.scale_by_spectral_sphere(
            "standard", 3, power_iters=2, solver_steps=3, weight_dimension_numbers=as_matrices
        ),
        bad=({"eps": -1.0}, {"ns_steps": 0}, {"power_iters": 0}, {"solver_steps": 0}),
        rows=False,
    ),
    "spectral_sphere": Entry(
        lambda: gradtx.spectral_sphere(0.02, solver_steps=5),
        bad=(*RATES, {"learning_rate": 0.1, "radius": 0.0}),
        rows=False,
        keeps=MATRIX,
        alone=True,
    ),
    # factors of LoRA
    "scale_by_lora_plus": Entry(
        lambda: gradtx.scale_by_lora_plus(4.0, pairs=factors, roles=IN_OUT),
        bad=(
            *({"ratio": -1.0}, {"pairs": ("*/a",)}, {"pairs": ("*/a", "b")}, {"pairs": 3}),
            *({"pairs": ("*/a", 3)}, {"pairs": "*/a"}, {"roles": "out_in"}),
        ),
        leaves=FACTORS,
    ),
    "lora_plus": Entry(
        lambda: gradtx.lora_plus(1e-2, 4.0, pairs=factors, roles=IN_OUT),
        bad=(*SIGNED, {"learning_rate": 0.1, "ratio": -1.0}, {"learning_rate": 0.1, "roles": 3}),
        keeps=2 * MATRIX,
        leaves=FACTORS,
    ),
    "scale_by_lora_fa": Entry(
        lambda: gradtx.scale_by_lora_fa(2.0, 1e-2, pairs=factors, roles=IN_OUT),
        bad=({"scaling": 0.0}, {"damping": 0.0}, {"pairs": ()}),
        leaves=FACTORS,
    ),
    "lora_fa": Entry(
        lambda: gradtx.lora_fa(1e-2, 2.0, damping=1e-2, pairs=factors, roles=IN_OUT),
        bad=(*SIGNED, {"learning_rate": 0.1, "scaling": 0.0}, {"learning_rate": 0.1, "b1": 1.0}),
        keeps=2 * MATRIX,
        leaves=FACTORS,
    ),
    "scale_by_riemannian_lora": Entry(
        lambda: gradtx.scale_by_riemannian_lora(0.1, pairs=factors, roles=IN_OUT),
        bad=({"damping": 0.0}, {"damping": None}, {"pairs": [("a", "b"), ("c",)]}),
        leaves=FACTORS,
    ),
    "riemannian_lora": Entry(
        lambda: gradtx.riemannian_lora(1e-2, damping=0.1, pairs=factors, roles=IN_OUT),
        bad=(*SIGNED, {"learning_rate": 0.1, "damping": 0.0}),
        keeps=2 * MATRIX,
        leaves=FACTORS,
    ),
    "sizes_and_directions": Entry(
        lambda: gradtx.sizes_and_directions(gradtx.adam(0.1), gradtx.sgd(0.1), as_matrices),
        rows=False,
    ),
    "muown": Entry(
        lambda: gradtx.muown(0.02),
        bad=(*RATES, {"learning_rate": 0.1, "b2": 1.0}),
        rows=False,
        keeps=MATRIX + 4 * COLUMNS,
    ),
    "hyperball": Entry(
        lambda: gradtx.hyperball(gradtx.adam(0.1), 0.1),
        bad=({"inner": gradtx.identity(), "learning_rate": -0.1},),
        rows=False,
    ),
    "radial_brake": Entry(
        lambda: gradtx.radial_brake(0.5, 0.9), bad=({"outward": -0.1},), rows=False
    ),
    "keep_radius": Entry(lambda: gradtx.keep_radius(), rows=False),
    "floor_update_ratio": Entry(
        lambda: gradtx.floor_update_ratio(0.1, each_output=True), bad=({"ratio": -0.1},), rows=False
    ),
    "ema_nesterov": Entry(
        lambda: gradtx.ema_nesterov(0.5, 0.8), bad=({"step_size": -0.1}, {"decay": 1.0})
    ),
    "primal_averaging": Entry(
        lambda: gradtx.primal_averaging(0.8, 0.7), bad=({"mu_x": 1.0}, {"mu_y": 0.0}, {"mu_y": 1.5})
    ),
    "qk_clip": Entry(
        lambda: gradtx.qk_clip({"*": gradtx.ClippedHeads(-1)}, 50.0),
        bad=({"heads": {}, "threshold": 0.0},),
    ),
    "scale_by_galore": Entry(
        lambda: gradtx.scale_by_galore(rank=1, update_proj_gap=2),
        bad=({"rank": 0}, {"rank": 1.5}, {"update_proj_gap": 0}, {"proj_type": "whole"}),
        rows=False,
    ),
    "galore": Entry(
        lambda: gradtx.galore(0.02, rank=1, update_proj_gap=2, proj_type="reverse_std"),
        bad=(*SIGNED, {"learning_rate": 0.1, "rank": 0}),
        optax=lambda: optax.contrib.galore(0.02, rank=1, update_proj_gap=2),
        rows=False,
        keeps=RANK * (2 * COLUMNS + ROWS),
    ),
    "scale_by_fira": Entry(
        lambda: gradtx.scale_by_fira(rank=1, update_proj_gap=2),
        bad=({"rank": 0}, {"update_proj_gap": 0}, {"growth": 0.0}),
        rows=False,
    ),
    "fira": Entry(
        lambda: gradtx.fira(0.02, rank=1, update_proj_gap=2),
        bad=(*RATES, {"learning_rate": 0.1, "rank": 0}),
        rows=False,
        keeps=RANK * (2 * ROWS + COLUMNS) + 1,
    ),
    "scale_by_apollo": Entry(
        lambda: gradtx.scale_by_apollo(rank=1, update_proj_gap=2, whole=True),
        bad=({"rank": 0}, {"update_proj_gap": 0}, {"key": "x"}),
        rows=False,
    ),
    "apollo": Entry(
        lambda: gradtx.apollo(0.02, rank=1, update_proj_gap=2),
        bad=(*RATES, {"learning_rate": 0.1, "rank": 0}),
        rows=False,
        keeps=2 * RANK * ROWS + 1,
    ),
    "scale_by_splus": Entry(
        lambda: gradtx.scale_by_splus(precondition_frequency=2),
        bad=({"b1": 1.0}, {"max_precond_dim": 0}, {"other_scale": -1.0}),
        rows=False,
    ),
    "splus": Entry(
        lambda: gradtx.splus(0.02, precondition_frequency=2, staggered=True),
        bad=(*RATES, {"learning_rate": 0.1, "precondition_frequency": 0}),
        rows=False,
        keeps=2 * MATRIX + 2 * SQUARES,
    ),
    "scale_by_conda": Entry(
        lambda: gradtx.scale_by_conda(eps=1e-3, update_proj_gap=2, scale=0.25),
        bad=({"b1": 1.0}, {"update_proj_gap": 0}, {"eps": -1.0}),
        rows=False,
    ),
    "conda": Entry(
        lambda: gradtx.conda(0.02, update_proj_gap=2),
        bad=(*RATES, {"learning_rate": 0.1, "update_proj_gap": 0}),
        rows=False,
        keeps=2 * MATRIX + COLUMNS**2,
    ),
    "scale_by_soap": Entry(
        lambda: gradtx.scale_by_soap(precondition_frequency=1),
        bad=(
            {"b1": 1.0},
            {"shampoo_beta": 1.0},
            {"max_precond_dim": 0},
            {"eps": -1.0},
            {"basis": "svd"},
        ),
        rows=False,
    ),
    "soap": Entry(
        lambda: gradtx.soap(0.02, precondition_frequency=2, staggered=True),
        bad=(*RATES, {"learning_rate": 0.1, "precondition_frequency": 0}),
        rows=False,
        keeps=2 * MATRIX + 2 * SQUARES,
    ),
    "scale_by_soap_muon": Entry(
        lambda: gradtx.scale_by_soap_muon(eps=1e-4, precondition_frequency=1, one_sided=True),
        bad=({"b1": 1.0}, {"max_precond_dim": 0}, {"ns_steps": 0}, {"ns_coeffs": (1.0,)}),
        rows=False,
    ),
    "soap_muon": Entry(
        lambda: gradtx.soap_muon(0.02, eps=1e-4),
        bad=RATES,
        rows=False,
        keeps=2 * MATRIX + 2 * SQUARES,
        alone=True,
    ),
    "scale_by_kl_shampoo": Entry(
        lambda: gradtx.scale_by_kl_shampoo(),
        bad=({"b1": 1.0}, {"max_precond_dim": 0}, {"initial_eigenvalue": 0.0}),
        rows=False,
    ),
    "kl_shampoo": Entry(
        lambda: gradtx.kl_shampoo(0.02, precondition_frequency=1, basis="products"),
        bad=RATES,
        rows=False,
        keeps=MATRIX + 2 * SQUARES + SIDES,
    ),
    "scale_by_kl_soap": Entry(
        lambda: gradtx.scale_by_kl_soap(precondition_frequency=1, basis="products"),
        bad=({"b1": 1.0}, {"max_precond_dim": 0}, {"initial_eigenvalue": 0.0}),
        rows=False,
    ),
    "kl_soap": Entry(
        lambda: gradtx.kl_soap(0.02, precondition_frequency=2),
        bad=RATES,
        rows=False,
        keeps=2 * MATRIX + 2 * SQUARES + SIDES,
    ),
    "scale_by_kron": Entry(
        lambda: gradtx.scale_by_kron(max_size_triangular=4),
        bad=(
            {"b1": 1.0},
            {"max_size_triangular": -1},
            {"key": "x"},
            {"max_rms": -1.0},
            {"geometry": "x"},
        ),
        rows=False,
    ),
    "kron": Entry(
        lambda: gradtx.kron(0.02),
        bad=(*RATES, {"learning_rate": 0.1, "preconditioner_update_probability": 1.5}),
        rows=False,
        keeps=MATRIX + SQUARES,
    ),
    "scale_by_psgd_lra": Entry(
        lambda: gradtx.scale_by_psgd_lra(rank=2, whiten_momentum=True),
        bad=({"b1": 1.0}, {"rank": 0}, {"key": "x"}, {"max_rms": -1.0}, {"damping": -1.0}),
        rows=False,
    ),
    "psgd_lra": Entry(
        lambda: gradtx.psgd_lra(0.02, rank=RANK),
        bad=(*RATES, {"learning_rate": 0.1, "preconditioner_update_probability": 1.5}),
        rows=False,
        keeps=(2 * RANK + 2) * MATRIX,
    ),
    "scale_by_shampoo": Entry(
        lambda: gradtx.scale_by_shampoo(precondition_frequency=2, block_size=2),
        bad=(
            {"b1": 1.0},
            {"block_size": 0},
            {"root": 0},
            {"grafting": "lion"},
            {"root_method": "qr"},
        ),
        rows=False,
    ),
    "shampoo": Entry(
        lambda: gradtx.shampoo(0.02, precondition_frequency=2, eps=1e-4, root_method="newton"),
        bad=RATES,
        rows=False,
        keeps=2 * MATRIX + 2 * SQUARES,
    ),
    # line search
    "scale_by_backtracking_linesearch": Entry(
        lambda: gradtx.scale_by_backtracking_linesearch(5, store_grad=True),
        bad=({}, {"max_backtracking_steps": -1}, {"max_backtracking_steps": 5, "atol": -1.0}),
        optax=lambda: optax.scale_by_backtracking_linesearch(5, store_grad=True),
        why="precision: the line search tries rounded points",
        rows=False,
    ),
    "scale_by_zoom_linesearch": Entry(
        lambda: gradtx.scale_by_zoom_linesearch(5),
        bad=(
            {"max_linesearch_steps": 0},
            {"max_linesearch_steps": 5, "initial_guess_strategy": "two"},
        ),
        rows=False,
        why="precision: the line search tries rounded points",
    ),
    "scale_by_lbfgs": Entry(
        lambda: gradtx.scale_by_lbfgs(3),
        bad=({"memory_size": 0}, {"memory_size": 1.5}),
        rows=False,
    ),
    "lbfgs": Entry(
        lambda: gradtx.lbfgs(memory_size=3),
        bad=(NEGATIVE, TEXT, {"memory_size": 0}),
        rows=False,
        why="precision: the line search tries rounded points",
        keeps=(2 * PAIRS + 3) * MATRIX,
    ),
    "scale_by_lbfgsb": Entry(
        lambda: gradtx.scale_by_lbfgsb(-1.0, 1.5, 3),
        bad=({"memory_size": 0}, {"lower": 1.0, "upper": 0.0}, {"lower": float("nan")}),
        rows=False,
        complex=False,
    ),
    "lbfgsb": Entry(
        lambda: gradtx.lbfgsb(-3.0, 3.5, 3),
        bad=({"memory_size": 0}, {"lower": 1.0, "upper": 0.0}, {"max_linesearch_steps": 0}),
        rows=False,
        complex=False,
        why="precision: the line search tries rounded points",
        keeps=(2 * PAIRS + 3) * MATRIX,
    ),
    # bfgs
    "scale_by_bfgs": Entry(
        lambda: gradtx.scale_by_bfgs(self_scaled=True),
        bad=({"self_scaled": 1}, {"scale_init_precond": None}),
        rows=False,
    ),
    "bfgs": Entry(
        lambda: gradtx.bfgs(),
        bad=(NEGATIVE, TEXT, {"self_scaled": "yes"}),
        rows=False,
        why="precision: the line search tries rounded points",
        keeps=MATRIX**2 + 4 * MATRIX,
        dense=MATRIX**2,
    ),
    "scale_by_ssbroyden": Entry(
        lambda: gradtx.scale_by_ssbroyden(), bad=({"scale_init_precond": None},), rows=False
    ),
    "ssbroyden": Entry(
        lambda: gradtx.ssbroyden(),
        bad=(NEGATIVE, TEXT),
        rows=False,
        why="precision: the line search tries rounded points",
        keeps=MATRIX**2 + 4 * MATRIX,
        dense=MATRIX**2,
        alone=True,
    ),
    # projecting
    "project": Entry(
        lambda: gradtx.project("l2_ball", None, {"scale": 0.5}),
        bad=({"projection": "cone"},),
        rows=False,
        why="a projection needs the whole table",
    ),
    # trust and norms
    "scale_by_trust_ratio": Entry(
        lambda: gradtx.scale_by_trust_ratio(min_norm=0.1),
        bad=({"min_norm": -1.0}, {"trust_coefficient": -1.0}, {"eps": -1.0}),
        optax=lambda: optax.scale_by_trust_ratio(min_norm=0.1),
        rows=False,
    ),
    "scale_by_param_block_norm": Entry(
        lambda: gradtx.scale_by_param_block_norm(),
        bad=({"min_scale": -1.0},),
        optax=lambda: optax.scale_by_param_block_norm(),
        rows=False,
    ),
    "scale_by_param_block_rms": Entry(
        lambda: gradtx.scale_by_param_block_rms(),
        bad=({"min_scale": -1.0},),
        optax=lambda: optax.scale_by_param_block_rms(),
        rows=False,
    ),
    "normalize_by_update_norm": Entry(
        lambda: gradtx.normalize_by_update_norm(-0.1),
        bad=({"scale_factor": "x"}, {"eps": 0.0}),
        optax=lambda: optax.normalize_by_update_norm(-0.1),
    ),
    "adaptive_grad_clip": Entry(
        lambda: gradtx.adaptive_grad_clip(0.5),
        bad=({"clipping": -1.0}, {"clipping": 0.1, "eps": -1.0}),
        optax=lambda: optax.adaptive_grad_clip(0.5),
        rows=False,
    ),
    "normalize": Entry(lambda: gradtx.normalize(), optax=lambda: optax.contrib.normalize()),
    "adaptive_normalize": Entry(lambda: gradtx.adaptive_normalize(), bad=({"eta": -1.0},)),
    # layer-wise
    "scale_by_lamb": Entry(
        lambda: gradtx.scale_by_lamb(weight_decay=0.1, mask=is_matrix),
        bad=({"b1": 1.0}, {"eps": -1.0}, {"weight_decay": -1.0}),
        rows=False,
    ),
    "scale_by_lars": Entry(
        lambda: gradtx.scale_by_lars(0.1, is_bias, trust_ratio_mask=is_matrix),
        bad=({"weight_decay": -1.0}, {"trust_coefficient": -1.0}, {"eps": -1.0}),
        rows=False,
    ),
    "lamb": Entry(
        lambda: gradtx.lamb(1e-2, weight_decay=0.1),
        bad=(*SIGNED, {"learning_rate": 0.1, "b1": 1.0}),
        optax=lambda: optax.lamb(1e-2, weight_decay=0.1),
        rows=False,
        keeps=2 * MATRIX,
    ),
    "lars": Entry(
        lambda: gradtx.lars(1.0, weight_decay=0.1),
        bad=(
            *SIGNED,
            {"learning_rate": 0.1, "trust_coefficient": -1.0},
            {"learning_rate": 0.1, "momentum": -1.0},
        ),
        optax=lambda: optax.lars(1.0, weight_decay=0.1),
        rows=False,
        keeps=MATRIX,
    ),
    "fromage": Entry(
        lambda: gradtx.fromage(0.1),
        bad=(*RATES, {"learning_rate": 0.1, "min_norm": -1.0}),
        optax=lambda: optax.fromage(0.1),
        rows=False,
        keeps=0,
        rate=0.05,
    ),
    "scale_by_novograd": Entry(
        lambda: gradtx.scale_by_novograd(weight_decay=0.1),
        bad=({"b1": 1.0}, {"b2": -0.1}, {"eps": -1.0}),
        optax=lambda: optax.scale_by_novograd(weight_decay=0.1),
        rows=False,
    ),
    "novograd": Entry(
        lambda: gradtx.novograd(1e-2),
        bad=(*SIGNED, {"learning_rate": 0.1, "b1": 1.0}),
        optax=lambda: optax.novograd(1e-2),
        rows=False,
        keeps=MATRIX + 1,
    ),
    "scale_by_factored_rms": Entry(
        lambda: gradtx.scale_by_factored_rms(min_dim_size_to_factor=2),
        bad=({"decay_rate": -1.0}, {"min_dim_size_to_factor": 2.5}, {"step_offset": 0.5}),
        optax=lambda: optax.scale_by_factored_rms(min_dim_size_to_factor=2),
        rows=False,
    ),
    "adafactor": Entry(
        lambda: gradtx.adafactor(1e-2, 2, momentum=0.9, weight_decay_rate=1e-3),
        bad=(NEGATIVE, TEXT, {"momentum": 1.0}, {"clipping_threshold": -1.0}),
        optax=lambda: optax.adafactor(1e-2, 2, momentum=0.9, weight_decay_rate=1e-3),
        rows=False,
        keeps=MATRIX + SIDES + 1,
        rate=0.2,
        cancels=True,  # its direction and its decay
    ),
    "scale_by_sm3": Entry(
        lambda: gradtx.scale_by_sm3(),
        bad=({"b1": 1.0}, {"b2": 1.5}, {"eps": -1.0}),
        optax=lambda: optax.scale_by_sm3(),
        rows=False,
    ),
    "sm3": Entry(
        lambda: gradtx.sm3(0.1),
        bad=(*SIGNED, {"learning_rate": 0.1, "momentum": 1.0}),
        optax=lambda: optax.sm3(0.1),
        rows=False,
        keeps=MATRIX + SIDES,
        rate=0.5,
    ),
    "scale_by_adam_mini": Entry(
        lambda: gradtx.scale_by_adam_mini(),
        bad=({"b1": 1.0}, {"eps": -1.0}, {"block_axis": 0.5}),
        rows=False,
    ),
    "adam_mini": Entry(
        lambda: gradtx.adam_mini(1e-2, weight_decay=0.1),
        bad=(*SIGNED, {"learning_rate": 0.1, "b2": 1.0}),
        rows=False,
        keeps=MATRIX + COLUMNS,
        alone=True,
        rate=0.1,
    ),
    "scale_by_came": Entry(
        lambda: gradtx.scale_by_came(),
        bad=({"b3": 1.0}, {"eps": -1.0}, {"clipping_threshold": 0.0}),
        rows=False,
    ),
    "came": Entry(
        lambda: gradtx.came(1e-2, weight_decay=0.1),
        bad=(*SIGNED, {"learning_rate": 0.1, "b3": 1.0}),
        rows=False,
        keeps=MATRIX + 2 * SIDES + 1,
        alone=True,
        rate=0.05,
    ),
    "scale_by_stable_adamw": Entry(
        lambda: gradtx.scale_by_stable_adamw(weight_decay=0.1, mask=is_matrix),
        bad=({"b2": 1.0}, {"eps": -1.0}, {"weight_decay": -1.0}),
        rows=False,
    ),
    "stable_adamw": Entry(
        lambda: gradtx.stable_adamw(1e-2),
        bad=(*SIGNED, {"learning_rate": 0.1, "b1": 1.0}),
        rows=False,
        keeps=2 * MATRIX,
        alone=True,
        rate=0.1,
    ),
    "scale_by_adamp": Entry(
        lambda: gradtx.scale_by_adamp(weight_decay=0.1, mask=is_matrix, delta=1.0),
        bad=({"b1": 1.0}, {"eps": -1.0}, {"delta": -1.0}, {"wd_ratio": 1.5}, {"channel_axis": 0.5}),
        rows=False,
    ),
    "adamp": Entry(
        lambda: gradtx.adamp(1e-2, weight_decay=0.1),
        bad=(*SIGNED, {"learning_rate": 0.1, "b2": 1.0}, {"learning_rate": 0.1, "nesterov": 1}),
        rows=False,
        keeps=2 * MATRIX,
        alone=True,
        rate=0.1,
    ),
    "scale_by_stable_spam": Entry(
        lambda: gradtx.scale_by_stable_spam(gamma3=0.9, reset_interval=2),
        bad=({"b1": 1.0}, {"eps": -1.0}, {"gamma1": 1.0}, {"gamma3": -0.1}, {"reset_interval": -1}),
        rows=False,
    ),
    "stable_spam": Entry(
        lambda: gradtx.stable_spam(1e-2, weight_decay=0.1),
        bad=(*SIGNED, {"learning_rate": 0.1, "gamma2": 1.0}),
        rows=False,
        keeps=2 * MATRIX + 3,
        alone=True,
        rate=0.1,
    ),
    # rows
    "scale_by_rowwise_rss": Entry(
        lambda: gradtx.scale_by_rowwise_rss(),
        bad=({"eps": -1.0}, {"initial_accumulator_value": -1.0}),
    ),
    "rowwise_adagrad": Entry(
        lambda: gradtx.rowwise_adagrad(0.1), bad=SIGNED, keeps=ROWS, alone=True, rate=0.5
    ),
    "scale_by_rowwise_adam": Entry(lambda: gradtx.scale_by_rowwise_adam(), bad=({"b1": 1.0},)),
    "rowwise_adam": Entry(
        lambda: gradtx.rowwise_adam(1e-2), bad=SIGNED, keeps=MATRIX + ROWS, alone=True, rate=0.1
    ),
    "scale_by_adagrad_decay": Entry(
        lambda: gradtx.scale_by_adagrad_decay(0.1, 2),
        bad=({"accumulator_decay_step": 0}, {"accumulator_decay_rate": 1.5}),
    ),
    "adagrad_decay": Entry(
        lambda: gradtx.adagrad_decay(0.1, 0.1, 2), bad=SIGNED, keeps=MATRIX + ROWS, alone=True
    ),
    "dense_rows": Entry(lambda: gradtx.dense_rows(gradtx.adam(0.1))),
    "exact_rows": Entry(lambda: gradtx.exact_rows(gradtx.adam(0.1))),
    # ftrl, asgd
    "ftrl": Entry(
        lambda: gradtx.ftrl(0.1, l1_regularization_strength=0.01, beta=0.1),
        bad=(*RATES, {"learning_rate": 0.1, "learning_rate_power": 0.5}),
        keeps=2 * MATRIX,
    ),
    "asgd": Entry(
        lambda: gradtx.asgd(0.1, lambd=0.1, t0=1.0),
        bad=(*RATES, {"learning_rate": 0.1, "lambd": -1.0}),
        keeps=MATRIX,
    ),
    # variants of Adam and Lion from practice
    "scale_by_tiger": Entry(lambda: gradtx.scale_by_tiger(), bad=({"b1": 1.0},)),
    "tiger": Entry(
        lambda: gradtx.tiger(1e-2),
        bad=(*SIGNED, {"learning_rate": 0.1, "b1": 1.0}),
        keeps=MATRIX,
        alone=True,
    ),
    "scale_by_laprop": Entry(lambda: gradtx.scale_by_laprop(), bad=({"b1": 1.0}, {"eps": -1.0})),
    "laprop": Entry(
        lambda: gradtx.laprop(1e-2, weight_decay=0.1),
        bad=(*SIGNED, {"learning_rate": 0.1, "b2": 1.0}),
        keeps=2 * MATRIX,
        alone=True,
        rate=0.1,
    ),
    "scale_by_diffgrad": Entry(
        lambda: gradtx.scale_by_diffgrad(), bad=({"b1": 1.0}, {"eps": -1.0})
    ),
    "diffgrad": Entry(
        lambda: gradtx.diffgrad(1e-2, weight_decay=0.1),
        bad=(*SIGNED, {"learning_rate": 0.1, "b2": 1.0}),
        keeps=3 * MATRIX,
        alone=True,
        rate=0.1,
    ),
    "scale_by_qhadam": Entry(
        lambda: gradtx.scale_by_qhadam(), bad=({"b1": 1.0}, {"nu1": "x"}, {"nu2": 1.5})
    ),
    "qhadam": Entry(
        lambda: gradtx.qhadam(1e-2, weight_decay=0.1),
        bad=(*SIGNED, {"learning_rate": 0.1, "b2": 1.0}),
        keeps=2 * MATRIX,
        alone=True,
        rate=0.1,
    ),
    "scale_by_adabound": Entry(
        lambda: gradtx.scale_by_adabound(), bad=({"b1": 1.0}, {"gamma": 0.0})
    ),
    "adabound": Entry(
        lambda: gradtx.adabound(1e-2, weight_decay=0.1, base_lr=1e-2),
        bad=(*RATES, {"learning_rate": 0.1, "b2": 1.0}, {"learning_rate": 0.1, "base_lr": 0.0}),
        keeps=2 * MATRIX,
        alone=True,
        rate=0.1,
    ),
    # the family of Adam
    "scale_by_belief": Entry(
        lambda: gradtx.scale_by_belief(),
        bad=({"b1": 1.0}, {"eps_root": -1.0}),
        optax=lambda: optax.scale_by_belief(),
    ),
    "adabelief": Entry(
        lambda: gradtx.adabelief(1e-2),
        bad=SIGNED,
        optax=lambda: optax.adabelief(1e-2),
        keeps=2 * MATRIX,
        rate=0.1,
    ),
    "scale_by_adamax": Entry(
        lambda: gradtx.scale_by_adamax(),
        bad=({"b2": 1.0}, {"eps": -1.0}),
        optax=lambda: optax.scale_by_adamax(),
    ),
    "adamax": Entry(
        lambda: gradtx.adamax(1e-2),
        bad=SIGNED,
        optax=lambda: optax.adamax(1e-2),
        keeps=2 * MATRIX,
        rate=0.1,
    ),
    "adamaxw": Entry(
        lambda: gradtx.adamaxw(1e-2, weight_decay=0.1),
        bad=(*SIGNED, {"learning_rate": 0.1, "weight_decay": -1.0}),
        optax=lambda: optax.adamaxw(1e-2, weight_decay=0.1),
        keeps=2 * MATRIX,
        rate=0.1,
    ),
    "scale_by_adan": Entry(
        lambda: gradtx.scale_by_adan(),
        bad=({"b3": 1.0}, {"difference_weight": 2.0}),
        optax=lambda: optax.scale_by_adan(),
    ),
    "adan": Entry(
        lambda: gradtx.adan(1e-2),
        bad=SIGNED,
        optax=lambda: optax.adan(1e-2),
        keeps=4 * MATRIX,
        rate=0.1,
    ),
    "scale_by_amsgrad": Entry(
        lambda: gradtx.scale_by_amsgrad(),
        bad=({"b1": 1.0}, {"max_before_correction": "yes"}),
        optax=lambda: optax.scale_by_amsgrad(),
    ),
    "amsgrad": Entry(
        lambda: gradtx.amsgrad(1e-2, bias_correction_nu=False),
        bad=SIGNED,
        optax=lambda: optax.amsgrad(1e-2, bias_correction_nu=False),
        keeps=3 * MATRIX,
        rate=0.1,
    ),
    "scale_by_nadam": Entry(
        lambda: gradtx.scale_by_nadam(), bad=({"b1": 1.0}, {"momentum_decay": -1.0})
    ),
    "nadam": Entry(
        lambda: gradtx.nadam(1e-2),
        bad=SIGNED,
        optax=lambda: optax.nadam(1e-2),
        keeps=2 * MATRIX,
        rate=0.1,
    ),
    "nadamw": Entry(
        lambda: gradtx.nadamw(1e-2, weight_decay=0.1),
        bad=(*SIGNED, {"learning_rate": 0.1, "weight_decay": -1.0}),
        optax=lambda: optax.nadamw(1e-2, weight_decay=0.1),
        keeps=2 * MATRIX,
        rate=0.1,
    ),
    # No twin: Optax's is off by 0.6 % in float32; test_radam.py compares them in float64.
    "scale_by_radam": Entry(lambda: gradtx.scale_by_radam(), bad=({"b2": 1.0}, {"threshold": 3.9})),
    "radam": Entry(
        lambda: gradtx.radam(1e-2, nesterov=True),
        bad=(*SIGNED, {"learning_rate": 0.1, "threshold": 3.9}),
        keeps=2 * MATRIX,
        rate=0.1,
    ),
    "scale_by_yogi": Entry(
        lambda: gradtx.scale_by_yogi(),
        bad=({"b1": 1.0}, {"initial_accumulator_value": -1.0}),
        optax=lambda: optax.scale_by_yogi(),
    ),
    "yogi": Entry(
        lambda: gradtx.yogi(1e-2),
        bad=SIGNED,
        optax=lambda: optax.yogi(1e-2),
        keeps=2 * MATRIX,
        rate=0.1,
    ),
    "scale_by_acprop": Entry(
        lambda: gradtx.scale_by_acprop(),
        bad=({"b1": 1.0},),
        optax=lambda: optax.contrib.scale_by_acprop(),
    ),
    "acprop": Entry(
        lambda: gradtx.acprop(1e-3),
        bad=SIGNED,
        optax=lambda: optax.contrib.acprop(1e-3),
        keeps=2 * MATRIX,
        rate=0.1,
    ),
    "scale_by_adopt": Entry(
        lambda: gradtx.scale_by_adopt(),
        bad=({"b1": 1.0}, {"use_clipping": 1}),
        optax=lambda: optax.contrib.scale_by_adopt(),
    ),
    "adopt": Entry(
        lambda: gradtx.adopt(1e-2),
        bad=SIGNED,
        optax=lambda: optax.contrib.adopt(1e-2),
        keeps=2 * MATRIX,
        rate=0.1,
    ),
    "scale_by_ademamix": Entry(
        lambda: gradtx.scale_by_ademamix(),
        bad=({"b3": 1.0}, {"alpha": -1.0}),
        optax=lambda: optax.contrib.scale_by_ademamix(),
    ),
    "ademamix": Entry(
        lambda: gradtx.ademamix(1e-2, alpha=gradtx.linear_schedule(0.0, 5.0, 10)),
        bad=SIGNED,
        optax=lambda: optax.contrib.ademamix(1e-2, alpha=optax.linear_schedule(0.0, 5.0, 10)),
        keeps=3 * MATRIX,
        rate=0.05,
    ),
    "scale_by_simplified_ademamix": Entry(
        lambda: gradtx.scale_by_simplified_ademamix(alpha=2.0),
        bad=({"b1": 1.0}, {"alpha": -1.0}),
        optax=lambda: optax.contrib.scale_by_simplified_ademamix(alpha=2.0),
    ),
    "simplified_ademamix": Entry(
        lambda: gradtx.simplified_ademamix(1e-3),
        bad=SIGNED,
        optax=lambda: optax.contrib.simplified_ademamix(1e-3),
        keeps=2 * MATRIX,
    ),
    # adadelta, madgrad, rprop, signum
    "scale_by_adadelta": Entry(
        lambda: gradtx.scale_by_adadelta(),
        bad=({"rho": 1.0}, {"eps": -1.0}),
        optax=lambda: optax.scale_by_adadelta(),
    ),
    "adadelta": Entry(
        lambda: gradtx.adadelta(0.5, weight_decay=0.1),
        bad=RATES,
        optax=lambda: optax.adadelta(0.5, weight_decay=0.1),
        keeps=2 * MATRIX,
        rate=20.0,
    ),
    "scale_by_madgrad": Entry(
        lambda: gradtx.scale_by_madgrad(1e-2),
        bad=(*RATES, {"learning_rate": 0.1, "momentum": 1.5}),
        optax=lambda: optax.contrib.scale_by_madgrad(1e-2),
    ),
    "madgrad": Entry(
        lambda: gradtx.madgrad(1e-2),
        bad=RATES,
        optax=lambda: optax.contrib.madgrad(1e-2),
        keeps=3 * MATRIX,
    ),
    # No twin: Optax returns the update of the previous step.
    "scale_by_rprop": Entry(
        lambda: gradtx.scale_by_rprop(1e-2),
        bad=(
            *RATES,
            {"learning_rate": 0.1, "eta_plus": 0.9},
            {"learning_rate": 0.1, "eta_minus": 1.5},
        ),
        complex=False,
        why="a complex number has no sign",
    ),
    "rprop": Entry(
        lambda: gradtx.rprop(1e-2),
        bad=RATES,
        complex=False,
        why="a complex number has no sign; schedule: after the start it has no effect",
        keeps=2 * MATRIX,
    ),
    "signum": Entry(
        lambda: gradtx.signum(1e-2), bad=SIGNED, optax=lambda: optax.signum(1e-2), keeps=MATRIX
    ),
    # optimistic, noise
    "scale_by_optimistic_gradient": Entry(
        lambda: gradtx.scale_by_optimistic_gradient(beta=0.5),
        bad=({"alpha": "x"}, {"beta": float("nan")}),
        optax=lambda: optax.scale_by_optimistic_gradient(beta=0.5),
    ),
    "optimistic_gradient_descent": Entry(
        lambda: gradtx.optimistic_gradient_descent(1e-2),
        bad=SIGNED,
        optax=lambda: optax.optimistic_gradient_descent(1e-2),
        keeps=MATRIX,
        rate=0.1,
    ),
    "optimistic_adam": Entry(
        lambda: gradtx.optimistic_adam(1e-2),
        bad=(*RATES, {"learning_rate": 0.1, "optimism": -1.0}),
        keeps=3 * MATRIX,
        rate=0.1,
    ),
    "optimistic_adam_v2": Entry(
        lambda: gradtx.optimistic_adam_v2(1e-2),
        bad=SIGNED,
        optax=lambda: optax.optimistic_adam_v2(1e-2),
        keeps=3 * MATRIX,
        rate=0.1,
    ),
    "add_noise": Entry(
        lambda: gradtx.add_noise(0.01, 0.55, key=1),
        bad=({"eta": -1.0, "gamma": 0.5}, {"eta": 0.1, "gamma": 0.5, "key": "x"}),
        optax=lambda: optax.add_noise(0.01, 0.55, key=1),
        rows=False,
        why="the noise belongs to every row",
    ),
    "noisy_sgd": Entry(
        lambda: gradtx.noisy_sgd(1e-2, key=1),
        bad=SIGNED,
        optax=lambda: optax.noisy_sgd(1e-2, key=1),
        rows=False,
        why="the noise belongs to every row",
        keeps=0,
        rate=0.1,
    ),
    # proximal
    "shrink_params": Entry(
        lambda: gradtx.shrink_params(0.01, 0.1), bad=({"l1": -1.0}, {"l2": -1.0})
    ),
    "proximal_gradient_descent": Entry(
        lambda: gradtx.proximal_gradient_descent(0.1, 0.1, 0.1),
        bad=(*RATES, {"learning_rate": 0.1, "l1_regularization_strength": -1.0}),
        keeps=0,
    ),
    "proximal_adagrad": Entry(
        lambda: gradtx.proximal_adagrad(0.1, 0.1, 0.1, 0.1),
        bad=(*RATES, {"learning_rate": 0.1, "initial_accumulator_value": 0.0}),
        keeps=MATRIX,
        rate=0.5,
    ),
    "adagrad_da": Entry(
        lambda: gradtx.adagrad_da(0.1, 0.1, 0.01, 0.1),
        bad=(*RATES, {"learning_rate": 0.1, "l2_regularization_strength": -1.0}),
        keeps=2 * MATRIX,
    ),
    "orthogonalize": Entry(
        lambda: gradtx.orthogonalize(weight_dimension_numbers=as_matrices),
        bad=({"ns_steps": 0}, {"ns_coeffs": (1.0,)}, {"preconditioning": "x"}, {"eps": -1.0}),
        rows=False,
    ),
    "scale_by_shape": Entry(
        lambda: gradtx.scale_by_shape(0.2, as_matrices),
        bad=({"consistent_rms": -1.0}, {"scale": "x"}),
    ),
    # groups
    "partition": Entry(
        lambda: gradtx.partition(
            {"a": gradtx.adam(0.1), "b": gradtx.sgd(0.1, momentum=0.9)}, matrix_or_not
        ),
        bad=({"transforms": [], "param_labels": {}},),
    ),
    "freeze": Entry(
        lambda: gradtx.freeze(is_bias), optax=lambda: optax.freeze({"b": True, "w": False})
    ),
    "selective_transform": Entry(
        lambda: gradtx.selective_transform(gradtx.adam(0.1), freeze_mask=is_bias)
    ),
    # learning-rate-free
    "scale_by_cocob": Entry(
        lambda: gradtx.scale_by_cocob(),
        bad=({"alpha": 0.0}, {"eps": -1.0}),
        optax=lambda: optax.contrib.scale_by_cocob(),
    ),
    "cocob": Entry(
        lambda: gradtx.cocob(weight_decay=0.1),
        bad=(*RATES, {"alpha": -1.0}, {"weight_decay": -1.0}),
        optax=lambda: optax.contrib.cocob(weight_decay=0.1),
        keeps=5 * MATRIX,
    ),
    "scale_by_dog": Entry(
        lambda: gradtx.scale_by_dog(("distance", 0.1)),
        bad=(
            {},
            {"init_step": 0.1},
            {"init_step": ("guess", 0.1)},
            {"init_step": ("distance", -0.1)},
            {"init_step": ("distance", 0.1), "eps": -1.0},
        ),
    ),
    "dog": Entry(
        lambda: gradtx.dog(init_step=("heuristic", 1e-2)),
        bad=(*RATES, {"weight_decay": -1.0}),
        optax=lambda: optax.contrib.dog(init_step=("heuristic", 1e-2)),
        keeps=MATRIX,
    ),
    "scale_by_dowg": Entry(
        lambda: gradtx.scale_by_dowg(0.1),
        bad=({"init_estim_sq_dist": -1.0}, {"eps": None}),
    ),
    "dowg": Entry(
        lambda: gradtx.dowg(),
        bad=(*RATES, {"eps": -1.0}),
        optax=lambda: optax.contrib.dowg(),
        keeps=MATRIX,
    ),
    "scale_by_distance_over_gradients": Entry(
        lambda: gradtx.scale_by_distance_over_gradients(1e-2, global_scale=-1.0),
        bad=({"reps_rel": -1.0}, {"eps": -1.0}, {"global_scale": "x"}),
        optax=lambda: optax.scale_by_distance_over_gradients(1e-2, global_scale=-1.0),
        rows=False,
    ),
    "dadapt_adamw": Entry(
        lambda: gradtx.dadapt_adamw(estim_lr0=1e-3, weight_decay=0.1),
        bad=(*RATES, {"betas": 0.9}, {"betas": (0.9, 1.0)}, {"estim_lr0": 0.0}),
        optax=lambda: optax.contrib.dadapt_adamw(estim_lr0=1e-3, weight_decay=0.1),
        rows=False,
        keeps=3 * MATRIX,
    ),
    "prodigy": Entry(
        lambda: gradtx.prodigy(estim_lr0=1e-3, weight_decay=0.1),
        bad=(*RATES, {"betas": (0.9,)}, {"beta3": 1.0}, {"estim_lr_coef": 0.0}),
        optax=lambda: optax.contrib.prodigy(estim_lr0=1e-3, weight_decay=0.1),
        rows=False,
        keeps=4 * MATRIX,
    ),
    "momo": Entry(
        lambda: gradtx.momo(0.1),
        bad=(*RATES, {"beta": 1.0}, {"adapt_lower_bound": 1}),
        optax=lambda: optax.contrib.momo(0.1),
        rows=False,
        keeps=MATRIX,
    ),
    "momo_adam": Entry(
        lambda: gradtx.momo_adam(1e-3, adapt_lower_bound=True),
        bad=(*RATES, {"b2": 1.0}, {"weight_decay": -1.0}),
        optax=lambda: optax.contrib.momo_adam(1e-3, adapt_lower_bound=True),
        rows=False,
        keeps=2 * MATRIX,
        rate=0.1,
    ),
    "scale_by_polyak": Entry(
        lambda: gradtx.scale_by_polyak(f_min=0.1),
        bad=({"f_min": "x"}, {"max_learning_rate": -1.0}, {"variant": "spp"}),
        optax=lambda: optax.scale_by_polyak(f_min=0.1),
    ),
    "polyak_sgd": Entry(
        lambda: gradtx.polyak_sgd(0.1, variant="sps+"),
        bad=({"scaling": -1.0}, {"eps": -1.0}),
        optax=lambda: optax.polyak_sgd(0.1, variant="sps+"),
        keeps=0,
    ),
    # schedule-free, links
    "cautious": Entry(
        lambda: gradtx.cautious(gradtx.adam(0.1)),
        bad=({"inner": optax.sgd(1.0), "rescale": "no"}, {"inner": optax.sgd(1.0), "x": 1}),
        rows=False,
    ),
    "add_cautious_decayed_weights": Entry(
        lambda: gradtx.add_cautious_decayed_weights(0.1), bad=({"weight_decay": -0.1},)
    ),
    "grokfast_ema": Entry(lambda: gradtx.grokfast_ema(0.9), bad=({"alpha": 1.0}, {"lamb": -1.0})),
    "grokfast_ma": Entry(
        lambda: gradtx.grokfast_ma(2, warmup=False),
        bad=({"window_size": 0}, {"window_size": 1.5}, {"filter_type": "max"}, {"lamb": -1.0}),
        rows=False,
    ),
    "mars": Entry(
        lambda: gradtx.mars(),
        bad=({"b1": 1.0}, {"gamma": -1.0}, {"max_norm": -1.0}),
        rows=False,
    ),
    "mars_adamw": Entry(
        lambda: gradtx.mars_adamw(1e-2, max_norm=None),
        bad=(*SIGNED, {"learning_rate": 0.1, "b2": 1.0}),
        keeps=3 * MATRIX,
        alone=True,
        rate=0.1,
    ),
    "mars_lion": Entry(
        lambda: gradtx.mars_lion(1e-2),
        bad=(*SIGNED, {"learning_rate": 0.1, "b1": 1.0}),
        rows=False,
        keeps=2 * MATRIX,
        alone=True,
    ),
    "schedule_free": Entry(
        lambda: gradtx.schedule_free(gradtx.rmsprop(0.1), 0.1, 0.8),
        bad=(
            {"base_optimizer": optax.sgd(1.0), "learning_rate": -1.0},
            {"base_optimizer": optax.sgd(1.0), "learning_rate": 1.0, "b1": 0.0},
        ),
        optax=lambda: optax.contrib.schedule_free(optax.rmsprop(0.1), 0.1, 0.8),
    ),
    "schedule_free_sgd": Entry(
        lambda: gradtx.schedule_free_sgd(0.1, weight_decay=0.1),
        bad=(*RATES, {"warmup_steps": 0}, {"warmup_steps": 1.5}, {"b1": 1.5}),
        optax=lambda: optax.contrib.schedule_free_sgd(0.1, weight_decay=0.1),
        keeps=MATRIX,
    ),
    "schedule_free_adamw": Entry(
        lambda: gradtx.schedule_free_adamw(0.1),
        bad=(*RATES, {"b2": 1.0}, {"learning_rate": len, "warmup_steps": 5}),
        optax=lambda: optax.contrib.schedule_free_adamw(0.1),
        keeps=2 * MATRIX,
    ),
    # wrappers
    "apply_if_finite": Entry(
        lambda: gradtx.apply_if_finite(gradtx.adam(0.1), 3),
        bad=({"inner": optax.sgd(1.0), "max_consecutive_errors": -1},),
        optax=lambda: optax.apply_if_finite(optax.adam(0.1), 3),
    ),
    "conditionally_transform": Entry(
        lambda: gradtx.conditionally_transform(gradtx.adam(0.1), is_even),
        optax=lambda: optax.conditionally_transform(optax.adam(0.1), is_even),
    ),
    "skip_if_none": Entry(lambda: gradtx.skip_if_none(gradtx.adam(0.1))),
    "conditionally_mask": Entry(
        lambda: gradtx.conditionally_mask(gradtx.adam(0.1), is_even),
        optax=lambda: optax.conditionally_mask(optax.adam(0.1), is_even),
    ),
    "accumulate": Entry(
        lambda: gradtx.accumulate(gradtx.adam(0.1), 2),
        bad=(
            {"inner": optax.sgd(1.0), "every": 0},
            {"inner": optax.sgd(1.0), "every": 1.5},
            {"inner": optax.sgd(1.0), "every": 2, "rows": {"table": 0}},
            {"inner": optax.sgd(1.0), "every": 2, "noise_decay": 1.0},
            {"inner": optax.sgd(1.0), "every": 2, "up_to": 4},
            {"inner": optax.sgd(1.0), "every": 1, "noise_decay": 0.9, "up_to": 4},
        ),
    ),
    "multi_steps": Entry(
        lambda: gradtx.multi_steps(gradtx.adam(0.1), 2),
        bad=({"opt": optax.sgd(1.0), "every_k_schedule": 0},),
        optax=lambda: optax.MultiSteps(optax.adam(0.1), 2).gradient_transformation(),
    ),
    "apply_every": Entry(
        lambda: gradtx.apply_every(2),
        bad=({"k": 0},),
        optax=lambda: optax.apply_every(2),
    ),
    "injected": Entry(
        lambda: gradtx.inject_hyperparams(gradtx.adam)(gradtx.linear_schedule(0.1, 0.0, 200)),
        optax=lambda: optax.inject_hyperparams(optax.adam)(optax.linear_schedule(0.1, 0.0, 200)),
    ),
    "layerwise_rate_decay": Entry(
        lambda: gradtx.layerwise_rate_decay(gradtx.adam(0.1), 0.5, number_of_axes, 3),
        bad=({"inner": optax.sgd(1.0), "decay": 1.5}, {"inner": optax.sgd(1.0), "top": -1}),
    ),
    "lookahead": Entry(
        lambda: gradtx.lookahead(gradtx.adam(0.1), 2, 0.5),
        bad=({"fast_optimizer": optax.sgd(1.0), "sync_period": 0, "slow_step_size": 0.5},),
    ),
    "proximal": Entry(
        lambda: gradtx.proximal(gradtx.sgd(0.1), "l1", None, {"strength": 0.01}, True),
        bad=({"inner": gradtx.adam(0.1), "penalty": "isotonic"}, {"penalty": "huber"}),
        rows=False,
        why="a penalty's map needs the whole table",
    ),
    "reduce_on_plateau": Entry(
        lambda: gradtx.reduce_on_plateau(0.5, patience=2),
        bad=({"factor": 1.0}, {"patience": 0}, {"rtol": 0.0}, {"mode": "least"}),
        optax=lambda: optax.contrib.reduce_on_plateau(0.5, patience=2),
        why="schedule: it is one, and takes none",
    ),
    "flatten": Entry(
        lambda: gradtx.flatten(gradtx.adam(0.1)),
        optax=lambda: optax.flatten(optax.adam(0.1)),
        rows=False,
    ),
    "mechanize": Entry(
        lambda: gradtx.mechanize(gradtx.adam(1.0), s_init=1e-2),
        bad=(
            {"base_optimizer": optax.sgd(1.0), "num_betas": 0},
            {"base_optimizer": optax.sgd(1.0), "s_init": 0.0},
            {"base_optimizer": optax.sgd(1.0), "weight_decay": -1.0},
        ),
        optax=lambda: optax.contrib.mechanize(optax.adam(1.0), s_init=1e-2),
        rows=False,
    ),
    "sam": Entry(
        lambda: gradtx.sam(gradtx.sgd(0.1), gradtx.chain(gradtx.normalize(), gradtx.sgd(0.1))),
        bad=({"optimizer": optax.sgd(1.0), "adv_optimizer": optax.sgd(1.0), "sync_period": 0},),
    ),
    "extragradient": Entry(lambda: gradtx.extragradient(gradtx.adam(0.1)), rows=False),
    "asam": Entry(
        lambda: gradtx.asam(gradtx.sgd(0.1), 0.1, reset_state=False),
        bad=({"optimizer": optax.sgd(1.0), "rho": -1.0}, {"optimizer": optax.sgd(1.0), "eta": "x"}),
    ),
    "gsam": Entry(
        lambda: gradtx.gsam(gradtx.sgd(0.1), gradtx.chain(gradtx.normalize(), gradtx.sgd(0.1))),
        bad=({"optimizer": optax.sgd(1.0), "adv_optimizer": optax.sgd(1.0), "alpha": -1.0},),
    ),
    # examples and privacy
    "per_example": Entry(
        lambda: gradtx.per_example(0.5), bad=({"max_norm": -1.0},), rows=False, examples=True
    ),
    "differentially_private_aggregate": Entry(
        lambda: gradtx.differentially_private_aggregate(0.5, 0.1, key=1),
        bad=(
            {"l2_norm_clip": 1.0, "noise_multiplier": 1.0},
            {"l2_norm_clip": -1.0, "noise_multiplier": 1.0, "key": 1},
            {"l2_norm_clip": 1.0, "noise_multiplier": 1.0, "key": 1, "seed": 1},
            {"l2_norm_clip": 1.0, "noise_multiplier": 1.0, "key": "x"},
        ),
        optax=lambda: optax.contrib.differentially_private_aggregate(0.5, 0.1, key=1),
        rows=False,
        examples=True,
    ),
    "differentially_private": Entry(
        lambda: gradtx.differentially_private(gradtx.adam(0.1), 0.5, 0.1, key=1, every=2),
        bad=(
            {"inner": optax.sgd(1.0), "l2_norm_clip": 1.0, "noise_multiplier": -1.0, "key": 1},
            {
                "inner": optax.sgd(1.0),
                "l2_norm_clip": 1.0,
                "noise_multiplier": 1.0,
                "key": 1,
                "every": 0,
            },
        ),
        rows=False,
        examples=True,
    ),
    "dpsgd": Entry(
        lambda: gradtx.dpsgd(0.1, 0.5, 0.1, key=1, momentum=0.9),
        bad=(
            {**NAN, "l2_norm_clip": 1.0, "noise_multiplier": 1.0, "seed": 1},
            {"learning_rate": 0.1, "l2_norm_clip": 1.0, "noise_multiplier": 1.0},
        ),
        optax=dpsgd_of_optax,
        rows=False,
        examples=True,
    ),
    "ema_params": Entry(
        lambda: gradtx.ema_params(0.9),
        bad=({"decay": 1.0}, {"overwrite_every": 0}, {"window": 0}, {"start": -1}),
        rows=False,
    ),
    "swa_params": Entry(lambda: gradtx.swa_params(1, 2), bad=({"every": 0},), rows=False),
    "decay_first": Entry(
        lambda: gradtx.decay_first(gradtx.adam(0.1), 0.01),
        bad=({"inner": optax.sgd(1.0), "decay": 1.5},),
    ),
    "dynamic_loss_scale": Entry(
        lambda: gradtx.dynamic_loss_scale(gradtx.adam(0.1), 8.0, 2),
        bad=(
            {"inner": optax.sgd(1.0), "loss_scale": 0.0},
            {"inner": optax.sgd(1.0), "period": 0},
            {"inner": optax.sgd(1.0), "factor": 0.5},
        ),
    ),
    "estimated_gradients": Entry(
        # The difference of two losses magnifies their rounding by the inverse of the scale.
        lambda: gradtx.estimated_gradients(gradtx.adam(0.1), gradtx.spsa(0.1)),
        bad=(
            {"inner": optax.sgd(1.0), "gradients": "spsa"},
            {"inner": optax.sgd(1.0), "gradients": gradtx.spsa(key=0.5)},
        ),
    ),
    "stochastic_rounding": Entry(
        lambda: gradtx.stochastic_rounding(gradtx.adam(0.1), 1),
        bad=({"inner": optax.sgd(1.0), "key": "x"}, {"inner": optax.sgd(1.0), "key": 0.5}),
        why="precision: its updates lead to rounded parameters",
    ),
    "compensated": Entry(
        lambda: gradtx.compensated(gradtx.adam(0.1)),
        bad=({"inner": optax.sgd(1.0), "residual": "int4"},),
        why="precision: its updates lead to rounded parameters",
    ),
    "master_weights": Entry(
        lambda: gradtx.master_weights(gradtx.adam(0.1)),
        bad=({"inner": optax.sgd(1.0), "dtype": "float64"},),
        why="precision: its updates lead to rounded parameters",
    ),
    "guard": Entry(
        lambda: gradtx.guard(
            gradtx.adam(0.1), window=4, warmup=2, clip_quantile=0.5, skip_zero=True
        ),
        bad=(
            {"inner": optax.sgd(1.0), "deviations": 0.0},
            {"inner": optax.sgd(1.0), "window": 1},
            {"inner": optax.sgd(1.0), "warmup": 200},
            {"inner": optax.sgd(1.0), "clip_quantile": 1.5},
            {"inner": optax.sgd(1.0), "skip_zero": "yes"},
        ),
    ),
    "offload": Entry(
        lambda: gradtx.offload(gradtx.adam(0.1), min_size=0),
        bad=({"inner": optax.sgd(1.0), "min_size": -1}, {"inner": optax.sgd(1.0), "strict": 1}),
    ),
    "count_steps": Entry(lambda: gradtx.count_steps()),
    "snapshot": Entry(
        lambda: gradtx.snapshot("norm", norm),
        optax=lambda: optax.snapshot("norm", optax.tree.norm),
    ),
    "monitor": Entry(lambda: gradtx.monitor({"norm": gradtx.measure_with_ema(norm, 0.9)})),
    "measure_with_ema": Entry(lambda: gradtx.measure_with_ema(norm, 0.9), bad=({"decay": 1.0},)),
    "split_real_and_imaginary": Entry(
        lambda: gradtx.split_real_and_imaginary(gradtx.adam(0.1)),
        optax=lambda: optax.contrib.split_real_and_imaginary(optax.adam(0.1)),
    ),
    "split_leaves": Entry(
        lambda: gradtx.split_leaves(gradtx.adam(0.1), last_axis_in_two),
        bad=({"splits": "w"}, {"splits": {3: gradtx.SplitLeaf(0, (1,))}}),
        rows=False,
    ),
    "trust_gate": Entry(
        lambda: gradtx.trust_gate(gradtx.adam(0.1)),
        bad=(
            *({"decay": 1.0}, {"floor": -0.1}, {"cap": 1.5}),
            *({"min_agreement": 1.0}, {"min_alignment": -0.1}, {"power": 0.0}),
        ),
        rows=False,
    ),
    # distributed
    "aggregate": Entry(
        lambda: gradtx.aggregate("data"),
        bad=(
            {"axis_name": 3},
            {"axis_name": "data", "op": "median"},
            {"axis_name": "data", "noise_decay": 1.0},
        ),
    ),
    "share_value": Entry(
        lambda: gradtx.share_value(gradtx.adam(0.1), "data"),
        bad=({"inner": optax.sgd(1.0), "axis_name": 3},),
    ),
    "local_sgd": Entry(
        lambda: gradtx.local_sgd(gradtx.adam(0.1), 2, "data"),
        bad=(
            {"inner": optax.sgd(1.0), "every": 0, "axis_name": "data"},
            {"inner": optax.sgd(1.0), "every": 2, "axis_name": 3},
        ),
    ),
    "diloco": Entry(
        lambda: gradtx.diloco(
            gradtx.adam(0.1), gradtx.sgd(0.7, momentum=0.9, nesterov=True), 2, "data"
        ),
        bad=(
            {"inner": optax.sgd(1.0), "outer": optax.sgd(1.0), "every": 0, "axis_name": "data"},
            {"inner": optax.sgd(1.0), "outer": optax.sgd(1.0), "every": 2, "axis_name": None},
        ),
    ),
    "aggregate_bf16": Entry(
        lambda: gradtx.aggregate_bf16("data"),
        bad=({"axis_name": 3}, {"axis_name": "data", "op": "median"}),
        complex=False,
        why="there is no half of a complex64",
    ),
    "aggregate_int8": Entry(
        lambda: gradtx.aggregate_int8("data"),
        bad=({"axis_name": 3}, {"axis_name": "data", "block_size": 0}),
        complex=False,
        why="integers are real",
    ),
    "aggregate_top_k": Entry(
        lambda: gradtx.aggregate_top_k("data", 0.5),
        bad=({"axis_name": 3}, {"axis_name": "data", "fraction": 0.0}),
        complex=False,
        why="an index and a float32 are sent",
    ),
    "aggregate_power_sgd": Entry(
        lambda: gradtx.aggregate_power_sgd("data", 1),
        bad=({"axis_name": 3}, {"axis_name": "data", "rank": 0}),
        complex=False,
        why="as the other compressed forms",
    ),
    "aggregate_chunked_top_k": Entry(
        lambda: gradtx.aggregate_chunked_top_k("data", 0.5, chunk=4),
        bad=(
            {"axis_name": 3},
            {"axis_name": "data", "fraction": 1.5},
            {"axis_name": "data", "chunk": 129},
            {"axis_name": "data", "decay": 1.5},
        ),
        complex=False,
        why="as the other compressed forms",
    ),
    "aggregate_dct": Entry(
        lambda: gradtx.aggregate_dct("data", 0.5, chunk=4),
        bad=({"axis_name": 3}, {"axis_name": "data", "chunk": 0}),
        complex=False,
        why="as the other compressed forms",
    ),
    "demo": Entry(
        lambda: gradtx.demo(1e-2, "data", fraction=0.5, chunk=4, weight_decay=0.1),
        bad=(
            {**NAN, "axis_name": "data"},
            {"learning_rate": 0.1, "axis_name": "data", "weight_decay": -1.0},
        ),
        complex=False,
        why="as the other compressed forms",
    ),
    "scale_by_distributed_dion": Entry(
        lambda: gradtx.scale_by_distributed_dion("data", 0.5, weight_dimension_numbers=as_matrices),
        bad=(
            {"axis_name": 3},
            {"axis_name": "data", "rank_fraction": 0.0},
            {"axis_name": "data", "decay": 1.0},
            {"axis_name": "data", "eps": -1.0},
            {"axis_name": "data", "power_iters": 0},
        ),
        rows=False,
    ),
    "distributed_dion": Entry(
        lambda: gradtx.distributed_dion(0.02, "data"),
        bad=(
            {"learning_rate": -0.1, "axis_name": "data"},
            {"learning_rate": 0.1, "axis_name": "data", "decay": 1.0},
        ),
        rows=False,
        keeps=MATRIX + COLUMNS * COLUMNS // 4,
    ),
    "sparse_loco": Entry(
        lambda: gradtx.sparse_loco(gradtx.adam(0.1), 2, "data", fraction=0.5, chunk=4),
        bad=(
            {"inner": optax.sgd(1.0), "every": 0, "axis_name": "data"},
            {"inner": optax.sgd(1.0), "every": 2, "axis_name": "data", "decay": -0.1},
        ),
        complex=False,
        why="as the other compressed forms",
    ),
    "muloco": Entry(
        lambda: gradtx.muloco(1e-2, 2, "data", weight_decay=0.1),
        bad=(
            {"learning_rate": -0.1, "every": 2, "axis_name": "data"},
            {"learning_rate": 0.1, "every": 0, "axis_name": "data"},
            {"learning_rate": 0.1, "every": 2, "axis_name": "data", "outer_momentum": 2.0},
        ),
        rows=False,
        why="a matrix is looked at whole",
    ),
    "streaming_diloco": Entry(
        lambda: gradtx.streaming_diloco(
            gradtx.adam(0.1), gradtx.sgd(0.7, momentum=0.9, nesterov=True), 2, "data", 2, 1, 0.5
        ),
        bad=tuple(
            {"inner": optax.sgd(1.0), "outer": optax.sgd(1.0), "axis_name": "data", **other}
            for other in (
                {"every": 3, "fragments": 2},
                {"every": 2, "fragments": 0},
                {"every": 2, "fragments": 2, "delay": 2},
                {"every": 2, "fragments": 2, "mixing": 1.5},
            )
        ),
    ),
    "store": Entry(
        lambda: gradtx.store(gradtx.adam(1e-2), {"mu": "int8", "nu": "bf16"}, min_size=1),
        bad=(
            {"codecs": "int9"},
            {"codecs": 8},
            {"codecs": {"mu": "int9"}},
            {"codecs": gradtx.Codec("int4", block=7)},
            {"codecs": gradtx.Codec("bf16", block=64)},
            {"codecs": gradtx.Codec("bf16+8", rounding="stochastic")},
            {"min_size": -1},
            {"seed": 0.5},
            {"exempt": 3},
        ),
    ),
    "transfer": Entry(
        lambda: gradtx.transfer(
            gradtx.adamw(0.1), NARROW, WIDE, gradtx.ByRole((("[sx]*", "vector"),), "in_out")
        ),
        bad=(
            {"inner": gradtx.adam(0.1), "small": WIDE, "params": {"b": (3, 4)}},
            {"inner": gradtx.adam(0.1), "small": WIDE, "params": WIDE, "rule": "fast"},
            {"inner": gradtx.adam(0.1), "small": WIDE, "params": WIDE, "head": "small"},
            {"inner": gradtx.lamb(0.1), "small": {}, "params": {}},
            {"inner": optax.sgd(1.0), "small": {}, "params": {}},
        ),
    ),
    "static": Entry(lambda: gradtx.static(gradtx.adam(0.1))),
    "keep_params_nonnegative": Entry(
        lambda: gradtx.keep_params_nonnegative(),
        optax=lambda: optax.keep_params_nonnegative(),
        complex=False,
        why="a complex number is neither negative nor not",
    ),
}


def halve(updates: Any, params: Any) -> Any:
    return gradtx.tree.map_updates(lambda g: g / 2, updates)


def sampled_loss(params: Any, key: Any) -> Any:
    scale = jax.random.uniform(key, dtype="float32")
    return scale * sum((abs(p) ** 2).sum() for p in jax.tree.leaves(params))


def is_matrix(path: str, leaf: Any) -> bool:
    return leaf.ndim > 1


def add_tenth(update: Any, param: Any) -> Any:
    return update + 0.1 * param


def as_matrices(updates: Any) -> Any:
    """Dimension numbers under which every array is a matrix, a vector a row."""
    return jax.tree.map(
        lambda p: gradtx.MuonDimensionNumbers(tuple(range(p.ndim - 1)), -1),
        updates,
        is_leaf=lambda x: isinstance(x, gradtx.Rows),
    )


def factors(tree: Any) -> list[tuple[str, str]]:
    """The factors of LoRA in a tree that has any, so that what is tried on others is tried too."""
    return [("lora_a", "lora_b")] if isinstance(tree, dict) and "lora_a" in tree else []


def last_axis_in_two(path: str, leaf: Any) -> gradtx.SplitLeaf | None:
    """Unequal parts of what has at least two columns."""
    columns = leaf.shape[-1] if leaf.ndim else 0
    return gradtx.SplitLeaf(-1, (1, columns - 1)) if columns > 1 else None


def number_of_axes(path: str, leaf: Any) -> int:
    return min(leaf.ndim, 3)


def is_bias(path: str, leaf: Any) -> bool:
    return leaf.ndim == 1


def is_even(step: Any, **extra_args: Any) -> Any:
    return step % 2 == 0


def matrix_or_not(path: str, leaf: Any) -> str:
    return "a" if leaf.ndim > 1 else "b"


def norm(updates: Any) -> Any:
    return gradtx.global_norm(updates)
