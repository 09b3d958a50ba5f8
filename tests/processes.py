"""Processes that tests start."""

import os
import pathlib

from gradtx.core import eager

ROOT = pathlib.Path(__file__).parent.parent


def environment(**more):
    """That of a program with devices of its own; it has the patience of the tests with them."""
    patience = [flag for flag in os.environ["XLA_FLAGS"].split() if "timeout" in flag]
    return {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": " ".join(patience), **more}


def forget():
    """The optimizers that ran once outside of `jit` in this process: see gradtx.core.eager."""
    eager._once.clear()
    eager._history.cache_clear()
