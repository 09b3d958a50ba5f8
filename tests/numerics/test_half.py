"""float16 by its bits, for every number of it and for what lies between two."""

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.numerics import half

ALL = np.arange(2**16, dtype=np.uint16)


def test_every_number_is_read_as_numpy_reads_it():
    found = jax.jit(half.from_bits)(jnp.asarray(ALL, jnp.int32))
    want = ALL.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(want))


def test_numbers_are_rounded_as_numpy_rounds_them():
    """Numbers of float16, the midpoints between two, and what is next to these in float32."""
    numbers = ALL[:0x7C01].view(np.float16).astype(np.float32)
    numbers[-1] = 2.0**16  # where infinity would be if it were a number
    middles = (numbers[1:] + numbers[:-1]) / 2
    rising = np.nextafter(middles, np.float32(np.inf))
    least_nan = np.array([0x7F800001], np.uint32).view(np.float32)
    others = np.array([np.inf, np.nan, 1e38, 1e-30], np.float32)
    x = np.concatenate([numbers, middles, rising, np.nextafter(middles, 0), others, least_nan])
    x = np.concatenate([x, -x])
    with np.errstate(over="ignore", invalid="ignore"):
        want = x.astype(np.float16)
    found = np.asarray(jax.jit(half.to_bits)(jnp.asarray(x)), np.uint16)
    np.testing.assert_array_equal(found.view(np.float16), want)
    signs = np.signbit(want) == np.signbit(found.view(np.float16))
    assert np.all(signs | np.isnan(want))
    np.testing.assert_array_equal(jax.jit(half.nearest)(jnp.asarray(x)), want.astype(np.float32))
