"""gradtx: gradient transformations on JAX, written once and run everywhere."""

import sys
from typing import Any

from gradtx.names.namespace import lazy

__version__ = "0.1.0"

__all__, __getattr__, __dir__ = lazy(__name__)


class _PrivatePaths:
    """Finds Optax's private modules under gradtx's name: see :mod:`gradtx._src`."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        """The spec of a module with a private name, such as `gradtx.transforms._masking`."""
        if not name.startswith("gradtx.") or "._" not in name:
            return None
        from gradtx import _src

        return _src.spec(name)


sys.meta_path.append(_PrivatePaths)  # type: ignore[arg-type]  # a finder by what it has
