"""Optax's private modules, such as ``optax._src.base``, only for code that imports them.

A module of the table in :mod:`gradtx._src.names` is made when it is imported (the finder in
gradtx/__init__.py asks for it here). It has the names of gradtx, and the private names of Optax
that public code bases take from there. Its ``__all__`` has the names that ``import *`` takes from
Optax's module.
"""

import importlib
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from gradtx._src.names import MODULES
from gradtx.names.namespace import lazy

# Names of Optax's private modules that no public module has, and where the same is here.
OTHERS = {
    "abs_sq": "gradtx.numerics.abs_sq",
    "bias_correction": "gradtx.tree.bias_correction",
    "canonicalize_dtype": "gradtx._src.helpers.canonicalize_dtype",
    "canonicalize_key": "gradtx._src.helpers.canonicalize_key",
    "cast_tree": "gradtx.tree.cast",
    "jax": "jax",
    "jnp": "jax.numpy",
    "lerp": "gradtx._src.helpers.lerp",
    "np": "numpy",
    "NO_PARAMS_MSG": "gradtx._src.helpers.NO_PARAMS_MSG",
    "orthogonalize_via_newton_schulz": "gradtx._src.helpers.orthogonalize_via_newton_schulz",
    "PRNGKey": "gradtx.types.Array",
    "PyTree": "gradtx.types.PyTree",
    "safe_int32_increment": "gradtx.safe_increment",
    "scale_by_shape": "gradtx._src.helpers.scale_by_shape",
    "Shape": "gradtx._src.helpers.Shape",
    "update_moment": "gradtx.tree.update_moment",
    "update_moment_per_elem_norm": "gradtx.tree.update_moment_per_elem_norm",
    "zoom_linesearch": "gradtx._src.helpers.zoom_linesearch",
    "ZoomLinesearchState": "gradtx._src.helpers.ZoomLinesearchState",
    "_base_ns_iterator": "gradtx._src.helpers.base_ns_iterator",
    "_complex_to_real_pair": "gradtx.wrappers.complex.real_pairs",
    "_compute_muon_reshape": "gradtx._src.helpers.compute_muon_reshape",
    "_decay_rate_pow": "gradtx._src.helpers.decay_rate_pow",
    "_DEFAULT_NS_COEFFS": "gradtx._src.helpers.DEFAULT_NS_COEFFS",
    "_is_weight_dim_nums": "gradtx._src.helpers.is_weight_dim_nums",
    "_extract_fns_kwargs": "gradtx._src.helpers.extract_fns_kwargs",
    "_factored_dims": "gradtx._src.helpers.factored_dims",
    "_real_pair_to_complex": "gradtx.wrappers.complex.from_real_pairs",
    "_scale_by_learning_rate": "gradtx.scale_by_learning_rate",
    # Unions for annotations.
    "GaLoreDimNumsOrFn": "typing.Any",
    "ReshapeFn": "typing.Any",
    "ScheduleState": "typing.Any",
    "WeightDimNumOrFn": "typing.Any",
    # What Optax's modules import themselves, and `import *` takes along.
    "collections": "collections",
    "contextlib": "contextlib",
    "dataclasses": "dataclasses",
    "flatten_util": "jax.flatten_util",
    "functools": "functools",
    "inspect": "inspect",
    "lax": "jax.lax",
    "math": "math",
    "nn": "jax.nn",
    "operator": "operator",
    "optax": "gradtx",
    "typing": "typing",
    "warnings": "warnings",
    **{
        name: f"typing.{name}"
        for name in (
            "Callable",
            "Hashable",
            "Iterable",
            "Literal",
            "Mapping",
            "NamedTuple",
            "Optional",
            "Protocol",
            "Sequence",
            "Tuple",
            "TypeVar",
            "Union",
            "cast",
            "runtime_checkable",
        )
    },
}


def of(module: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module that stands for one of Optax's private modules.

    >>> from gradtx._src import base
    >>> base.EmptyState()
    EmptyState()
    """
    parent = module.removeprefix("gradtx.").rpartition(".")[0]
    homes = ("gradtx",) if parent == "_src" else (f"gradtx.{parent}", "gradtx")

    def get(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        if name in OTHERS:
            return _imported(OTHERS[name])
        if f"_src.{name}" in MODULES and not module.endswith(f".{name}"):
            return importlib.import_module(f"gradtx._src.{name}")
        for home in homes:
            if hasattr(public := importlib.import_module(home), name):
                return getattr(public, name)
        return getattr(importlib.import_module(homes[0]), name)  # whose error has advice

    return get


def _imported(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return (
        getattr(importlib.import_module(module), name) if module else importlib.import_module(name)
    )


class _MadeByName:
    """Makes the modules of the table."""

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """As Python makes others."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        rest = module.__name__.removeprefix("gradtx.")
        module.__doc__ = f"The names of Optax's private module `optax.{rest}`."
        names = MODULES[rest].split()
        vars(module).update(__all__=names, __getattr__=of(module.__name__), __dir__=names.copy)


def spec(name: str) -> ModuleSpec | None:
    """How a module of the table is imported; None for a name that is not in the table."""
    known = name.removeprefix("gradtx.") in MODULES
    return ModuleSpec(name, _MadeByName) if known else None  # type: ignore[arg-type]  # duck-typed


__all__, __getattr__, _ = lazy(__name__)


def __dir__() -> list[str]:
    return sorted(module[5:] for module in MODULES if module.startswith("_src."))
