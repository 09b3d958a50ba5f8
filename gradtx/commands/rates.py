"""``find-rate``: many learning rates from one start, on a user's loss, parameters and batches."""

import argparse
import difflib
import importlib
import inspect
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.commands.chart import save_figure
from gradtx.training.rates import count_batches, find_rate, loss_arguments

RETURNS = "(loss_fn, build, params, batches), as gradtx.find_rate takes them"
EVERY = 0.1  # seconds between reports of progress


def find(arguments: argparse.Namespace) -> int:
    """Print rates with their losses, and a suggestion; 1 if the user's code fails."""
    if arguments.low >= arguments.high:
        raise ValueError(f"--low {arguments.low:g} must be below --high {arguments.high:g}")
    where = ":".join(arguments.function)
    if os.getcwd() not in sys.path:  # `python -m` has it there, the installed script does not
        sys.path.insert(0, os.getcwd())
    function = _function(*arguments.function)
    loss_fn, build, params, batches = _parts(where, _called(where, function))
    steps = count_batches(batches)
    if arguments.steps is not None:
        if arguments.steps > steps:
            raise ValueError(f"--steps {arguments.steps}: {where} returns {steps} batches")
        steps = arguments.steps
        batches = jax.tree.map(lambda x: x[:steps], batches)
    rates = np.geomspace(arguments.low, arguments.high, arguments.rates)
    _check(where, loss_fn, build, params, jax.tree.map(lambda x: x[0], batches), rates[0])
    line = _ProgressLine(len(rates), steps) if sys.stderr.isatty() else None
    try:
        sweep = find_rate(loss_fn, build, params, batches, rates, progress=line)
    finally:
        if line is not None:
            line.write("")
    print(sweep)
    if arguments.png is not None:
        save_figure(sweep.plot, arguments.png)
    return 0


def _called(what: str, function: Callable[..., Any], *args: Any) -> Any:
    """The result of the user's code; where it fails, its traceback is printed."""
    try:
        return function(*args)
    except Exception as error:
        traceback.print_exc()
        raise RuntimeError(f"{what} failed with the {type(error).__name__} above") from error


def _function(module: str, name: str) -> Callable[[], Any]:
    def load() -> Any:
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and f"{module}.".startswith(f"{error.name}."):
                return None
            raise  # the module is there, and imports another that is not

    imported = _called(f"the import of {module}", load)
    if imported is None:
        raise ValueError(
            f"there is no module {module!r}: run the command in the directory that holds it"
        )
    function = getattr(imported, name, None)
    if not callable(function):
        close = difflib.get_close_matches(name, dir(imported), 1, 0.7)
        hint = f"did you mean {close[0]!r}?" if close else f"write one that returns {RETURNS}"
        raise ValueError(f"there is no function {name!r} in the module {module!r}: {hint}")
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise TypeError(f"{module}:{name} must take no arguments: {error}") from None
    return function


def _parts(where: str, parts: Any) -> tuple[Any, Any, Any, Any]:
    if not isinstance(parts, tuple) or len(parts) != 4:
        kind = f"{len(parts)} values" if isinstance(parts, tuple) else f"a {type(parts).__name__}"
        raise TypeError(f"{where} must return {RETURNS}; it returns {kind}")
    if not callable(parts[0]):
        kind = type(parts[0]).__name__
        raise TypeError(f"{where} must return a loss first: (params, batch) -> value, not a {kind}")
    return parts


def _check(where: str, loss_fn: Any, build: Any, params: Any, batch: Any, rate: float) -> None:
    """Try the user's functions before they are compiled, where their faults are easy to read."""
    tx = None
    if callable(build):
        tx = _called(f"what {where} returns as build", build, jnp.asarray(rate))
    if not all(callable(getattr(tx, name, None)) for name in ("init", "update")):
        raise TypeError(
            f"{where} must return second what makes a transformation from a rate, such as "
            f"gradtx.adamw or lambda rate: gradtx.adamw(rate, weight_decay=0.1), not {build!r:.80}"
        )
    args = loss_arguments(loss_fn, batch)
    _called(f"the loss of {where}", jax.eval_shape, loss_fn, params, *args)


class _ProgressLine:
    """A line of progress on stderr, written over itself."""

    def __init__(self, rates: int, steps: int) -> None:
        self.rates, self.width, self.due = rates, 0, 0.0
        self.write(f"compiling {steps} steps with {rates} rates")

    def __call__(self, done: int, steps: int) -> None:
        if done == steps or time.monotonic() >= self.due:
            self.due = time.monotonic() + EVERY
            self.write(f"{self.rates} rates: step {done} of {steps}")

    def write(self, text: str) -> None:
        print(f"\r{text:{self.width}}", end="\r" * (not text), file=sys.stderr, flush=True)
        self.width = len(text)
