"""Tables, pictures and gradtx's own data from the results."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import matplotlib

matplotlib.use("Agg")  # before pyplot, so that no display is needed
import matplotlib.pyplot as plt
import numpy as np

from benchmarks.leaderboard import statistics
from benchmarks.leaderboard.problems import PROBLEMS, Problem
from benchmarks.leaderboard.results import RESULTS, load
from benchmarks.leaderboard.search import FACTORS, POINTS, SEEDS, TRIALS
from benchmarks.leaderboard.spaces import PRINCIPAL, spaces
from benchmarks.tables import markdown
from benchmarks.variants import light_and_dark

ROOT = Path(__file__).parents[2]


class Target(NamedTuple):
    """Where a report is written; results: those that it shows beside the leaderboard's."""

    page: Path
    pictures: Path
    tuned: Path
    results: Path


SHIPPED = Target(
    ROOT / "docs" / "leaderboard_measured.md",
    ROOT / "docs" / "_static",
    ROOT / "gradtx" / "inspection" / "tuned.json",
    RESULTS,
)


def inside(folder: Path) -> Target:
    """All in one folder, which has results of its own."""
    return Target(folder / "leaderboard.md", folder, folder / "tuned.json", folder)


REFERENCE = "adamw"
DRAWN = ("adamw", "sgd, momentum", "lion", "muon", "soap", "schedule_free_adamw", "prodigy", "dog")

Entries = Mapping[str, Any]
Known = Mapping[str, Entries]  # by problem


FEWER, AT_LEAST, NEAR = "needs fewer steps than", "is at least as good as", "comes near to"


class Order(NamedTuple):
    """A published claim: one optimizer beside another on a problem, and where it is from.

    claim: `FEWER`, to the loss that the other ends with, and its own last losses are better with
    p < 0.01; `AT_LEAST`, those are not worse with p < 0.01; or `NEAR`, they are worse by at most
    5 %, the interval's upper end included.
    """

    name: str
    claim: str
    other: str
    problem: str
    source: str


ORDERS = (
    Order("muon", FEWER, "adamw", "transformer", "K. Jordan et al., 2024"),
    Order("soap", FEWER, "adamw", "transformer", "arXiv:2409.11321"),
    Order("shampoo", FEWER, "adamw", "transformer", "arXiv:2309.06497"),
    Order("normuon", AT_LEAST, "muon", "transformer", "arXiv:2510.05491"),
    Order("hyperball, muon", AT_LEAST, "muon", "transformer", "arXiv:2606.16899"),
    Order("hyperball, adam", AT_LEAST, "adamw", "transformer", "arXiv:2606.16899"),
    Order("schedule_free_adamw", NEAR, "adamw", "transformer", "arXiv:2405.15682"),
    Order("prodigy", NEAR, "adamw", "transformer", "arXiv:2306.06101"),
    Order("dog", NEAR, "adamw", "transformer", "arXiv:2302.12022"),
    Order("lion", AT_LEAST, "adamw", "transformer", "arXiv:2302.06675"),
    Order("sophia", FEWER, "adamw", "transformer", "arXiv:2305.14342"),
    Order("ademamix", AT_LEAST, "adamw", "transformer", "arXiv:2409.03137"),
    Order("mars_adamw", FEWER, "adamw", "transformer", "arXiv:2411.10438"),
    Order("adopt", NEAR, "adamw", "transformer", "arXiv:2411.02853"),
)


@functools.cache
def problem(name: str) -> Problem:
    return PROBLEMS[name]()


@functools.cache
def parameter_bytes(name: str) -> int:
    params = jax.eval_shape(problem(name).start, jax.random.key(0))
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(params))


def known(folder: Path) -> dict[str, Entries]:
    """All results: the leaderboard's, and those in a folder."""
    return {name: load(name) | load(name, folder) for name in PROBLEMS}


def drawn(results: Known) -> tuple[str, ...]:
    """What the pictures name: some of gradtx's optimizers, and all from outside."""
    names = dict.fromkeys(name for entries in results.values() for name in entries)
    return DRAWN + tuple(name for name in names if ":" in name)


def ran(entries: Entries) -> dict[str, Any]:
    """The smallest loss first."""
    return dict(sorted(entries.items(), key=lambda item: np.log(statistics.losses(item[1])).mean()))


def short(x: float | None, form: str = ".3g") -> str:
    return "-" if x is None else f"{x:{form}}"


def setting(entry: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in entry["setting"].items())


def row(name: str, entry: Mapping[str, Any], found: Mapping[str, Any], bytes_: int) -> list[object]:
    """A line of a problem's table."""
    loss = statistics.losses(entry)
    low, high = statistics.interval(loss)
    beside, verdict = "1", "-"
    if name in found:
        c = found[name]
        beside = f"{c.ratio:.3f} ({c.low:.3f} to {c.high:.3f})"
        verdict = f"{statistics.verdict(c)}, p = {c.p:.1g}"
    reached = sum(x is not None for x in entry["steps"])
    steps = statistics.steps(entry)
    seconds = None if steps is None else 1e-6 * steps * entry["microseconds_a_step"]
    return [
        name,
        f"{np.exp(np.log(loss).mean()):.4g} ({low:.4g} to {high:.4g})",
        beside,
        verdict,
        f"{short(steps, '.0f')} ({reached} of {len(loss)})",
        short(seconds, ".2g"),
        short(entry["trials"][0], ".4g"),
        short(statistics.basin(entry, FACTORS), ".1f"),
        f"{entry['state_bytes'] / bytes_:.2f}",
        setting(entry),
    ]


HEADER = (
    "optimizer",
    "loss (95 %)",
    f"over {REFERENCE}'s (95 %)",
    f"beside {REFERENCE}",
    "steps to target (seeds)",
    "seconds",
    "as published",
    "basin",
    "state",
    "setting",
)


def table(name: str, entries: Entries) -> str:
    made = problem(name)
    lines = [
        f"## {name.capitalize()}",
        "",
        f"{(PROBLEMS[name].__doc__ or '').splitlines()[0]} {made.steps} steps.",
        f"The target is {made.target:.4g}: {made.reason}.",
        "",
    ]
    if REFERENCE in entries:
        found = statistics.against(REFERENCE, entries)
        rows = [row(n, e, found, parameter_bytes(name)) for n, e in ran(entries).items()]
        lines += markdown("", HEADER, rows).splitlines()
        lines += [""]
    missing = [n for n in PRINCIPAL if n not in entries]
    if missing:
        lines += ["", f"Not run: {listed(missing)}."]
    return "\n".join([*lines, ""])


def share_of_steps(of: Mapping[str, Any], to: Mapping[str, Any]) -> float:
    """The share of the steps after which the median loss is the least that the other reaches."""
    curve, last = np.array(of["curve"]["median"], float), to["curve"]["median"][-1]
    below = np.flatnonzero(curve <= last)
    return float(below[0]) / (len(curve) - 1) if len(below) else np.inf


def judged(order: Order, entries: Entries) -> str:
    """Whether an order was seen."""
    if not {order.name, order.other} <= set(entries):
        return "not run"
    of, to = entries[order.name], entries[order.other]
    c = statistics.compare(statistics.losses(of), statistics.losses(to))
    sure = c.p < statistics.SIGNIFICANT
    detail = f"{c.ratio:.3f} of the loss ({c.low:.3f} to {c.high:.3f}), p = {c.p:.1g}"
    if order.claim == FEWER:
        share = share_of_steps(of, to)
        seen = share < 1 and c.ratio < 1 and sure
        if np.isfinite(share):
            detail = f"{share:.2f} of the steps; {detail}"
    elif order.claim == AT_LEAST:
        seen = not (c.ratio > 1 and sure)
    else:
        seen = c.high <= 1.05
    return f"{'seen' if seen else 'not seen'}: {detail}"


def orders(results: Known) -> str:
    rows = [
        [f"{o.name} {o.claim} {o.other}", o.problem, o.source, judged(o, results[o.problem])]
        for o in ORDERS
    ]
    return markdown("", ("published", "on", "by", "here"), rows)


def listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def ranks(results: Known) -> str:
    """On each problem, those from which no difference to the best was seen, and the others."""
    rows = []
    for name in PROBLEMS:
        order = list(entries := ran(results[name]))
        if order:
            worse = statistics.against(order[0], entries)
            behind = [n for n in order[1:] if statistics.verdict(worse[n]) == "worse"]
            rows.append([name, listed([n for n in order if n not in behind]), listed(behind)])
    header = ("problem", "best, and no difference seen from it", "worse, p < 0.01")
    return markdown("", header, rows)


def overview(results: Known) -> str:
    """Every optimizer that has run or is to run first, over all problems."""
    names = dict.fromkeys([*spaces(), *(n for entries in results.values() for n in entries)])
    verdicts: dict[str, list[str]] = {name: [] for name in names}
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for entries in results.values():
        if REFERENCE not in entries:
            continue
        for name, c in statistics.against(REFERENCE, entries).items():
            verdicts[name].append(statistics.verdict(c))
            ratios[name].append(c.ratio)
    kinds = ("better", "no difference seen", "worse")
    rows: list[list[object]] = [
        [
            name,
            *(verdicts[name].count(kind) for kind in kinds),
            len(PROBLEMS) - len(verdicts[name]),
            float(np.exp(np.mean(np.log(ratios[name])))),
        ]
        for name in names
        if verdicts[name]
    ]
    header = ("problems", *kinds, "not run", f"loss over {REFERENCE}'s, geometric mean")
    text = markdown("", header, rows)
    waiting = [name for name in names if not verdicts[name] and name != REFERENCE]
    return f"{text}\nNot run on any problem: {listed(waiting)}.\n" if waiting else text


def panels() -> tuple[Any, dict[str, Any]]:
    figure, axes = plt.subplots(2, 3, figsize=(12, 7), layout="constrained")
    for ax, name in zip(axes.flat, PROBLEMS, strict=True):
        ax.set_title(name)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, dict(zip(PROBLEMS, axes.flat, strict=True))


def finish(figure: Any, out: Path) -> None:
    handles = {
        label: handle
        for ax in figure.axes
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=8, frameon=False)
    figure.savefig(out, dpi=90, transparent=True)
    plt.close(figure)


def draw_curves(out: Path, results: Known) -> None:
    """The median over the seeds, in a band from the least to the largest."""
    figure, axes = panels()
    for name, ax in axes.items():
        made, entries = problem(name), ran(results[name])
        at = np.arange(POINTS + 1) * (made.steps // POINTS)
        for i, optimizer in enumerate(drawn(results)):
            if optimizer in entries:
                c = {k: np.array(v, float) for k, v in entries[optimizer]["curve"].items()}
                ax.plot(at, c["median"], color=f"C{i}", label=optimizer)
                ax.fill_between(at, c["low"], c["high"], color=f"C{i}", alpha=0.15, linewidth=0)
        ax.axhline(made.target, color=plt.rcParams["text.color"], alpha=0.7, linestyle=":")
        ax.set(yscale="log", xlabel="step", ylabel="loss")
        if entries:
            best = min(np.nanmin(np.array(e["curve"]["low"], float)) for e in entries.values())
            ax.set_ylim(0.9 * best, 1.1 * next(iter(entries.values()))["curve"]["high"][0])
    finish(figure, out)


def draw_costs(out: Path, results: Known) -> None:
    """Steps to the target against seconds to it."""
    figure, axes = panels()
    named = drawn(results)
    for name, ax in axes.items():
        for optimizer, entry in ran(results[name]).items():
            steps = statistics.steps(entry)
            if steps is not None:
                i = named.index(optimizer) if optimizer in named else None
                ax.plot(
                    1e-6 * steps * entry["microseconds_a_step"],
                    steps,
                    "o",
                    color="0.5" if i is None else f"C{i}",
                    label="others" if i is None else optimizer,
                    zorder=1 if i is None else 2,
                )
        ax.set(xscale="log", xlabel="seconds of one core", ylabel="steps")
    finish(figure, out)


def draw_basins(out: Path, results: Known) -> None:
    """The loss against the learning rate, as a multiple of the one found."""
    figure, axes = panels()
    named = drawn(results)
    for name, ax in axes.items():
        for optimizer, entry in ran(results[name]).items():
            if optimizer in named and entry["basin"] is not None:
                best = np.nanmin(np.array(entry["trials"], float))
                pairs = sorted([*zip(FACTORS, entry["basin"], strict=True), (1.0, best)])
                x, y = np.array(pairs, float).T
                color = f"C{named.index(optimizer)}"
                ax.plot(x, y / best, ".-", color=color, label=optimizer)
        ax.set(xscale="log", yscale="log", xlabel="learning rate / that found")
        ax.set(ylabel="loss / that found", ylim=(0.8, 10))
    finish(figure, out)


def tuned(results: Known) -> dict[str, dict[str, dict[str, float]]]:
    """The settings found of each optimizer, by problem."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in PROBLEMS:
        for optimizer, entry in ran(results[name]).items():
            found.setdefault(optimizer, {})[name] = {
                key: float(f"{value:.4g}") for key, value in entry["setting"].items()
            }
    return dict(sorted(found.items()))


INTRODUCTION = f"""# What the leaderboard measured

The tables behind the [leaderboard](leaderboard.md), which says how to read and repeat them. They
are printed from `benchmarks/leaderboard/results` by `python -m benchmarks.leaderboard --report
--shipped`.

- Each optimizer has {TRIALS} trials on each problem: the first at its published settings, the
  others by a Halton sequence over the ranges in `benchmarks/leaderboard/spaces.py`. What Muon and
  its variants leave to AdamW is searched in the same trials. All have a warm-up of 5 % and a cosine
  to zero, except those that are published without a schedule.
- The best setting then runs with {SEEDS} other seeds. **Loss** is the geometric mean after all
  steps, on data that stays the same, with its 95 % interval by the bootstrap. `p` is by Welch's
  test of the logarithms, corrected by Holm's method for the number of optimizers; where it is at
  least 0.01, no difference was seen. A run that diverges counts with the loss that it began with.
- **Steps to target**: the median, and how many of {SEEDS} seeds reach it. **Seconds**: of one core,
  to get there. **As published**: the loss of the first trial, which is what you get without tuning.
  **Basin**: decades of learning rates around the one found whose loss is at most 1.2 times as
  large, of four that were tried. **State**: its bytes over those of the parameters.

## Published orders

"Needs fewer steps" means, as in those papers, to the loss with which the other ends.

"""


def page(results: Known) -> str:
    every = [entry for name in PROBLEMS for entry in results[name].values()]
    versions = sorted({json.dumps(entry["versions"]) for entry in every})
    lines = ["## Versions", "", *(f"- `{v}`" for v in versions), ""]
    parts = [
        "## Ranks",
        "",
        ranks(results),
        f"## Beside {REFERENCE}, by number of problems",
        "",
        overview(results),
    ]
    tables = [table(name, results[name]) for name in PROBLEMS]
    return INTRODUCTION + "\n".join([orders(results), *parts, *tables, *lines])


def write(target: Target) -> None:
    results = known(target.results)
    for path in (target.page, target.pictures / "picture", target.tuned):
        path.parent.mkdir(parents=True, exist_ok=True)
    target.page.write_text(page(results))
    lines = (f"{json.dumps(k)}: {json.dumps(v)}" for k, v in tuned(results).items())
    target.tuned.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    for draw in (draw_curves, draw_costs, draw_basins):
        name = draw.__name__.replace("draw", "leaderboard")
        light_and_dark(functools.partial(draw, results=results), target.pictures / f"{name}.png")
    print(f"{target.results} -> {target.page}, {target.pictures}, {target.tuned}")
