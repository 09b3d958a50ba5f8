"""Subtractive dither: known noise is added before rounding, and subtracted afterwards."""

import jax.numpy as jnp

from gradtx.storage.draws import Draws
from gradtx.storage.dynamic import Int4
from gradtx.storage.format import NEAREST, Format, integer, largest, over, rounded, within
from gradtx.types import Array


class Dithered(Format):
    r"""A 4-bit integer for each entry, and a float32 scale `s` for each block.

    A number :math:`x` of a signed slot is kept as the integer nearest to
    :math:`7 x / s + u`, and read as that minus :math:`u`, with :math:`u` in
    :math:`[-1/2, 1/2)` drawn for each block at each step. The error is independent of :math:`x`
    and zero on average, so that a moving average, which moves by less than a step at a time, still
    follows. :math:`u` is replayed from the key in the state and takes no memory.

    The errors of single steps add up over as many steps as an average remembers, which are too many
    for a second moment: that has the map of ``int4``.
    """

    block, per_byte = 128, 2
    roundings, drawn = (NEAREST,), True
    _second = Int4()

    def encode(self, x: Array, axis: int, signed: bool, draws: Draws | None) -> dict[str, Array]:
        if not signed:
            return self._second.encode(x, axis, signed, None)
        scale = largest(x, axis)
        code = rounded(over(x, scale) * 7 + _shared(draws, scale), None)
        return {"codes": integer(within(code, -8, 7) + 8), "scale": scale}

    def decode(
        self, parts: dict[str, Array], axis: int, signed: bool, draws: Draws | None
    ) -> Array:
        if not signed:
            return self._second.decode(parts, axis, signed, None)
        scale = parts["scale"]
        code = parts["codes"].astype(jnp.float32) - 8
        return (code - _shared(draws, scale)) / 7 * scale


def _shared(draws: Draws | None, scale: Array) -> Array:
    assert draws is not None
    return draws.uniform(scale.shape) - 0.5
