"""Processes that tests start."""

import os
import pathlib

ROOT = pathlib.Path(__file__).parent.parent


def environment(**more):
    """That of a program with devices of its own; it has the patience of the tests with them."""
    patience = [flag for flag in os.environ["XLA_FLAGS"].split() if "timeout" in flag]
    return {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": " ".join(patience), **more}
