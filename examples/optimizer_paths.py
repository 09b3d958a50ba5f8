"""The paths that three optimizers take down 2x^4 + 3x^3 + 2 from x = 2, at three learning rates.

    python examples/optimizer_paths.py [--out FILE.png]

Draws FILE.png, and FILE_dark.png for pages that are dark.

The minimum lies at x = -9/8, behind a flat inflection at x = 0 where slow optimizers get stuck.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")  # before pyplot, so that no display is needed
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm

import gradtx

START = 2.0
MAX_STEPS = 2_000
# Neither so dark nor so light that it is lost on a page.
EARLY_TO_LATE = LinearSegmentedColormap.from_list("steps", plt.cm.plasma(np.linspace(0.2, 0.85)))
LEARNING_RATES = (1e-3, 1e-2, 1e-1)
OPTIMIZERS: Mapping[str, Callable[[float], gradtx.GradientTransformation]] = {
    "gradient descent": gradtx.sgd,
    "momentum 0.7": lambda learning_rate: gradtx.sgd(learning_rate, momentum=0.7),
    "Adam": lambda learning_rate: gradtx.adam(learning_rate, eps=1e-7),
}


class Run(NamedTuple):
    outcome: str
    xs: np.ndarray


def loss(x: Any) -> Any:
    return 2 * x**4 + 3 * x**3 + 2


def run(tx: gradtx.GradientTransformation) -> Run:
    start = jnp.asarray(START, jnp.float32)
    result = gradtx.solve(loss, start, tx, max_steps=MAX_STEPS, record=True)
    steps, status = int(result.steps), int(result.status)
    outcome = {
        gradtx.Status.CONVERGED: f"converges in {steps:,}",
        gradtx.Status.DIVERGED: f"explodes at {steps:,}",
        gradtx.Status.MAX_STEPS: "does not converge",
    }[gradtx.Status(status)]
    assert result.path is not None  # it was recorded
    # The rest of the record is padding; a step that diverged led nowhere.
    points = steps if status == gradtx.Status.DIVERGED else steps + 1
    return Run(outcome, np.asarray(result.path.params)[:points])


def table(runs: Mapping[tuple[str, float], Run]) -> str:
    lines = [
        "| optimizer | " + " | ".join(f"{rate:g}" for rate in LEARNING_RATES) + " |",
        "|---" * (1 + len(LEARNING_RATES)) + "|",
    ]
    for name in OPTIMIZERS:
        cells = (runs[name, rate].outcome for rate in LEARNING_RATES)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw_run(ax: Axes, run: Run, colours: LogNorm) -> None:
    grid = np.linspace(-2.15, 2.15, 500)
    points = run.xs[np.isfinite(run.xs)].astype(np.float64)  # float32 losses would overflow
    ink = plt.rcParams["text.color"]
    ax.plot(grid, loss(grid), color=ink, alpha=0.2, linewidth=3, zorder=1)
    ax.axvline(-9 / 8, color=ink, alpha=0.3, linewidth=1, linestyle=":", zorder=0)
    # Straight strokes between the steps show the overshooting that dots on the curve hide.
    ax.plot(points, loss(points), color=ink, linewidth=0.6, alpha=0.7, zorder=2)
    order = np.arange(len(points)).clip(1)
    ax.scatter(points, loss(points), c=order, norm=colours, cmap=EARLY_TO_LATE, s=14, zorder=3)
    ax.plot(START, loss(START), "o", color=ink, markerfacecolor="none", zorder=4)
    if abs(points[-1]) < grid[-1]:
        ax.plot(points[-1], loss(points[-1]), "*", color=ink, markersize=11, zorder=4)
    else:
        visited = "\n".join(f"x = {x:.3g}" for x in run.xs[1:])
        ax.text(0.4, 0.78, visited, transform=ax.transAxes, fontsize=8, va="top")
    weight = "normal" if run.outcome == "does not converge" else "bold"
    ax.text(0.06, 0.93, run.outcome, transform=ax.transAxes, fontsize=10, weight=weight, va="top")
    ax.spines[["top", "right"]].set_visible(False)


def draw(runs: Mapping[tuple[str, float], Run], out: Path) -> None:
    figure, axes = plt.subplots(
        len(OPTIMIZERS),
        len(LEARNING_RATES),
        figsize=(10.5, 8),
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    colours = LogNorm(1, MAX_STEPS)
    for row, name in zip(axes, OPTIMIZERS, strict=True):
        row[0].set_ylabel(name, fontsize=11)
        for ax, rate in zip(row, LEARNING_RATES, strict=True):
            draw_run(ax, runs[name, rate], colours)
    for ax, rate in zip(axes[0], LEARNING_RATES, strict=True):
        ax.set_title(f"learning rate {rate:g}", fontsize=11)
    # The loss spans 0.9 to 58: only a logarithmic axis shows the valley, the flat and the start.
    ticks = [1, 2, 5, 10, 20, 50]
    axes[0, 0].set(yscale="log", ylim=(0.75, 150), xlim=(-2.15, 2.25))
    axes[0, 0].set_yticks(ticks, [str(tick) for tick in ticks])
    axes[0, 0].yaxis.minorticks_off()
    figure.supylabel("loss, $2x^4 + 3x^3 + 2$", fontsize=11)
    figure.supxlabel("x      (circle: start,  star: last step,  dotted: the minimum)", fontsize=11)
    key = plt.cm.ScalarMappable(colours, EARLY_TO_LATE)
    figure.colorbar(key, ax=axes, label="step", shrink=0.6, format="{x:,.0f}")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=120, transparent=True)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="Three optimizers on a quartic.")
    default = Path(__file__).parent.parent / "docs" / "_static" / "optimizer_paths.png"
    parser.add_argument("--out", type=Path, default=default, help="where the picture goes")
    out: Path = parser.parse_args().out
    runs = {
        (name, rate): run(build(rate))
        for name, build in OPTIMIZERS.items()
        for rate in LEARNING_RATES
    }
    print(table(runs))
    for suffix, style in (("", "default"), ("_dark", "dark_background")):
        with plt.style.context(style):
            draw(runs, out.with_stem(out.stem + suffix))
    print(f"\npaths drawn in {out}")


if __name__ == "__main__":
    main()
