"""The functions of :mod:`gradtx.tree` under the names that Optax first gave them."""

from functools import partial
from typing import TYPE_CHECKING

from gradtx.names.namespace import lazy
from gradtx.tree import (
    NamedTupleKey,
    add as tree_add,
    add_scale as tree_add_scale,
    allclose as tree_allclose,
    batch_shape as tree_batch_shape,
    bias_correction as tree_bias_correction,
    cast as tree_cast,
    cast_like as tree_cast_like,
    clip as tree_clip,
    conj as tree_conj,
    div as tree_div,
    dtype as tree_dtype,
    full_like as tree_full_like,
    get as tree_get,
    get_all_with_path as tree_get_all_with_path,
    map_params as tree_map_params,
    max as tree_max,
    min as tree_min,
    mul as tree_mul,
    norm as tree_norm,
    ones_like as tree_ones_like,
    random_like as tree_random_like,
    real as tree_real,
    scale as tree_scale,
    set as tree_set,
    size as tree_size,
    split_key_like as tree_split_key_like,
    sub as tree_sub,
    sum as tree_sum,
    unwrap_random_key_data as tree_unwrap_random_key_data,
    update_infinity_moment as tree_update_infinity_moment,
    update_moment as tree_update_moment,
    update_moment_per_elem_norm as tree_update_moment_per_elem_norm,
    vdot as tree_vdot,
    where as tree_where,
    zeros_like as tree_zeros_like,
)

tree_scalar_mul = tree_scale
tree_add_scalar_mul = tree_add_scale
tree_l1_norm = partial(tree_norm, ord=1)
tree_l2_norm = partial(tree_norm, ord=2)
tree_linf_norm = partial(tree_norm, ord="inf")

__path__: list[str] = []  # it has private modules: see gradtx._src
if not TYPE_CHECKING:
    __getattr__ = lazy(__name__)[1]

__all__ = [
    "NamedTupleKey",
    "tree_add",
    "tree_add_scalar_mul",
    "tree_add_scale",
    "tree_allclose",
    "tree_batch_shape",
    "tree_bias_correction",
    "tree_cast",
    "tree_cast_like",
    "tree_clip",
    "tree_conj",
    "tree_div",
    "tree_dtype",
    "tree_full_like",
    "tree_get",
    "tree_get_all_with_path",
    "tree_l1_norm",
    "tree_l2_norm",
    "tree_linf_norm",
    "tree_map_params",
    "tree_max",
    "tree_min",
    "tree_mul",
    "tree_norm",
    "tree_ones_like",
    "tree_random_like",
    "tree_real",
    "tree_scalar_mul",
    "tree_scale",
    "tree_set",
    "tree_size",
    "tree_split_key_like",
    "tree_sub",
    "tree_sum",
    "tree_unwrap_random_key_data",
    "tree_update_infinity_moment",
    "tree_update_moment",
    "tree_update_moment_per_elem_norm",
    "tree_vdot",
    "tree_where",
    "tree_zeros_like",
]
