"""Mathematics on trees, under Optax's names: `None` leaves are skipped, `Rows` count as one leaf.

A leaf that is `None` in any of the trees, such as a parameter without a gradient, is `None` in the
result and adds nothing to a sum. On `Rows` a function acts on the rows that they hold. Sums,
norms and inner products are taken in at least float32; Optax takes them in the leaves' type.
"""

from gradtx.tree.arithmetic import (
    add,
    add_scale,
    batch_shape,
    cast,
    cast_like,
    clip,
    conj,
    div,
    dtype,
    full_like,
    mul,
    ones_like,
    real,
    scale,
    sub,
    where,
    zeros_like,
)
from gradtx.tree.leaves import (
    map_updates,
)
from gradtx.tree.moments import (
    bias_correction,
    update_infinity_moment,
    update_moment,
    update_moment_per_elem_norm,
)
from gradtx.tree.random import (
    random_like,
    split_key_like,
    unwrap_random_key_data,
)
from gradtx.tree.search import NamedTupleKey, get, get_all_with_path, map_params, set
from gradtx.tree.sums import (
    allclose,
    global_norm,
    max,
    min,
    norm,
    norm_sq,
    size,
    sum,
    vdot,
)

__all__ = [
    "NamedTupleKey",
    "add",
    "add_scale",
    "allclose",
    "batch_shape",
    "bias_correction",
    "cast",
    "cast_like",
    "clip",
    "conj",
    "div",
    "dtype",
    "full_like",
    "get",
    "get_all_with_path",
    "global_norm",
    "map_params",
    "map_updates",
    "max",
    "min",
    "mul",
    "norm",
    "norm_sq",
    "ones_like",
    "random_like",
    "real",
    "scale",
    "set",
    "size",
    "split_key_like",
    "sub",
    "sum",
    "unwrap_random_key_data",
    "update_infinity_moment",
    "update_moment",
    "update_moment_per_elem_norm",
    "vdot",
    "where",
    "zeros_like",
]
