"""gradtx: gradient transformations on JAX, written once and run everywhere."""

import ast
import importlib
from pathlib import Path
from typing import Any

__version__ = "0.1.0"


def _homes() -> dict[str, str]:
    """The module of each public name, as the stub beside this file imports them."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_HOMES = _homes()
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is first asked for: importing gradtx costs little."""
    if name not in _HOMES:
        raise AttributeError(f"module 'gradtx' has no attribute {name!r}")
    if _HOMES[name] == "gradtx":
        return importlib.import_module(f"gradtx.{name}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
