"""Companded integers: even steps after a function that spreads small numbers."""

from typing import Any

import jax.numpy as jnp

from gradtx.numerics import half
from gradtx.storage.draws import Draws
from gradtx.storage.format import (
    MOST,
    NEAREST,
    SCALE,
    STOCHASTIC,
    TINY,
    Format,
    between,
    integer,
    largest,
    over,
    rounded,
    within,
)
from gradtx.types import Array


class Companded(Format):
    r"""An integer of `b` bits for each entry, and a scale `s` for each block.

    A number :math:`x` of a signed slot is kept as :math:`2 a / (1 + |a|)` with :math:`a = x / s`,
    in steps of :math:`1 / (2^{b-1} - 1)`; one of a second moment as its root, in steps of
    :math:`s / (2^b - 1)`, and positive numbers stay so. The root of an average with decay 0.999
    moves by half a unit in the last place of float16, so that a scale rounded to nearest would fall
    twice as fast.

    Args:
        bits: `b`, 8 or 4.
        block: how many entries share a scale by default.
        scale: the type of `s`.
    """

    def __init__(self, bits: int, block: int, scale: Any) -> None:
        self.bits, self.block, self.per_byte, self.types = bits, block, 8 // bits, {"scale": scale}
        self.keeps_signs = bits > 4
        if scale == jnp.float16:
            self.roundings, self.of_averages = (NEAREST, STOCHASTIC, SCALE), SCALE

    def encode(self, x: Array, axis: int, signed: bool, draws: Draws | None) -> dict[str, Array]:
        y = x if signed else jnp.sqrt(jnp.maximum(x, 0))
        # A NaN is not at most 0, but jnp.maximum keeps it too.
        scale, most = largest(y, axis), self._most(signed)
        if not signed:
            scale = within(scale, 0, MOST**0.5)
        if self.types["scale"] == jnp.float16:
            scale = _in_half(scale, draws)
            draws = None if draws is not None and draws.of_scale else draws
        a = within(over(y, scale), -1, 1)
        if signed:
            code = rounded(most * (2 * a / (1 + jnp.abs(a))), draws)
            if draws is not None:  # most + 0.99... is rounded to a number that is no code
                code = within(code, -most, most)
        else:
            code = within(rounded(most * a, draws), jnp.where(x > 0, 1.0, 0.0), most)
        codes = integer(code) + self._zero(signed)
        return {"codes": codes.astype(self._kind(signed)), "scale": scale}

    def decode(
        self, parts: dict[str, Array], axis: int, signed: bool, draws: Draws | None
    ) -> Array:
        code, scale = (parts[n].astype(jnp.float32) for n in ("codes", "scale"))
        z = (code - self._zero(signed)) / self._most(signed)
        if signed:
            return z / (2 - jnp.abs(z)) * scale
        root = z * scale
        return root * root

    def _most(self, signed: bool) -> int:
        """The largest code."""
        return 2 ** (self.bits - signed) - 1

    def _zero(self, signed: bool) -> int:
        """The code of the number 0; 4-bit codes are unsigned, so that 0 is in their middle."""
        return 8 if signed and self.bits == 4 else 0

    def _kind(self, signed: bool) -> Any:
        return jnp.int8 if signed and self.bits == 8 else jnp.uint8


def _in_half(scale: Array, draws: Draws | None) -> Array:
    """The bits of scales in float16, finite, and zero only for blocks of zeros.

    Rounded to nearest, with draws for scales at random, and with draws for codes up: then no entry
    is above its scale, where rounding could only be down.
    """
    bits = half.to_bits(scale)
    if draws is not None and draws.of_scale:

        def other(rising: Array) -> Array:
            return bits + jnp.where(rising, 1, -1)

        bits = between(scale, bits, other, half.from_bits, draws)
    elif draws is not None:
        bits = bits + (half.from_bits(bits) < scale)
    short = half.from_bits(bits)
    # The least number and the largest one of float16.
    return jnp.where(scale >= TINY, within(short, 2.0**-24, 65504), short)
