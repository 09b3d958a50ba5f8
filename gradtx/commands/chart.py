"""``plot``: the values of schedules over steps, in the terminal or as a picture."""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.commands.reading import read_config
from gradtx.declarations.declaration import Declared
from gradtx.declarations.declared_schedule import DeclaredSchedule
from gradtx.leaves.paths import path_string

WIDTH, HEIGHT, POINTS = 64, 12, 1001


def plot(arguments: argparse.Namespace) -> int:
    """Draw a schedule, or each one among the arguments of a transformation."""
    tx = read_config(arguments.config)
    schedules = dict(_schedules(tx, ""))
    if not schedules:
        raise ValueError(f"{tx!r:.80} has no schedule among its arguments")
    if arguments.png is not None:
        save_figure(lambda: _figure(schedules, arguments.steps), arguments.png)
        return 0
    for name, schedule in schedules.items():
        print(name, text_chart(*_values(schedule, arguments.steps)), sep="\n")
    return 0


def _schedules(tx: Any, path: str) -> Iterator[tuple[str, DeclaredSchedule]]:
    """The schedules in `tx`, by the path of the argument that each is."""
    if isinstance(tx, DeclaredSchedule):
        yield f"{path}: {tx!r}".removeprefix(": "), tx
    elif isinstance(tx, Declared) and tx.declaration is not None:
        arguments = tx.declaration.arguments
        leaves = jax.tree.leaves_with_path(arguments, is_leaf=lambda x: isinstance(x, Declared))
        for key, leaf in leaves:
            yield from _schedules(leaf, f"{path}/{path_string(key)}".lstrip("/"))


def _values(schedule: DeclaredSchedule, steps: int) -> tuple[Any, Any]:
    """Counts from 0 to `steps`, several times if those are few, and the values at them."""
    counts = np.linspace(0, steps, POINTS).astype(np.int32)
    return counts, np.asarray(jax.vmap(schedule)(jnp.asarray(counts)), np.float64)


def text_chart(counts: Any, values: Any) -> str:
    """Values over counts as a chart of characters, without those that are not finite."""
    finite = np.isfinite(values)
    if not finite.any():
        return "no value is finite"
    low, high = values[finite].min(), values[finite].max()
    height = HEIGHT if high > low else 1
    rows = np.round((high - values[finite]) / ((high - low) or 1.0) * (height - 1)).astype(int)
    columns = np.linspace(0, WIDTH - 1, len(values)).round().astype(int)[finite]
    grid = np.full((height, WIDTH), " ")
    grid[rows, columns] = "*"
    labels = [""] * height
    labels[-1], labels[0] = f"{low:.4g}", f"{high:.4g}"
    margin = max(map(len, labels))
    lines = [f"{a:>{margin}} |{''.join(b)}".rstrip() for a, b in zip(labels, grid, strict=True)]
    axis = f"{'':{margin}} +{'-' * WIDTH}"
    return "\n".join([*lines, axis, f"{'':{margin}}  0{counts[-1]:>{WIDTH - 1}}"])


def save_figure(draw: Callable[[], Any], path: str) -> None:
    """Write the figure that `draw` makes with matplotlib.

    Raises:
        ValueError: matplotlib is not installed.
    """
    try:
        figure = draw()
    except ImportError:
        raise ValueError("--png needs matplotlib: pip install matplotlib") from None
    figure.savefig(path, format="png")


def _figure(schedules: dict[str, DeclaredSchedule], steps: int) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 1 + 3 * len(schedules)), layout="constrained")
    axes = figure.subplots(len(schedules), squeeze=False)[:, 0]
    for each, (name, schedule) in zip(axes, schedules.items(), strict=True):
        each.plot(*_values(schedule, steps))
        each.set(title=name.partition("(")[0], xlabel="steps")
    return figure
