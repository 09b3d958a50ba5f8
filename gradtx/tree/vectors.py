"""The leaves of a tree as one vector for each type."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from gradtx.leaves.paths import first_difference, leaves_with_path, path_string
from gradtx.leaves.rows import is_rows
from gradtx.numerics import cast
from gradtx.types import Array, PyTree, Updates


class Vectors:
    """The leaves of a tree as one vector for each of their types, and back."""

    def __init__(self, params: PyTree) -> None:
        self.treedef: Any
        keyed, self.treedef = leaves_with_path(params)
        for path, leaf in keyed:
            if is_rows(leaf):
                raise TypeError(
                    f"flatten cannot put the Rows at {path_string(path)!r} into a vector: leave "
                    "the table out with `masked`, or make its gradient dense with to_dense()"
                )
        self.leaves = [None if leaf is None else jnp.asarray(leaf) for _, leaf in keyed]
        present = [leaf for leaf in self.leaves if leaf is not None]
        self.dtypes = sorted({str(leaf.dtype) for leaf in present})

    def pack(self, tree: PyTree) -> Any:
        """The leaves as one vector, or as one for each type; a leaf that is None gives zeros."""
        leaves, treedef = leaves_with_path(tree)
        if treedef != self.treedef:
            difference = first_difference(tree, self.treedef.unflatten(self.leaves))
            raise ValueError(f"flatten: gradients and parameters differ: {difference}")
        parts: dict[str, list[Array]] = {dtype: [] for dtype in self.dtypes}
        for (path, leaf), like in zip(leaves, self.leaves, strict=True):
            if is_rows(leaf):
                raise TypeError(f"flatten cannot put the Rows at {path_string(path)!r} in a vector")
            if like is None:
                continue
            value = jnp.zeros_like(like) if leaf is None else jnp.asarray(leaf)
            if value.shape != like.shape:
                raise ValueError(
                    f"flatten: at {path_string(path)!r} the shapes {value.shape} and {like.shape} "
                    "differ"
                )
            parts[str(like.dtype)].append(value.reshape(-1))
        vectors = {dtype: jnp.concatenate(part) for dtype, part in parts.items()}
        return next(iter(vectors.values())) if len(vectors) == 1 else vectors

    def unpack(self, packed: Any, updates: Updates) -> Updates:
        """The vectors cut into leaves, in the types of `updates`; None where `updates` has none."""
        if not isinstance(packed, dict):
            packed = dict.fromkeys(self.dtypes, packed)
        start = dict.fromkeys(self.dtypes, 0)
        out: list[Any] = []
        for like, (_, g) in zip(self.leaves, leaves_with_path(updates)[0], strict=True):
            if like is None:
                out.append(None)
                continue
            dtype, size = str(like.dtype), math.prod(like.shape)
            piece = jax.lax.slice(packed[dtype], (start[dtype],), (start[dtype] + size,))
            start[dtype] += size
            out.append(None if g is None else cast(piece.reshape(like.shape), g.dtype))
        return self.treedef.unflatten(out)
