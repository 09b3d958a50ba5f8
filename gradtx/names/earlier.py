"""Modules under their earlier paths, as pickles, exported programs and users' code name them."""

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

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
    "gradtx.flax_forms": "gradtx.interop.flax",
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
_BEFORE = {now: before for before, now in MODULES.items()}


class _MovedModule:
    """Imports the module where it is now."""

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """As Python makes others."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        # Importers get what stands here afterwards.
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
