"""Where the arrays of a tree lie."""

from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from gradtx.numerics.tracing import is_tracer
from gradtx.types import TreeT


def committed(tree: TreeT) -> tuple[TreeT, bool]:
    """A tree with all its arrays bound to one device if some are, and whether some are.

    Arrays are bound to a device (JAX calls them committed) if their device was asked for, as for an
    array in the host's memory. What a compiled function returns is bound if one of its
    arguments is, and it is compiled once more for arguments of which others are bound. Binding
    copies nothing. Where arrays are bound to several devices the tree is returned as it is.
    """
    arrays = [x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array)]
    if any(map(is_tracer, arrays)):
        return tree, False
    bound = {x.sharding for x in arrays if x.committed}
    devices = {device for sharding in bound for device in sharding.device_set}
    single = all(isinstance(sharding, SingleDeviceSharding) for sharding in bound)
    if len(devices) != 1 or not single:
        return tree, False
    sharding = SingleDeviceSharding(devices.pop())

    def one(x: Any) -> Any:
        loose = isinstance(x, jax.Array) and not x.committed
        return jax.device_put(x, sharding) if loose else x

    return jax.tree.map(one, tree), True
