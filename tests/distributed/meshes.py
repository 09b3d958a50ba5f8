"""Meshes of the eight virtual devices, and what tests do on them."""

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from benchmarks.hlo import by_kind, collectives

P = PartitionSpec


def mesh(**axes):
    """A mesh with axes of these sizes: ``mesh(data=4, model=2)``."""
    n = int(np.prod(list(axes.values())))
    devices = np.array(jax.devices()[:n]).reshape(tuple(axes.values()))
    return Mesh(devices, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def on(m, *spec):
    return NamedSharding(m, P(*spec))


def counted(compiled):
    """``{kind: (how many, bytes)}`` of a compiled program."""
    return by_kind(collectives(compiled.as_text()))


def all_lie_on(tree, shardings):
    same = jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim), tree, shardings)
    return jax.tree.all(same)
