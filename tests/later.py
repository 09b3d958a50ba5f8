"""Libraries that take long to import, of which most runs of the tests need few or none."""

import importlib
import importlib.util

import pytest


class Later:
    """A module that is imported when a test first uses it, and not when its file is collected."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, attribute):
        if attribute.startswith("_"):  # pytest asks each name in a file for such
            raise AttributeError(f"{self._name}.{attribute}")
        return getattr(importlib.import_module(self._name), attribute)


def later(library, module=None):
    """A module of a library, or the library; where it is not installed, the file is skipped."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"could not import {library!r}", allow_module_level=True)
    return Later(module or library)
