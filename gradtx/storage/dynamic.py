"""Dynamic maps: codes that are dense near the largest entry of a block, and reach far below it."""

import itertools
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

    Args:
        bits: the bits of a code.
        signed: half of the codes are those of negative numbers; there is no -1.
    """

    bits: int
    signed: bool

    @property
    def _decades(self) -> list[tuple[int, float]]:
        """For each decade its least `k`, which is also the number of its codes, and its end."""
        first, many = int(not self.signed), self.bits - 1
        return [(2 ** (d + first), 10.0 ** (d - many + 1)) for d in range(many)]

    @property
    def _zero(self) -> int:
        return 2 ** (self.bits - 1) - 1 if self.signed else 0

    def values(self) -> np.ndarray:
        """What each code means."""
        return np.asarray(self.value(jnp.arange(2**self.bits)))

    def value(self, code: Array) -> Array:
        """What a code means, of numbers whose largest has the size 1."""
        shifted = code.astype(jnp.int32) - self._zero
        k = jnp.abs(shifted) if self.signed else shifted + 1
        # A float is its exponent, here n, and its mantissa, here k / 2**n.
        bits = jax.lax.bitcast_convert_type(k.astype(jnp.float32), jnp.int32)
        exponent = bits >> 23
        mantissa = jax.lax.bitcast_convert_type((bits & 0x7FFFFF) | 0x3F800000, jnp.float32)
        half = jax.lax.bitcast_convert_type((253 - exponent) << 23, jnp.float32)
        decades = self._decades
        end: Array | np.float32 = np.float32(decades[0][1])
        for least, last in decades[1:]:
            end = jnp.where(k >= least, np.float32(last), end)
        size = end * (0.1 + 0.9 * (mantissa - 1 + half))
        size = jnp.where(shifted == 0, 0.0, jnp.where(k == 2 * decades[-1][0], 1.0, size))
        return jnp.where(shifted < 0, -size, size)

    def code(self, a: Array) -> Array:
        """The code nearest to a number of size at most 1."""
        size, decades = jnp.abs(a), self._decades

        def at(decade: tuple[int, float], place: float) -> np.float32:
            """A number in a decade, `place` codes above its beginning."""
            least, end = decade
            return np.float32(end * (0.1 + 0.9 * place / least))

        def middle(low: np.float32, high: np.float32) -> np.float32:
            return np.float32((low + high) / np.float32(2))

        def slope(decade: tuple[int, float]) -> np.float32:
            least, end = decade
            return np.float32(least / (0.9 * end))

        least: Array | float = float(decades[0][0])
        per: Array | np.float32 = slope(decades[0])
        for before, after in itertools.pairwise(decades):
            up = size >= middle(at(before, before[0] - 0.5), at(after, 0.5))
            least = jnp.where(up, np.float32(after[0]), least)
            per = jnp.where(up, slope(after), per)
        # A code lies in the middle of its part of the decade, so the part decides which is nearest.
        k = within(jnp.floor(size * per + least * np.float32(8 / 9)), least, 2 * least - 1)
        one = a >= middle(at(decades[-1], decades[-1][0] - 0.5), np.float32(1))
        k = jnp.where(one, 2 * decades[-1][0], k)
        k = jnp.where(size < at(decades[0], 0.5) / 2, int(not self.signed), k)
        return integer(jnp.where(a < 0, -k, k) + self._zero if self.signed else k - 1)


@dataclass(frozen=True)
class LinearMap:
    """Even steps up to 1, without zero: what is small keeps a size by which one can divide."""

    bits: int

    def value(self, code: Array) -> Array:
        """What a code means."""
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
        """The map for numbers that may be negative, or may not."""
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
    """The dynamic map of 4 bits, and the linear one without zero for what is not negative."""

    bits, block, per_byte = 4, 128, 2

    def map(self, signed: bool) -> DynamicMap | LinearMap:
        return DynamicMap(4, True) if signed else LinearMap(4)
