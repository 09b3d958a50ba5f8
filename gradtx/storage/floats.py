"""Shorter floats: bfloat16, float16, bfloat16 with eight more bits, and 8-bit floats in blocks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.storage.draws import Draws
from gradtx.storage.format import (
    NEAREST,
    STOCHASTIC,
    TINY,
    Format,
    between,
    largest,
    over,
)
from gradtx.types import Array


def _bits_of(dtype: Any) -> Any:
    return jnp.dtype(f"uint{jnp.finfo(dtype).bits}")


def rounded_to(x: Array, dtype: Any, draws: Draws | None) -> Array:
    """`x` in a shorter type, rounded to nearest, or with `draws` up or down at random.

    >>> x = jnp.full(1000, 1 + 2**-10)
    >>> draws = Draws.of((1, 2), x.shape)
    >>> bool(abs(rounded_to(x, jnp.bfloat16, draws).astype(float).mean() - x[0]) < 1e-3)
    True
    """
    near = x.astype(dtype)
    bits = jax.lax.bitcast_convert_type(near, _bits_of(dtype)).astype(jnp.int32)
    wide = near.astype(jnp.float32)

    def value(code: Array) -> Array:
        short = jax.lax.bitcast_convert_type(code.astype(_bits_of(dtype)), dtype)
        return short.astype(jnp.float32)

    def other(rising: Array) -> Array:
        # Sign and magnitude: the next code away from zero is one more. From zero, x has the sign.
        away = (rising == (x > 0)) | (wide == 0)
        return bits + jnp.where(away, 1, -1)

    chosen = between(x, bits, other, value, draws)
    codes = jnp.where(jnp.isfinite(wide), chosen, bits).astype(_bits_of(dtype))
    return jax.lax.bitcast_convert_type(codes, dtype)


def positive(y: Array, least: float, x: Array) -> Array:
    """`y`, raised to `least` where `x` is positive, since a second moment must not become 0."""
    return jnp.where(x > 0, jnp.maximum(y, least), y)


class Short(Format):
    """Each entry as a floating-point number of a shorter type.

    A positive entry stays positive: float16 ends at 6e-8, where many a second moment begins. An
    average with decay 0.999 moves by less than half a unit in the last place of bfloat16.
    """

    of_averages = STOCHASTIC

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        self._most = float(jnp.finfo(dtype).max)
        self._least = float(jnp.finfo(dtype).smallest_subnormal)
        self.keeps_signs = self._least < TINY

    def encode(self, x: Array, axis: int, signed: bool, draws: Draws | None) -> dict[str, Array]:
        x = jnp.clip(x, -self._most, self._most)  # with `within` XLA would store it on a CPU
        if not signed and self._least > TINY:
            x = positive(x, self._least, x)
        return {
            "values": x.astype(self.dtype) if draws is None else rounded_to(x, self.dtype, draws)
        }

    def decode(
        self, parts: dict[str, Array], axis: int, signed: bool, draws: Draws | None
    ) -> Array:
        return parts["values"].astype(jnp.float32)


# The bits of a float32 without its sign, and of infinity: larger ones are those of NaN.
_SIZE, _INFINITY = np.int32(0x7FFFFFFF), np.int32(0x7F800000)


class Split(Format):
    """bfloat16, and its distance from the number in 256ths of a unit in the last place.

    Together they are the upper 24 bits of a float32, rounded to nearest: the bits of a float, read
    as an integer, count its units in the last place.
    """

    roundings = (NEAREST,)
    _most = np.float32(2.0**128 - 129 * 2.0**112).view(np.int32)  # beyond it bfloat16 is infinite
    _nan = np.int32(0x7FC0)  # in bfloat16

    def encode(self, x: Array, axis: int, signed: bool, draws: Draws | None) -> dict[str, Array]:
        # By integers alone: a compiler may take numbers below the least normal one for zero.
        bits = jax.lax.bitcast_convert_type(x, jnp.int32)
        size = bits & _SIZE
        bits = (bits ^ size) | jnp.minimum(size, self._most)
        upper = (jax.lax.shift_right_logical(bits, np.int32(7)) + 1) >> 1
        high = (upper + 128) >> 8
        low = (upper - (high << 8)).astype(jnp.int8)
        # Rounding could turn a NaN into a number, and no residual does.
        high = jnp.where(size > _INFINITY, self._nan, high)
        values = jax.lax.bitcast_convert_type(high.astype(jnp.uint16), jnp.bfloat16)
        return {"values": values, "residual": low}

    def decode(
        self, parts: dict[str, Array], axis: int, signed: bool, draws: Draws | None
    ) -> Array:
        high = jax.lax.bitcast_convert_type(parts["values"], jnp.uint16).astype(jnp.int32)
        low = parts["residual"].astype(jnp.int32)
        # A compiler may have made zero of the least values, below which are the bits of NaN.
        low = jnp.where((high & 0x7FFF) == 0, jnp.maximum(low, 0), low)
        upper = (high << 8) + low
        return jax.lax.bitcast_convert_type(upper << 8, jnp.float32)


class Float8(Format):
    """An 8-bit float for each entry, and a float32 scale for each block.

    A positive entry of a second moment stays positive.

    Args:
        dtype: the type.
        expand: whether to raise scaled numbers to a power, one for each block, so that their range
            becomes that of the type.
    """

    block = 128

    def __init__(self, dtype: Any, *, expand: bool = False) -> None:
        self.dtype, self.expand = dtype, expand
        self._most = float(jnp.finfo(dtype).max)
        self._least = float(jnp.finfo(dtype).smallest_subnormal)

    def encode(self, x: Array, axis: int, signed: bool, draws: Draws | None) -> dict[str, Array]:
        scale = largest(x, axis)
        parts = {"scale": scale}
        y = over(x, scale)
        if self.expand:
            # Where 0 has no code, a quotient that underflows is part of the range too.
            size = jnp.abs(y) if signed else jnp.where(x > 0, jnp.maximum(y, 2 * TINY), y)
            least = jnp.min(size, axis, keepdims=True, initial=0.5, where=size > 0)
            ratio = jnp.log(self._most / self._least) / -jnp.log(jnp.maximum(least, TINY))
            # A power above 1 widens a narrow range; one below 1 keeps a wide range from vanishing.
            parts["power"] = ratio
            y = jnp.copysign(size**ratio, y)
        y = jnp.clip(y * self._most, -self._most, self._most)
        if not signed:
            y = positive(y, self._least, x)
        code = y.astype(self.dtype) if draws is None else rounded_to(y, self.dtype, draws)
        return {"codes": code, **parts}

    def decode(
        self, parts: dict[str, Array], axis: int, signed: bool, draws: Draws | None
    ) -> Array:
        y = parts["codes"].astype(jnp.float32) / self._most
        if self.expand:
            y = jnp.copysign(jnp.abs(y) ** (1 / parts["power"]), y)
        return y * parts["scale"]
