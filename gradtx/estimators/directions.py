"""Random directions in the space of the parameters, drawn again wherever they are read.

Entry `j` along the first axis of leaf `i` has a key of its own, made from these two numbers. So a
scan over stacked layers draws the part of its layer, with the same bits as in the whole leaf.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gradtx.checks import check_choice
from gradtx.numerics import cast, sum_sq, widen
from gradtx.numerics.precision import compute_dtype, real_dtype, scalar_dtype
from gradtx.types import Array

Draw = Callable[[Array, tuple[int, ...], Any], Array]

_DRAWS: dict[str, Draw] = {
    "rademacher": jax.random.rademacher,
    "normal": jax.random.normal,
    "sphere": jax.random.normal,  # and then brought to the length of all directions
}


def check_distribution(where: str, distribution: str) -> None:
    """Raise ValueError unless directions can be drawn from a distribution of this name."""
    check_choice(where, "distribution", distribution, tuple(_DRAWS))


class Directions:
    r"""Directions with :math:`E[z z^\top] = I` over leaves that have shapes and types.

    A complex leaf has two independent numbers in each entry. Zero-size leaves have no numbers.

    Args:
        key: a random key, to be used for nothing else.
        leaves: the leaves, or their shapes.
        distribution: ``"rademacher"``, ``"normal"``, or ``"sphere"``, on which all directions have
            the length of the square root of the number of entries.
        count: how many directions.
    """

    def __init__(
        self, key: Array, leaves: Sequence[Any], distribution: str, count: int = 1
    ) -> None:
        self.leaves, self.count = list(leaves), count
        self._draw = _DRAWS[distribution]
        self._keys = jax.vmap(lambda k: jax.random.fold_in(key, k))(jnp.arange(count))
        self._stretch: Array | None = None
        if distribution == "sphere":
            self._stretch = jax.lax.map(self._to_length, jnp.arange(count))

    def leaf(self, i: int, k: Any) -> Array:
        """Leaf `i` of direction `k`, in at least single precision."""
        return self._stretched(k, self._drawn_leaf(k, i))

    def layer(self, i: int, j: Any, k: Any) -> Array:
        """Entry `j` along the first axis of that leaf, drawn alone."""
        leaf = self.leaves[i]
        return self._stretched(k, self._drawn(k, i, j, leaf.shape[1:], leaf.dtype))

    def _drawn_leaf(self, k: Any, i: int) -> Array:
        leaf = self.leaves[i]
        shape, dtype = leaf.shape, leaf.dtype
        if 0 in shape:
            return jnp.zeros(shape, compute_dtype(dtype))
        if not shape:
            return self._drawn(k, i, 0, (), dtype)
        return jax.vmap(lambda j: self._drawn(k, i, j, shape[1:], dtype))(jnp.arange(shape[0]))

    def _drawn(self, k: Any, i: int, j: Any, shape: tuple[int, ...], dtype: Any) -> Array:
        key = jax.random.fold_in(jax.random.fold_in(self._keys[k], i), j)
        dtype = compute_dtype(dtype)
        if not jnp.issubdtype(dtype, jnp.complexfloating):
            return self._draw(key, shape, dtype)
        both = self._draw(key, (2, *shape), real_dtype(dtype))
        return jax.lax.complex(both[0], both[1])

    def _stretched(self, k: Any, z: Array) -> Array:
        return z if self._stretch is None else z * cast(self._stretch[k], real_dtype(z.dtype))

    def _to_length(self, k: Any) -> Array:
        entries = [math.prod(x.shape) * (1 + jnp.iscomplexobj(x)) for x in self.leaves]
        squares = [self._squares(k, i) for i in range(len(self.leaves))]
        kind = scalar_dtype(self.leaves)
        total = sum((cast(x, kind) for x in squares), jnp.zeros([], kind))
        return jnp.sqrt(float(sum(entries)) / total)

    def _squares(self, k: Any, i: int) -> Array:
        """The sum of squares of a leaf, layer by layer if it looks like a stack of layers.

        A compiler may store the whole leaf if it sees it.
        """
        leaf = self.leaves[i]
        layers, *layer = leaf.shape or (0,)
        if not 0 < layers <= _MOST_LAYERS or math.prod(layer) < _LARGE_LAYER:
            return sum_sq(self._drawn_leaf(k, i))

        def of_layer(j: Array) -> Array:
            return sum_sq(self._drawn(k, i, j, tuple(layer), leaf.dtype))

        return jnp.sum(jax.lax.map(of_layer, jnp.arange(layers)))


# A table has more rows, which would take long one after another; and short ones are soon stored.
_MOST_LAYERS, _LARGE_LAYER = 256, 2**12


def moved(p: Array, step: Any, z: Array) -> Array:
    """A parameter moved by a multiple of a direction, in its own type."""
    return cast(widen(p) + cast(jnp.asarray(step), real_dtype(z.dtype)) * z, p.dtype)
