"""The coordinate check: whether activations, and their changes, are as large at every width."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from gradtx.numerics import rms
from gradtx.training.minimize import minimize
from gradtx.training.rates import loss_arguments


@dataclass(frozen=True)
class CoordinateCheck:
    """What :func:`coordinate_check` found; ``print`` shows it as a table.

    widths: the widths; sizes and changes: for each activation, the root mean square of its entries
    at the start, and of what the steps changed in them, at each width; bound: of the slopes.
    """

    widths: tuple[int, ...]
    sizes: dict[str, tuple[float, ...]]
    changes: dict[str, tuple[float, ...]]
    bound: float

    @property
    def slopes(self) -> dict[str, tuple[float, float]]:
        """For each activation, the powers of the width that its size and its change grow by."""
        return {
            name: (_slope(self.widths, size), _slope(self.widths, self.changes[name]))
            for name, size in self.sizes.items()
        }

    @property
    def failures(self) -> tuple[str, ...]:
        """The activations that grow with the width, or whose change grows or vanishes.

        All of them, if none has changed at any width: then no step has moved a parameter.
        """
        if not any(map(any, self.changes.values())):
            return tuple(self.changes)
        return tuple(
            name
            for name, (size, change) in self.slopes.items()
            if not (size <= self.bound and abs(change) <= self.bound)
        )

    @property
    def passed(self) -> bool:
        """Whether no activation fails the check."""
        return not self.failures

    def __str__(self) -> str:
        rows = [("activation", "size", "change")]
        rows += [(n, f"{a:+.2f}", f"{b:+.2f}") for n, (a, b) in self.slopes.items()]
        wide = max(len(row[0]) for row in rows)
        lines = [f"{a:{wide}}  {b:>6}  {c:>6}" for a, b, c in rows]
        verdict = "passed" if self.passed else f"failed: {', '.join(self.failures)}"
        return "\n".join([f"powers of the width, within {self.bound:g}: {verdict}", *lines])

    def plot(self) -> Any:
        """A matplotlib figure: sizes, and changes, over the width.

        Raises:
            ImportError: matplotlib is not installed.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 4), layout="constrained")
        titles = ("at the start", "change")
        for axes, title, curves in zip(
            figure.subplots(1, 2), titles, (self.sizes, self.changes), strict=True
        ):
            for name, values in curves.items():
                axes.loglog(self.widths, values, marker="o", label=name)
            axes.set(title=title, xlabel="width", ylabel="root mean square")
        axes.legend()
        return figure


def _slope(widths: Sequence[int], values: Sequence[float]) -> float:
    if all(v == 0 for v in values):
        return 0.0  # such as the outputs of a head that starts at zero
    if not all(math.isfinite(v) and v > 0 for v in values):
        return math.nan
    return float(np.polyfit(np.log(widths), np.log(values), 1)[0])


def coordinate_check(
    make: Callable[[int], tuple[Any, Any]],
    loss_fn: Callable[..., Any],
    activations: Callable[..., Mapping[str, Any]],
    batch: Any,
    widths: Sequence[int],
    *,
    steps: int = 3,
    bound: float = 0.25,
) -> CoordinateCheck:
    """Train a few steps at several widths, and see whether activations change alike.

    Args:
        make: ``width -> (params, tx)``, the initial parameters and the optimizer, such as a
            :func:`transfer` of one.
        loss_fn: ``(params, batch) -> value``; or ``(params, *args)`` for a batch that is a tuple.
        activations: ``(params, batch) -> {name: array}``, or of ``(params, *args)`` as `loss_fn`:
            what to look at.
        batch: the batch, the same for all steps.
        widths: at least two, rising; a slope over a factor of 8 or more says most.
        steps: how many steps, at least 1.
        bound: how far a slope may be from 0. What starts smaller in wider models, such as the
            outputs, passes; a change must neither grow nor vanish.

    Returns:
        A `CoordinateCheck`, with ``passed``, ``slopes`` and ``plot()``.

    Raises:
        ValueError: there are fewer than two widths, or no steps.
        TypeError: `make` does not return a pair.

    Source: G. Yang et al., Tensor Programs V, 2022, arXiv:2203.03466, appendix D.1.

    >>> import gradtx
    >>> import jax.numpy as jnp
    >>> def make(width):
    ...     return {"w": jnp.ones(width) / width}, gradtx.sgd(0.1 / width)
    >>> check = coordinate_check(
    ...     make,
    ...     lambda p, x: (x * p["w"].sum() - 2) ** 2,
    ...     lambda p, x: {"sum": x * p["w"].sum()},
    ...     1.0,
    ...     (4, 16),
    ... )
    >>> check.passed
    True
    """
    if len(set(widths)) < 2 or list(widths) != sorted(widths):
        raise ValueError(f"coordinate_check: widths must be two or more, rising, not {widths!r}")
    if steps < 1:
        raise ValueError(f"coordinate_check: steps must be at least 1, not {steps!r}")
    batch = loss_arguments(loss_fn, batch)
    sizes: dict[str, list[float]] = {}
    changes: dict[str, list[float]] = {}
    for width in widths:
        made = make(width)
        is_pair = isinstance(made, tuple | list) and len(made) == 2
        if not is_pair or not isinstance(made[1], tuple):
            raise TypeError(f"coordinate_check: make must return (params, tx), not {made!r:.80}")
        params, tx = made
        state = tx.init(params)
        look = jax.jit(activations)
        step = jax.jit(lambda p, s, b, tx=tx: minimize(loss_fn, tx, p, s, *b)[:2])
        before = look(params, *batch)
        for _ in range(steps):
            params, state = step(params, state, batch)
        after = look(params, *batch)
        for name, x in before.items():
            sizes.setdefault(name, []).append(float(rms(x)))
            changes.setdefault(name, []).append(float(rms(after[name] - x)))
    return CoordinateCheck(
        tuple(widths),
        {name: tuple(x) for name, x in sizes.items()},
        {name: tuple(x) for name, x in changes.items()},
        bound,
    )
