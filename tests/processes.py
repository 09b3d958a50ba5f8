"""Processes that tests start."""

import os
import pathlib

ROOT = pathlib.Path(__file__).parent.parent


def environment(**more):
    """That of the tests, with their patience and code generator, but not their eight devices."""
    kept = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
    return {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": " ".join(kept), **more}
