"""The best rate of a character transformer over widths and depths, with and without transfer.

``python -m benchmarks.transfer [--minutes 75]`` trains what is not in ``results/transfer.json``
yet, the most telling sweeps first, and writes each to that file; then it writes the tables and the
picture of docs/transfer.md. With ``--minutes 0`` it trains nothing.
"""

import argparse
import functools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")  # before pyplot, so that no display is needed
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import NullFormatter

import gradtx
from benchmarks.leaderboard.problems import CONTEXT, cross_entropy, dense, normalized, text
from benchmarks.leaderboard.results import keep, load
from benchmarks.tables import markdown, put_table
from benchmarks.variants import light_and_dark

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[1] / "docs"
PAGE, PICTURE = DOCS / "transfer.md", DOCS / "_static" / "transfer.png"
WIDTH, DEPTH, HEAD = 32, 2, 16  # the small model; heads keep their size
STEPS, BATCH, COUNT = 100, 8, 7
SPACING = 2**0.5
ROLES = gradtx.ByRole(
    (("table", "embedding"), ("position", "embedding")), "in_out", (("layers/*", 1),)
)
# The middle of the small model's rates, as a power of the spacing.
MIDDLE = {"adamw": -14, "muon": -13, "lion": -16, "soap": -14, "shampoo": -13}


class Sweep(NamedTuple):
    """What is trained with many rates; without transfer, the small model's are as with it."""

    name: str
    transferred: bool
    width: int
    depth: int
    seed: int

    @property
    def key(self) -> str:
        how = "transfer" if self.transferred else "plain"
        return f"{self.name} {how} width {self.width} depth {self.depth} seed {self.seed}"

    @property
    def is_small(self) -> bool:
        return (self.width, self.depth) == (WIDTH, DEPTH)


def order() -> Iterator[Sweep]:
    """All sweeps, the most telling first; SOAP and Shampoo at width 64 before 128."""
    light, heavy = ("adamw", "muon", "lion"), ("soap", "shampoo")
    parts = (
        ((32, 2), (*light, *heavy), (0, 1)),
        ((64, 2), heavy, (0,)),
        ((128, 2), light, (0, 1)),
        ((64, 2), heavy, (1,)),
        ((64, 2), light, (0, 1)),
        ((32, 4), light, (0, 1)),
        ((32, 8), light, (0, 1)),
        ((32, 4), heavy, (0, 1)),
        ((32, 8), heavy, (0, 1)),
        ((256, 2), light, (0, 1)),
        ((128, 2), heavy, (0, 1)),
        ((256, 2), heavy, (0, 1)),
    )
    for (width, depth), names, seeds in parts:
        for seed in seeds:
            for name in names:
                for transferred in (True,) if (width, depth) == (WIDTH, DEPTH) else (True, False):
                    yield Sweep(name, transferred, width, depth, seed)


def start(width: int, depth: int, size: int, seed: int) -> dict[str, Any]:
    """Initial values, of the standard size: one over the root of the inputs."""
    keys = iter(jax.random.split(jax.random.key(seed), 9))

    def layers(rows: int, columns: int) -> jax.Array:
        each = jax.random.split(next(keys), depth)
        return jax.vmap(lambda key: dense(key, rows, columns))(each)

    return {
        "table": jax.random.normal(next(keys), (size, width)),
        "position": 0.1 * jax.random.normal(next(keys), (CONTEXT, width)),
        "layers": {name: layers(width, width) for name in ("query", "key", "value", "out")}
        | {"up": layers(width, 4 * width), "down": layers(4 * width, width)},
        "head": {"kernel": dense(next(keys), width, size)},
    }


def loss(p: Any, batch: jax.Array, residual: float = 1.0) -> jax.Array:
    """The next character's, with a factor of what each layer adds."""

    def apply(x: jax.Array, layer: Any) -> tuple[jax.Array, None]:
        heads = (normalized(x) @ layer[name] for name in ("query", "key", "value"))
        heads = (y.reshape(*y.shape[:2], -1, HEAD) for y in heads)
        mixed = jax.nn.dot_product_attention(*heads, is_causal=True).reshape(x.shape)
        x = x + residual * mixed @ layer["out"]
        x = x + residual * jax.nn.gelu(normalized(x) @ layer["up"]) @ layer["down"]
        return x, None

    inputs, targets = batch[:, :-1], batch[:, 1:]
    x, _ = jax.lax.scan(apply, p["table"][inputs] + p["position"], p["layers"])
    return cross_entropy(normalized(x) @ p["head"]["kernel"], targets)


def build(name: str, rate: Any) -> gradtx.GradientTransformation:
    others = gradtx.adamw(rate, weight_decay=0.0)
    if name == "adamw":
        return others
    if name == "lion":
        return gradtx.lion(rate, weight_decay=0.0)
    if name == "muon":
        return gradtx.muon(
            rate, scale="moonshot", adam_learning_rate=rate, muon_weight_dimension_numbers=ROLES
        )
    return getattr(gradtx, name)(rate, weight_dimension_numbers=ROLES)


def corpus() -> tuple[int, np.ndarray]:
    """The number of characters, and the text as their numbers."""
    alphabet, codes = np.unique(
        np.frombuffer(text().encode("ascii", "replace"), np.uint8), return_inverse=True
    )
    return len(alphabet), codes


def losses(sweep: Sweep, powers: list[int], steps: int = STEPS) -> np.ndarray:
    """The mean loss of the last tenth of the steps, at each rate."""
    size, codes = corpus()
    rng = np.random.default_rng(sweep.seed)
    at = rng.integers(0, len(codes) - CONTEXT - 1, (steps, BATCH, 1))
    batches = jnp.asarray(codes[at + np.arange(CONTEXT + 1)], jnp.int32)
    small = start(WIDTH, DEPTH, size, sweep.seed)
    params = start(sweep.width, sweep.depth, size, sweep.seed)
    residual = 1.0

    def plain(rate: Any) -> gradtx.GradientTransformation:
        return build(sweep.name, rate)

    def transferred(rate: Any) -> gradtx.GradientTransformation:
        return gradtx.transfer(plain(rate), small, params, ROLES)

    if sweep.transferred:
        tx = transferred(0.1)
        residual = gradtx.transfer_multipliers(tx)["layers/out"].residual
        params = gradtx.transfer_initial(tx, params, small)
    return gradtx.find_rate(
        lambda p, batch: loss(p, batch, residual),
        transferred if sweep.transferred else plain,
        params,
        batches,
        SPACING ** np.asarray(powers),
    ).final


def run(sweep: Sweep) -> dict[str, Any]:
    """The losses by the power of the spacing, with rates enough that the best is not at an end."""
    middle = MIDDLE[sweep.name]
    if not sweep.transferred:  # where the entries of updates are as large, a wider model needs less
        middle -= int(np.log2(sweep.width / WIDTH))
    wanted = list(range(middle - COUNT // 2, middle + COUNT // 2 + 1))
    found: dict[int, float] = {}
    began = time.monotonic()
    while wanted:
        found |= zip(wanted, losses(sweep, wanted).tolist(), strict=True)
        low, high, best = min(found), max(found), min(found, key=found.__getitem__)
        # As many again, so that the same compiled program serves.
        wanted = [low - 1 - i for i in range(COUNT)][::-1] if best == low else []
        wanted = [high + 1 + i for i in range(COUNT)] if best == high else wanted
    rows = {str(k): round(x, 5) if np.isfinite(x) else None for k, x in sorted(found.items())}
    return {"losses": rows, "seconds": round(time.monotonic() - began)}


def train(minutes: float) -> None:
    """What is not there yet, until the time is over."""
    end = time.monotonic() + 60 * minutes

    def put(sweep: Sweep, result: dict[str, Any]) -> None:
        keep("transfer", sweep.key, result, RESULTS)
        print(sweep.key, json.dumps(result), flush=True)

    for sweep in order():
        if time.monotonic() > end:
            return
        if sweep.key not in load("transfer", RESULTS):
            put(sweep, run(sweep))
    for sweep in order():
        found = load("transfer", RESULTS)
        if (powers := lacking(found, sweep)) and time.monotonic() < end:
            result = found[sweep.key]
            more = zip(map(str, powers), losses(sweep, powers).tolist(), strict=True)
            result["losses"] |= {k: round(x, 5) if np.isfinite(x) else None for k, x in more}
            put(sweep, result)


def losses_of(found: dict[str, Any], sweep: Sweep) -> dict[int, float]:
    """The losses by power, those of the sweep with transfer where the model is the small one."""
    key = (sweep._replace(transferred=True) if sweep.is_small else sweep).key
    rows = found.get(key, {}).get("losses", {})
    return {int(k): np.inf if x is None else x for k, x in rows.items()}


class Line(NamedTuple):
    """A size: the best power, how far the small model's is from it, and losses; seeds averaged."""

    best: int
    moved: int
    loss: float
    at_small: float
    seeds: int
    curve: dict[int, float]


def line(found: dict[str, Any], name: str, moved: bool, width: int, depth: int) -> Line | None:
    """What is known of a size, over the seeds that it has; None if there are none."""
    each = {s: losses_of(found, Sweep(name, moved, width, depth, s)) for s in (0, 1)}
    seeds = [s for s, rows in each.items() if rows]
    if not seeds:
        return None

    def mean(rows: list[dict[int, float]]) -> dict[int, float]:
        shared = set.intersection(*(set(x) for x in rows))
        return {k: float(np.mean([x[k] for x in rows])) for k in sorted(shared)}

    curve = mean([each[s] for s in seeds])
    small = mean([losses_of(found, Sweep(name, True, WIDTH, DEPTH, s)) for s in seeds])
    best, origin = min(curve, key=curve.__getitem__), min(small, key=small.__getitem__)
    return Line(best, best - origin, curve[best], curve.get(origin, np.inf), len(seeds), curve)


def lacking(found: dict[str, Any], sweep: Sweep) -> list[int]:
    """Powers to try where the mean of the seeds is best at an end of what they have in common."""
    mean = line(found, sweep.name, sweep.transferred, sweep.width, sweep.depth)
    if mean is None or sweep.key not in found:
        return []
    low, high = min(mean.curve), max(mean.curve)
    if low < mean.best < high:
        return []
    side = 1 if mean.best == high else -1
    wanted = [mean.best + side * (i + 1) for i in range(COUNT)]
    return sorted(set(wanted) - set(losses_of(found, sweep)))


def tables(found: dict[str, Any]) -> str:
    """Widths and depths: steps that the best rate moves by, and the loss at the small one's."""
    rows = []
    for name in MIDDLE:
        for width, depth in sorted({(s.width, s.depth) for s in order()}):
            for moved in (False, True):
                x = line(found, name, moved, width, depth)
                if x is None or ((width, depth) == (WIDTH, DEPTH) and not moved):
                    continue
                small = (width, depth) == (WIDTH, DEPTH)
                over = f"{100 * (x.at_small / x.loss - 1):.1f} %"
                rows.append(
                    [
                        name,
                        width,
                        depth,
                        "-" if small else "yes" if moved else "no",
                        f"{SPACING**x.best:.2g}",
                        "-" if small else f"{x.moved:+d}" if x.moved else "0",
                        f"{x.loss:.3f}",
                        "-" if small else over if np.isfinite(x.at_small) else "not in the sweep",
                        x.seeds,
                    ]
                )
    header = (
        *("optimizer", "width", "depth", "transfer", "best rate", "moved by", "loss"),
        *("over it at the small one's", "seeds"),
    )
    return markdown("", header, rows).rstrip()


def draw(found: dict[str, Any], out: Path) -> None:
    """The loss against the rate: a column for an optimizer, without transfer above, with below."""
    sizes = [(w, DEPTH) for w in (32, 64, 128, 256)]
    figure, axes = plt.subplots(
        2,
        len(MIDDLE),
        figsize=(3 * len(MIDDLE), 5.6),
        layout="constrained",
        sharex="col",
        sharey="col",
    )
    colours = dict(
        zip(sizes, plt.get_cmap("plasma")(np.linspace(0.3, 0.85, len(sizes))), strict=True)
    )
    for column, name in enumerate(MIDDLE):
        lowest = []
        for row, moved in enumerate((False, True)):
            ax = axes[row, column]
            for width, depth in sizes:
                x = line(found, name, moved, width, depth)
                if x is None:
                    continue
                rates = [SPACING**k for k in x.curve]
                ax.semilogx(
                    rates,
                    list(x.curve.values()),
                    marker=".",
                    color=colours[width, depth],
                    label=f"width {width}",
                )
                ax.plot(SPACING**x.best, x.loss, marker="*", ms=12, color=colours[width, depth])
                lowest.append(x.loss)
            ax.set_title(f"{name}, {'with transfer' if moved else 'without'}")
            ax.xaxis.set_minor_formatter(NullFormatter())
        if lowest:  # of both: they share their axis
            axes[0, column].set_ylim(min(lowest) - 0.03, max(lowest) + 0.35)
    for ax in axes[1]:
        ax.set_xlabel("learning rate")
    for ax in axes[:, 0]:
        ax.set_ylabel("loss")
    lines = {
        label: line
        for ax in axes.flat
        for line, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    shown = sorted(lines, key=lambda label: int(label.split()[-1]))
    axes[0, 0].legend([lines[label] for label in shown], shown, frameon=False)
    figure.savefig(out, dpi=110)
    plt.close(figure)


def report() -> None:
    """Writes the tables into the page, and the picture in both styles."""
    found = load("transfer", RESULTS)
    put_table(PAGE, "python -m benchmarks.transfer", tables(found))
    light_and_dark(functools.partial(draw, found), PICTURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=75)
    given = parser.parse_args()
    if given.minutes > 0:
        train(given.minutes)
    report()


if __name__ == "__main__":
    main()
