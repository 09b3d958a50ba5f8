"""Random numbers for the entries of a slot, each from a key and the entry's place alone."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.types import Array


class Draws(NamedTuple):
    """Random numbers for the entries of a slot, which a shard of it gets too for its entries.

    Attributes:
        key: two numbers, int32.
        start: the place of the first entry, counted row by row.
        strides: how many places lie between neighbours along each dimension.
        of_scale: whether they are to round the scales of blocks, and not their entries.

    >>> whole = Draws.of((1, 2), (4, 6))
    >>> bool(jnp.all(whole.uniform((4, 6))[1:, 2:] == whole.part((1, 2)).uniform((3, 4))))
    True
    """

    key: tuple[Array | int, Array | int]
    start: Array | int
    strides: tuple[int, ...]
    of_scale: bool = False

    @classmethod
    def of(cls, key: tuple[Array | int, ...], shape: tuple[int, ...]) -> "Draws":
        """The draws of a slot by its key: two numbers, and for some rows the index of the first."""
        first, second, *start = key
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        return cls((first, second), start[0] if start else 0, strides)

    def part(self, starts: Sequence[Array | int]) -> "Draws":
        """The random draws of a shard whose first entry is at `starts` along the dimensions."""
        start = self.start
        for i, stride in zip(starts, self.strides, strict=True):
            start = _int32(start + _int32(i * _int32(stride)))
        return self._replace(start=start)

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """Numbers in [0, 1) of 23 bits; along dimensions of length 1, those of the first entry."""
        place = jnp.full(shape, self.start, jnp.int32)
        for axis, stride in enumerate(self.strides):
            if shape[axis] > 1:
                along = jax.lax.broadcasted_iota(jnp.int32, shape, axis)
                place = place + along * _int32(stride)
        bits = _mixed(_mixed(place ^ self.key[0]) + self.key[1])
        one = jax.lax.shift_right_logical(bits, np.int32(9)) | 0x3F800000  # a float in [1, 2)
        return jax.lax.bitcast_convert_type(one, jnp.float32) - 1


def _mixed(x: Array) -> Array:
    """C. Wellons' lowbias32 (2018): each bit of the result depends on all bits of `x`."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ jax.lax.shift_right_logical(x, np.int32(shift))) * _int32(factor)
    return x ^ jax.lax.shift_right_logical(x, np.int32(16))


def _int32(x: Any) -> Any:
    """A Python number wrapped around like an int32; arrays of int32 wrap around themselves."""
    return (x + 2**31) % 2**32 - 2**31 if isinstance(x, int) else x
