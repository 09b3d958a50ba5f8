"""float16 by its bits, for compilers that do not know it, such as that of a TPU's kernels."""

import jax
import jax.numpy as jnp

from gradtx.types import Array


def from_bits(bits: Array) -> Array:
    """The numbers, in float32, whose bits in float16 are these, as int32.

    >>> from_bits(jnp.array([0x3C00, 0x0001, 0xFC00])).tolist()
    [1.0, 5.960464477539063e-08, -inf]
    """
    size = bits & 0x7FFF
    # The exponent is counted from -15 in float16, and from -127 in float32.
    wide = (size << 13) + jnp.where(size < 0x7C00, 112 << 23, 224 << 23)
    normal = jax.lax.bitcast_convert_type(wide, jnp.float32)
    x = jnp.where(size < 0x400, size.astype(jnp.float32) * 2.0**-24, normal)
    return jnp.where(bits >= 0x8000, -x, x)


def to_bits(x: Array) -> Array:
    """The bits, as int32, of float32 numbers rounded to float16: to nearest, ties to even.

    >>> [hex(b) for b in to_bits(jnp.array([1.0, 1e-7, -65520.0])).tolist()]
    ['0x3c00', '0x2', '0xfc00']
    """
    wide = jax.lax.bitcast_convert_type(x, jnp.int32)
    size = wide & 0x7FFFFFFF
    normal = (size - (112 << 23) + 0xFFF + ((size >> 13) & 1)) >> 13
    # Units in the last place of numbers below 1 and of the least numbers of float16 are the same.
    least = jax.lax.bitcast_convert_type(jnp.abs(x) + 0.5, jnp.int32) - 0x3F000000
    bits = jnp.where(size < 0x38800000, least, jnp.minimum(normal, 0x7C00))
    bits = jnp.where(size > 0x7F800000, 0x7E00, bits)  # NaN
    return bits | ((wide >> 16) & 0x8000)


def nearest(x: Array) -> Array:
    """The nearest numbers of float16, in float32.

    XLA may leave out the two conversions of ``x.astype(float16).astype(float32)``.
    """
    return from_bits(to_bits(x))
