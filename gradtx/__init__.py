"""gradtx: gradient transformations on JAX, written once and run everywhere."""

import sys
from typing import Any

from gradtx.names.namespace import lazy

__version__ = "0.1.0"

__all__, __getattr__, __dir__ = lazy(__name__)


class _OtherPaths:
    """Finds modules of names that no file has: earlier ones, and those of Optax's private modules.

    See :mod:`gradtx.names.earlier` and :mod:`gradtx._src`.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        """The spec of a module such as `gradtx.rows`, or `gradtx.transforms._masking`."""
        if not name.startswith("gradtx."):
            return None
        if "._" in name:
            from gradtx import _src

            return _src.spec(name)
        from gradtx.names import earlier

        return earlier.spec(name)


sys.meta_path.append(_OtherPaths)  # type: ignore[arg-type]  # a finder by what it has
