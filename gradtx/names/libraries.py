"""Other libraries that see gradtx's objects, or whose objects gradtx sees in trees.

None is imported here: a program may have loaded it.
"""

import importlib
import sys
from typing import Any

# A library, and the module whose `tell` tells it of gradtx's classes. A pair may be made while the
# module of its optimizer is being imported, so this one must not need any optimizer.
_TOLD = {"flax": "gradtx.checkpoint.flax"}


def tell_libraries() -> None:
    """Tell the libraries that are loaded of gradtx's classes.

    It is called where something is made that they may look at: a library may be imported at any
    time, and a class may be defined after a library was told of others.
    """
    for library, module in _TOLD.items():
        if library in sys.modules:
            importlib.import_module(module).tell()


def passes_for(name: str, cls: type) -> Any:
    """The class of this name in Optax, for `isinstance`; `cls` where Optax is not loaded.

    Programs and libraries ask whether a pair is an instance of Optax's class.
    """
    return getattr(sys.modules.get("optax"), name, cls)


def is_box(x: Any) -> bool:
    """Whether `x` is one of Flax's objects around a parameter, such as ``nnx.Param``.

    The parameter is its attribute `value`, which is no part of the parameter's name.
    """
    kinds = ("Variable", "VariableState", "AxisMetadata")
    return any(c.__name__ in kinds and c.__module__.startswith("flax.") for c in type(x).__mro__)
