"""Dynamic maps: codes that are dense near the largest entry of a block, and reach far below it."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.storage.draws import Draws
from gradtx.storage.format import Format, between, integer, largest, over, rounded, within
from gradtx.types import Array


@dataclass(frozen=True)
class DynamicMap:
    r"""The map of T. Dettmers, in closed form instead of a table.

    In each decade below 1 the numbers lie evenly, twice as many as in the decade below. With
    :math:`2^n \le k < 2^{n+1}`, the code of magnitude `k` means

    .. math:: v_k = 10^{n - n_1} \left( 0.1 + 0.9 \, \frac{k - 2^n + 1/2}{2^n} \right)

    where :math:`n_1` belongs to the last decade; beyond it there is 1, before the first there is 0.
    Without negative numbers 0 is read as half of the least number that has another code, since a
    second moment is a divisor.

    Args:
        bits: the bits of a code, a power of two.
        signed: half of the codes are those of negative numbers; there is no -1.
    """

    bits: int
    signed: bool

    @property
    def _first(self) -> int:
        """The least `k` of the first decade."""
        return 1 if self.signed else 2

    @property
    def _zero(self) -> int:
        return 2 ** (self.bits - 1) - 1 if self.signed else 0

    @property
    def _powers(self) -> list[int]:
        """The powers of two that add up to how far the first decade is below 1."""
        return [2**b for b in reversed(range(self.bits.bit_length() - 1))]

    @property
    def _vanishing(self) -> float:
        """Half of the least number with a code other than that of 0, which smaller numbers get."""
        return 10.0 ** (2 - self.bits) * (0.05 + 0.225 / self._first)

    def value(self, code: Array) -> Array:
        """The number that a code stands for, of size at most 1.

        The mantissa of the float ``k + 1/2`` is that of the equation, and its exponent `n`. Twice
        that float, or that float if there are no negative numbers, has the bits of the decade's
        number, from 0, as the last ones of its exponent. They are all set only for 1; those that
        are not set say how far below it the decade is.
        """
        shifted = code.astype(jnp.int32).astype(jnp.float32) - self._zero
        place = 2 * jnp.abs(shifted) + 1 if self.signed else shifted + 1.5
        bits = jax.lax.bitcast_convert_type(place, jnp.int32)
        mantissa = jax.lax.bitcast_convert_type((bits & 0x7FFFFF) | 0x3F800000, jnp.float32)
        size = 9 * mantissa - 8
        for power in self._powers:
            size = jnp.where(bits & (power << 23) == 0, size * np.float32(10.0**-power), size)
        least = 0.0 if self.signed else self._vanishing / 2
        size = jnp.where(place < 2, np.float32(least), jnp.where(size > 1, 1.0, size))
        return jnp.where(shifted < 0, -size, size) if self.signed else size

    def code(self, a: Array) -> Array:
        """The code nearest to a number of size at most 1.

        A code lies in the middle of its part of the decade, so the part decides which is nearest.
        Only the first fifth of a decade's first part belongs to the code before, whose own part is
        a fifth as long; so it does no harm to look for a decade a little below its beginning.
        """
        size, first, most = jnp.abs(a), self._first, self._first * 2 ** (self.bits - 2)
        scaled, least = size, jnp.full_like(size, most)
        for power in self._powers:
            below = scaled < np.float32(0.99 * 10.0**-power)
            scaled = jnp.where(below, scaled * np.float32(10.0**power), scaled)
            least = jnp.where(below, least * 2.0**-power, least)
        part = (scaled * np.float32(10 / 9) - np.float32(1 / 9)) * least
        k = least + jnp.where(part < 0.2, -1, jnp.floor(part))
        one = size >= np.float32(1 - 0.225 / most)
        zero = size < np.float32(self._vanishing)
        k = jnp.where(k < first, first, k)
        if not self.signed:
            return integer(jnp.where(zero, first - 1, jnp.where(one, 2 * most, k)) - 1)
        bits = jax.lax.bitcast_convert_type(a, jnp.int32)
        k = jnp.where(one, jnp.where(a < 0, 2 * most - 1, 2 * most), k)  # there is no -1
        k = jax.lax.bitcast_convert_type(jnp.where(zero, first - 1, k), jnp.int32)
        sign = bits & np.int32(-(2**31))
        return integer(jax.lax.bitcast_convert_type(k | sign, jnp.float32) + self._zero)


@dataclass(frozen=True)
class LinearMap:
    """A map of evenly spaced numbers up to 1 without 0: one can divide by each of them."""

    bits: int

    def value(self, code: Array) -> Array:
        """The number that a code stands for."""
        return (code.astype(jnp.float32) + 1) / 2**self.bits

    def code(self, a: Array) -> Array:
        """The nearest code."""
        return integer(within(rounded(a * 2**self.bits, None) - 1, 0, 2**self.bits - 1))


class Mapped(Format):
    """The number of the nearest value of a map for each entry, and a float32 scale for each block.

    Attributes:
        bits: the bits of a code.
    """

    bits: int

    def map(self, signed: bool) -> DynamicMap | LinearMap:
        """The map from codes to numbers, for slots with negative entries or without."""
        raise NotImplementedError

    def encode(self, x: Array, axis: int, signed: bool, draws: Draws | None) -> dict[str, Array]:
        scale, of = largest(x, axis), self.map(signed)
        a = over(x, scale)
        near = of.code(a)

        def other(rising: Array) -> Array:
            return jnp.clip(near + jnp.where(rising, 1, -1), 0, 2**self.bits - 1)

        code = between(a, near, other, of.value, draws)
        return {"codes": code.astype(jnp.uint8), "scale": scale}

    def decode(
        self, parts: dict[str, Array], axis: int, signed: bool, draws: Draws | None
    ) -> Array:
        return self.map(signed).value(parts["codes"]) * parts["scale"]


class Int8(Mapped):
    """The dynamic maps of 8 bits: the same codes as those of bitsandbytes and torchao."""

    bits, block = 8, 256

    def map(self, signed: bool) -> DynamicMap | LinearMap:
        return DynamicMap(8, signed)


class Int4(Mapped):
    """The dynamic map of 4 bits, and the linear one without zero for nonnegative numbers."""

    bits, block, per_byte = 4, 128, 2
    keeps_signs = False

    def map(self, signed: bool) -> DynamicMap | LinearMap:
        return DynamicMap(4, True) if signed else LinearMap(4)
