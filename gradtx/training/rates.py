"""The rate finder: many learning rates from one start, in one compiled program."""

import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.core.pair import GradientTransformation
from gradtx.training.minimize import minimize
from gradtx.types import Params, PyTree


@dataclass(frozen=True)
class RateSweep:
    """What :func:`find_rate` found; ``print`` shows it as a table.

    rates: the rates, rising; losses: of shape (rates, steps), infinite from where a rate diverged;
    final: for each rate, the mean over the last tenth of the steps; tolerance: of the basin.
    """

    rates: np.ndarray
    losses: np.ndarray
    final: np.ndarray
    tolerance: float

    @property
    def suggestion(self) -> float:
        """The rate with the lowest final loss."""
        return float(self.rates[int(np.argmin(self.final))])

    @property
    def basin(self) -> tuple[float, float]:
        """The rates next to the suggestion whose final loss is within the tolerance of its."""
        best = low = high = int(np.argmin(self.final))
        limit = self.final[best] + self.tolerance * abs(self.final[best])
        while low > 0 and self.final[low - 1] <= limit:
            low -= 1
        while high < len(self.rates) - 1 and self.final[high + 1] <= limit:
            high += 1
        return float(self.rates[low]), float(self.rates[high])

    @property
    def diverged(self) -> tuple[float, ...]:
        """The rates that were stopped."""
        stopped = ~np.isfinite(self.final)
        return tuple(float(rate) for rate in self.rates[stopped])

    def __str__(self) -> str:
        low, high = self.basin
        lines = [f"suggestion {self.suggestion:.3g}, basin {low:.3g} to {high:.3g}"]
        for end, place, way in ((0, "lowest", "lower"), (-1, "highest", "higher")):
            if len(self.rates) > 1 and self.suggestion == self.rates[end]:
                lines.append(f"it is the {place} rate of all: try {way} ones")
        lines.append(f"{'rate':>10}  loss")
        for rate, loss in zip(self.rates, self.final, strict=True):
            lines.append(f"{rate:10.3g}  {'diverged' if not np.isfinite(loss) else f'{loss:.6g}'}")
        return "\n".join(lines)

    def plot(self) -> Any:
        """A matplotlib figure of the final loss against the rate, with the basin.

        Dotted lines are rates that diverged.

        Raises:
            ImportError: matplotlib is not installed.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        axes.semilogx(self.rates, self.final, marker="o")
        axes.axvspan(*self.basin, alpha=0.2)
        axes.axvline(self.suggestion, label="suggestion")
        for i, rate in enumerate(self.diverged):  # these have no loss to show
            axes.axvline(rate, color="tab:red", linestyle=":", label="" if i else "diverged")
        axes.legend()
        axes.set(xlabel="learning rate", ylabel="loss")
        return figure


def count_batches(batches: PyTree) -> int:
    """The number of batches along the first axis of arrays.

    Raises:
        ValueError: there is none, or arrays have several.
    """
    lengths = {np.shape(x)[0] if np.ndim(x) else 0 for x in jax.tree.leaves(batches)}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            "find_rate: batches must be arrays with one batch for each step along their first "
            f"axis, which have the lengths {sorted(lengths)}"
        )
    return lengths.pop()


def loss_arguments(loss_fn: Callable[..., Any], batch: PyTree) -> tuple[Any, ...]:
    """The arguments of a loss after the parameters: a batch, or the parts of one that is a tuple.

    A tuple is taken apart for a loss that has a place for each part, unless the loss would also
    take it as its one argument.

    >>> (
    ...     loss_arguments(lambda p, x, y: x + y, (1, 2)),
    ...     loss_arguments(lambda p, batch: sum(batch), (1, 2)),
    ... )
    ((1, 2), ((1, 2),))
    """
    if not isinstance(batch, tuple) or hasattr(batch, "_fields"):
        return (batch,)
    try:
        of_loss = inspect.signature(loss_fn)
    except (TypeError, ValueError):  # some functions that are not written in Python have none
        return (batch,)
    kinds = {parameter.kind for parameter in of_loss.parameters.values()}
    takes_one = inspect.Parameter.VAR_POSITIONAL not in kinds and _binds(of_loss, 2)
    return (batch,) if takes_one or not _binds(of_loss, 1 + len(batch)) else batch


def _binds(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def find_rate(
    loss_fn: Callable[..., Any],
    build: Callable[[Any], GradientTransformation],
    params: Params,
    batches: PyTree,
    rates: Any = None,
    *,
    stop: float = 4.0,
    tolerance: float = 0.02,
    progress: Callable[[int, int], None] | None = None,
) -> RateSweep:
    """Train with each of several learning rates from one start, on the same batches.

    All runs are one compiled loop, mapped over the rates. A run whose loss is not finite, or above
    `stop` times the first one, diverged: it takes no more steps.

    Args:
        loss_fn: ``(params, batch) -> value``, or ``(params, *args) -> value``, as elsewhere.
        build: ``rate -> tx``, such as ``lambda rate: gradtx.adamw(rate)``; the rate is an array, so
            a schedule is scaled by ``gradtx.multiply_schedules(rate, schedule)``.
        params: the start.
        batches: arrays with one batch for each step along their first axis: a tree of them for
            ``(params, batch)``, a tuple of `args` for ``(params, *args)``. A loss that can be
            called with one argument after the parameters gets the tuple as that argument.
        rates: the rates, positive; by default from 1e-5 to 1, each the root of 10 above the last.
        stop: above 1.
        tolerance: how far above the best final loss, in proportion, the basin goes.
        progress: called with the number of steps done and of all steps, after each step of all
            rates; the program then calls the host at each step.

    Returns:
        A `RateSweep`, with ``suggestion``, ``basin`` and ``plot()``.

    Raises:
        ValueError: the rates are not positive, or there are no batches, or each rate diverged, or
            the loss of the start is not finite.
        TypeError: `build` is a transformation, or no function.

    >>> import gradtx
    >>> sweep = find_rate(
    ...     lambda p, x: (p - x) ** 2, gradtx.sgd, 0.0, jnp.ones(40), [0.001, 0.5, 5.0]
    ... )
    >>> sweep.suggestion, sweep.diverged
    (0.5, (5.0,))
    """
    if isinstance(build, tuple) or not callable(build):
        raise TypeError(
            "find_rate: build must be a function of the rate, such as gradtx.adamw, not "
            f"{build!r:.80}"
        )
    grid = 10 ** np.arange(-5, 0.1, 0.5) if rates is None else np.asarray(rates, float)
    grid = np.sort(grid)
    if grid.ndim != 1 or not grid.size or not np.all((grid > 0) & np.isfinite(grid)):
        raise ValueError(f"find_rate: rates must be positive numbers, not {rates!r:.80}")
    steps, done = count_batches(batches), itertools.count(1)

    @jax.jit
    def sweep(rates: Any, params: Params, batches: PyTree) -> Any:
        def run(rate: Any) -> Any:
            tx = build(rate)

            def step(carry: Any, batch: PyTree) -> Any:
                (at, state), going, first = carry
                if progress is not None:  # without an operand that is mapped: one call for a step
                    jax.debug.callback(lambda: progress(next(done), steps))
                new, state, loss = minimize(loss_fn, tx, at, state, *loss_arguments(loss_fn, batch))
                first = jnp.where(jnp.isnan(first), loss, first)
                limit = first + (stop - 1) * jnp.abs(first)
                going = going & jnp.isfinite(loss) & (loss <= limit)
                # Not the state too: its counts are the same at every rate, and what an optimizer
                # does at some steps is then done at these alone.
                next_params = jax.tree.map(lambda x, y: jnp.where(going, x, y), new, at)
                return ((next_params, state), going, first), jnp.where(going, loss, jnp.inf)

            # As arrays of their own types, which a loop carries.
            start = jax.tree.map(jnp.asarray, params)
            first = jnp.full((), jnp.nan, jnp.result_type(float))
            return jax.lax.scan(step, ((start, tx.init(start)), True, first), batches)[1]

        return jax.vmap(run)(rates)

    losses = np.asarray(sweep(jnp.asarray(grid), params, batches), float)
    if progress is not None:
        jax.effects_barrier()  # so that no call comes after the return
    if np.isinf(losses[:, 0]).all():
        raise ValueError("find_rate: the loss of the start is not finite, at any rate")
    final = losses[:, -max(1, losses.shape[1] // 10) :].mean(1)
    if not np.isfinite(final).any():
        raise ValueError(
            f"find_rate: each of the rates diverged, from {grid[0]:g} on: try lower ones"
        )
    return RateSweep(grid, losses, final, tolerance)
