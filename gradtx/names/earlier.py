"""Modules under their earlier paths, as pickles, exported programs and users' code name them."""

import importlib
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Where a module of such a path is now. Files name it so for good: no line is taken out.
MODULES = {
    "gradtx.absences": "gradtx.names.absences",
    "gradtx.contexts": "gradtx.programs.contexts",
    "gradtx.declaration": "gradtx.declarations.declaration",
    "gradtx.declared_schedule": "gradtx.declarations.declared_schedule",
    "gradtx.decompositions": "gradtx.linalg.decompositions",
    "gradtx.distributed.axes": "gradtx.sharding.axes",
    "gradtx.distributed.divided_state": "gradtx.sharding.divided_state",
    "gradtx.distributed.operations": "gradtx.sharding.operations",
    "gradtx.distributed.padding": "gradtx.sharding.padding",
    "gradtx.distributed.placement": "gradtx.sharding.placement",
    "gradtx.distributed.planning": "gradtx.sharding.planning",
    "gradtx.distributed.sharding": "gradtx.sharding.sharding",
    "gradtx.eager": "gradtx.core.eager",
    "gradtx.eigenbasis": "gradtx.linalg.eigenbasis",
    "gradtx.engine.both_sides": "gradtx.kernels.both_sides",
    "gradtx.engine.cutting": "gradtx.kernels.cutting",
    "gradtx.engine.kernels": "gradtx.kernels.stored_step",
    "gradtx.engine.matrix_layout": "gradtx.leaves.matrix_layout",
    "gradtx.engine.one_message": "gradtx.ownership.one_message",
    "gradtx.engine.own_batches": "gradtx.ownership.own_batches",
    "gradtx.engine.owned_slots": "gradtx.ownership.owned_slots",
    "gradtx.engine.owners": "gradtx.ownership.owners",
    "gradtx.engine.shard_alike": "gradtx.ownership.shard_alike",
    "gradtx.engine.tiling": "gradtx.kernels.tiling",
    "gradtx.expansion": "gradtx.core.expansion",
    "gradtx.explanations": "gradtx.core.explanations",
    "gradtx.flax_forms": "gradtx.checkpoint.flax",
    "gradtx.host_values": "gradtx.declarations.host_values",
    "gradtx.linear_algebra": "gradtx.linalg.linear_algebra",
    "gradtx.loss_functions": "gradtx.core.loss_functions",
    "gradtx.materialized": "gradtx.core.materialized",
    "gradtx.namespace": "gradtx.names.namespace",
    "gradtx.numerics.derivatives": "gradtx.programs.derivatives",
    "gradtx.numerics.keys": "gradtx.types.keys",
    "gradtx.numerics.opaque": "gradtx.programs.opaque",
    "gradtx.numerics.products": "gradtx.linalg.products",
    "gradtx.numerics.programs": "gradtx.programs.interpreter",
    "gradtx.numerics.tracing": "gradtx.programs.tracing",
    "gradtx.packed": "gradtx.leaves.packed",
    "gradtx.pair": "gradtx.core.pair",
    "gradtx.paths": "gradtx.leaves.paths",
    "gradtx.rows": "gradtx.leaves.rows",
    "gradtx.scheduled": "gradtx.declarations.scheduled",
    "gradtx.shardings": "gradtx.leaves.shardings",
    "gradtx.signatures": "gradtx.types.signatures",
    "gradtx.training.inside": "gradtx.backward.inside",
    "gradtx.training.layer_stacks": "gradtx.backward.layer_stacks",
    "gradtx.training.layerwise": "gradtx.backward.layerwise",
    "gradtx.training.lookup": "gradtx.backward.lookup",
    "gradtx.training.resharding": "gradtx.sharding.resharding",
    "gradtx.training.scans": "gradtx.backward.scans",
    "gradtx.training.separate": "gradtx.programs.separate",
    "gradtx.traits": "gradtx.core.traits",
    "gradtx.tree.memory": "gradtx.leaves.memory",
    "gradtx.whole": "gradtx.leaves.whole",
}
# The fields that the record of a pair had, in their order: pickles hold it by position. Of a field
# that is now a facet there is the path of its class.
RECORD: dict[str, str | None] = {
    "step": None,
    "before_gradients": None,
    "rule": None,
    "lifted": "gradtx.engine.lift.Lifted",
    "parts": None,
    "links": "gradtx.core.traits.Links",
    "on_part": "gradtx.composition.views.OnPart",
    "takes_vectors": None,
    "clock": "gradtx.core.expansion.Clock",
    "cases": "gradtx.composition.gate.Cases",
    "communication": "gradtx.core.communication.Communication",
    "multipliers": "gradtx.composition.multipliers.MultipliersByPath",
    "nearest": "gradtx.composition.nearest.Nearest",
    "roles": "gradtx.composition.roles.RolesOfLeaves",
    "takes_norm": "gradtx.composition.views.TakesNorm",
    "inner": None,
    "searches": "gradtx.composition.searches.Searches",
    "scales_loss": "gradtx.training.loss_scale.ScalesLoss",
    "estimator": "gradtx.estimators.estimator.Estimator",
}

_BEFORE = {now: before for before, now in MODULES.items()}


class _MovedModule:
    """Imports the module where it is now."""

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """As Python makes others."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        # Importers get the module that stands here afterwards.
        sys.modules[module.__name__] = importlib.import_module(MODULES[module.__name__])


def spec(name: str) -> ModuleSpec | None:
    """How a module of the table is imported; None for a name that is not in the table."""
    return ModuleSpec(name, _MovedModule) if name in MODULES else None  # type: ignore[arg-type]  # duck-typed


def in_files(module: str) -> str:
    """The path of a module in files: an earlier one, if there is one, as other versions know it.

    >>> in_files("gradtx.leaves.rows"), in_files("gradtx.optimizers.adam")
    ('gradtx.rows', 'gradtx.optimizers.adam')
    """
    return _BEFORE.get(module, module)


def in_facets(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the record of a pair under the names that they had, as those that it has now."""
    now = {name: value for name, value in fields.items() if RECORD.get(name) is None}
    facets = {type(facet): facet for facet in now.get("facets", ())}
    for name in [name for name in fields if RECORD.get(name) is not None]:
        module, _, of = str(RECORD[name]).rpartition(".")
        value, kind = fields[name], getattr(importlib.import_module(module), of)
        facets.pop(kind, None)
        if value is not None and value is not False:
            facets[kind] = _facet(kind, value)
    return {**now, "facets": tuple(facets.values())}


def _facet(kind: type, value: Any) -> Any:
    if isinstance(value, kind):
        return value
    return kind() if value is True else kind(value)


def record_of_positions(values: Iterable[Any]) -> dict[str, Any]:
    """The fields of a record that a pickle holds by position."""
    return in_facets(dict(zip(RECORD, values, strict=False)))
