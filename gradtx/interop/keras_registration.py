"""The class of `keras_optimizer` in Keras's registry, by which Keras reads its files."""

import contextlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from gradtx.interop.keras_optimizer import keras_objects


def register_with_keras() -> None:
    """Register the optimizer class with Keras, now or once Keras has been imported.

    Keras is not imported here: a process that does not use Keras need not wait for the import.
    """
    if "keras" in sys.modules:
        _register()
    elif not any(isinstance(finder, _AfterKeras) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterKeras())


def _register() -> None:
    # With another backend, or version, there is no such class; keras_optimizer says so.
    with contextlib.suppress(ImportError, RuntimeError, AttributeError):
        keras_objects()


class _AfterKeras(importlib.abc.MetaPathFinder):
    """Leaves the import of Keras to the other finders, and registers the class after it."""

    asks_others = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "keras" or self.asks_others:
            return None
        self.asks_others = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.asks_others = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Later requests for the loader, such as for the package's files, get Keras's own.
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        sys.meta_path[:] = [x for x in sys.meta_path if not isinstance(x, _AfterKeras)]
        _register()
