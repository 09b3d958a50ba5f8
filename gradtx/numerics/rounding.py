"""Rounding to the numbers of a narrower type, kept in the type in which rules compute.

XLA may leave out the two conversions of ``x.astype(bfloat16).astype(float32)``, and with them the
rounding, so that the error of rounding would come out as zero. Here a number is rounded by
arithmetic on its unit in the last place; the conversion that follows has nothing left to round.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.numerics.precision import is_narrow
from gradtx.types import Array, DType


def unit(x: Array, dtype: DType) -> Array:
    r"""The unit in the last place of `x`: the distance between numbers of a type near it.

    .. math:: \mathrm{ulp}(x) = 2^{\max(\lfloor \log_2 |x| \rfloor,\, e_{min}) - m}

    Args:
        x: an array of the type in which rules compute.
        dtype: a floating-point type with `m` bits after the point and least exponent
            :math:`e_{min}`; where units would be subnormal in the type of `x`, a larger
            :math:`e_{min}` for which they are not.

    >>> unit(jnp.array([1.0, 2.0, 300.0]), jnp.bfloat16).tolist()
    [0.0078125, 0.015625, 2.0]
    """
    x_info, info = jnp.finfo(x.dtype), jnp.finfo(dtype)
    bits: Any = {32: np.uint32, 64: np.uint64}[x_info.bits]
    exponent = bits(((1 << x_info.nexp) - 1) << x_info.nmant)
    power = jax.lax.bitcast_convert_type(x, bits) & exponent  # the sign and the digits cleared
    least = max(float(info.tiny), float(x_info.tiny) * 2.0**info.nmant)
    return jnp.maximum(jax.lax.bitcast_convert_type(power, x.dtype), least) * 2.0**-info.nmant


def round_to(x: Array, dtype: DType, key: Any = None) -> Array:
    r"""`x` rounded to a number of another type, in the type that it has.

    Args:
        x: an array of the type in which rules compute.
        dtype: the type to round to. If it is not narrower, or complex, `x` is returned.
        key: a random key: round up with a probability equal to the share of the unit that rounding
            down would lose, so that the mean is `x`. It uses 16 random bits, which is exact for
            bfloat16. None to round to nearest, ties to even.

    Numbers beyond the largest of the type become infinite; NaN stays NaN.

    Source of stochastic rounding: M. P. Connolly, N. J. Higham and T. Mary, Stochastic Rounding and
    Its Probabilistic Backward Error Analysis, 2021, doi:10.1137/20M1334796, section 1.

    >>> round_to(jnp.array([1.001, 1.0041]), jnp.bfloat16).tolist()
    [1.0, 1.0078125]
    """
    if not is_narrow(dtype):
        return x
    step = unit(x, dtype)
    units = x / step
    if key is None:
        whole_units = jnp.round(units)
    else:
        down = jnp.floor(units)
        drawn = jax.random.bits(key, x.shape, jnp.uint16).astype(x.dtype) * 2.0**-16
        whole_units = down + (units - down > drawn)
    rounded = whole_units * step
    largest = float(jnp.finfo(dtype).max)
    rounded = jnp.where(jnp.abs(rounded) > largest, jnp.copysign(jnp.inf, x), rounded)
    return jnp.where(jnp.isfinite(x), rounded, x)
