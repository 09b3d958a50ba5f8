"""Plots of runs: the loss over the steps, and the path of one or two parameters."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.leaves.paths import leaves_with_path, path_string
from gradtx.types import Params

_GRID = 120  # points along each side of a drawn loss


class _Curve(NamedTuple):
    """The losses of a run; also, if its parameters are few, their values and their form."""

    name: str
    values: np.ndarray[Any, Any]
    points: np.ndarray[Any, Any] | None = None
    like: Params = None


def plot_runs(runs: Mapping[str, Any], loss_fn: Callable[..., Any] | None = None) -> Any:
    """A matplotlib figure of several runs: losses, and paths where parameters are few.

    Args:
        runs: by name, each a `Solution` of ``solve(..., record=True)``, also one of several runs
            from :func:`jax.vmap`, or the losses of a run of your own, one for each step.
        loss_fn: ``params -> value``, drawn behind the paths of solutions with one or two numbers as
            parameters.

    Returns:
        The figure, for a notebook or ``figure.savefig("runs.png")``. Losses have a logarithmic
        scale if none is below zero. Solutions with one or two numbers as parameters have a second
        panel, with the loss over the one, or the way through the plane of the two, unless some
        have one number and others two.

    Raises:
        ImportError: matplotlib is not installed: ``pip install 'gradtx[plots]'``.
        TypeError: a run is neither a solution nor losses.
        ValueError: there is no run, a solution was not recorded, or `loss_fn` is given and no path
            is drawn.

    >>> import gradtx
    >>> def loss(x):
    ...     return jnp.sum(jnp.array([1.0, 10.0]) * x**2)
    >>> start = jnp.array([2.0, 1.0])
    >>> runs = {
    ...     "sgd": gradtx.solve(loss, start, gradtx.sgd(0.05), max_steps=30, record=True),
    ...     "adam": gradtx.solve(loss, start, gradtx.adam(0.3), max_steps=30, record=True),
    ... }
    >>> figure = plot_runs(runs, loss)
    >>> [axes.get_xlabel() for axes in figure.axes]
    ['step', '0']
    """
    from matplotlib.figure import Figure

    lines = [run for name, history in runs.items() for run in _runs_of(name, history)]
    if not lines:
        raise ValueError("plot_runs: there is no run")
    paths = [run for run in lines if run.points is not None]
    if len({_width(run) for run in paths}) > 1:
        paths = []  # a line and a plane do not share axes
    if loss_fn is not None and not paths:
        raise ValueError(
            "plot_runs: loss_fn is drawn where the parameters of a solution are one or two numbers"
        )
    width = 1 + bool(paths)
    figure = Figure(figsize=(5.5 * width, 4), layout="constrained")
    axes = figure.subplots(1, width, squeeze=False)[0]
    _draw_losses(axes[0], lines)
    if paths:
        _draw_paths(axes[1], paths, loss_fn)
    return figure


def _runs_of(name: str, history: Any) -> Iterator[_Curve]:
    """The runs in what stands under a name: one, or those of a stack."""
    if not hasattr(history, "path"):
        try:
            values = np.asarray(history, np.float64)
        except (TypeError, ValueError):
            values = np.asarray(0.0)
        if values.ndim != 1:
            raise TypeError(
                f"plot_runs: {name!r} must be a Solution or a sequence of losses, not "
                f"{type(history).__name__}"
            )
        yield _Curve(name, values)
        return
    if history.path is None:
        raise ValueError(f"plot_runs: {name!r} was not recorded: solve(..., record=True) does")
    stack = np.shape(history.steps)
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape[len(stack) + 1 :], x.dtype), history.path.params
    )
    few = 1 <= sum(x.size for x in jax.tree.leaves(like)) <= 2
    for index in np.ndindex(stack):
        values = np.asarray(history.path.values)[index]
        # What lies after the last step repeats the last point.
        taken = slice(int(np.asarray(history.steps)[index]) + 1)
        label = " ".join([name, *map(str, index)]).strip()
        if not few:
            yield _Curve(label, values[taken])
            continue
        leaves = [np.asarray(x)[index] for x in jax.tree.leaves(history.path.params)]
        points = np.concatenate([x.reshape(len(values), -1) for x in leaves], axis=1)
        yield _Curve(label, values[taken], points[taken], like)


def _width(run: _Curve) -> int:
    return 0 if run.points is None else int(run.points.shape[1])


def _draw_losses(axes: Any, runs: list[_Curve]) -> None:
    for run in runs:
        axes.plot(np.arange(len(run.values)), run.values, label=run.name)
    every = np.concatenate([run.values for run in runs])
    finite = every[np.isfinite(every)]
    if finite.size and finite.min() >= 0 < finite.max():
        axes.set_yscale("log")  # which leaves a loss of exactly 0 out
    axes.set(xlabel="step", ylabel="loss")
    if any(run.name for run in runs):
        axes.legend()


def _draw_paths(axes: Any, runs: list[_Curve], loss_fn: Any) -> None:
    """The loss over one parameter, or the ways through the plane of two."""
    names = list(_entries(runs[0].like))
    of_two = len(names) == 2
    if loss_fn is not None:
        _draw_loss(axes, runs, loss_fn)
    for run in runs:
        assert run.points is not None  # the caller chose those
        last = run.points[:, 1] if of_two else run.values
        (line,) = axes.plot(run.points[:, 0], last, marker=".", markersize=4, linewidth=1)
        axes.plot(run.points[-1, 0], last[-1], marker="o", color=line.get_color())
    axes.set(xlabel=names[0], ylabel=names[1] if of_two else "loss")


def _entries(params: Params) -> Iterator[str]:
    """The name of each number in parameters: the path of its leaf, and its place there."""
    for path, x in leaves_with_path(params)[0]:
        for i in range(0 if x is None else x.size):
            yield "/".join(filter(None, (path_string(path), str(i) * (x.size > 1)))) or "parameter"


def _draw_loss(axes: Any, runs: list[_Curve], loss_fn: Any) -> None:
    """The loss behind the paths, over a region somewhat larger than theirs."""
    points = np.concatenate([run.points for run in runs if run.points is not None])
    points = points[np.all(np.isfinite(points), axis=1)]
    low, high = points.min(axis=0), points.max(axis=0)
    margin = 0.1 * np.maximum(high - low, 1e-3)
    sides = [np.linspace(a, b, _GRID) for a, b in zip(low - margin, high + margin, strict=True)]
    grid = np.stack([side.ravel() for side in np.meshgrid(*sides)], axis=1)
    values = np.asarray(jax.vmap(lambda x: loss_fn(_params(runs[0].like, x)))(jnp.asarray(grid)))
    if len(sides) == 1:
        axes.plot(sides[0], values, color="0.7")
        return
    values = values.reshape(_GRID, _GRID)
    # Equally many points between two levels, so that a narrow valley shows.
    levels = np.unique(np.nanquantile(values, np.linspace(0, 1, 15)))
    axes.contour(*sides, values, levels=levels, colors="0.8", linewidths=0.8)


def _params(like: Params, numbers: Any) -> Params:
    """Parameters of a form, made of these numbers."""
    treedef: Any
    leaves, treedef = jax.tree.flatten(like)
    ends = np.cumsum([x.size for x in leaves])
    parts = [numbers[end - x.size : end] for x, end in zip(leaves, ends, strict=True)]
    arrays = [p.reshape(x.shape).astype(x.dtype) for p, x in zip(parts, leaves, strict=True)]
    return treedef.unflatten(arrays)
