"""Array mathematics: what XLA computes fast, and the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradtx.numerics import all_finite, any_nan, cube_root


@pytest.mark.parametrize(
    ("entry", "finite", "nan"),
    [
        (1e38, True, False),
        (jnp.inf, False, False),
        (-jnp.inf, False, False),
        (jnp.nan, False, True),
    ],
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.complex64])
@pytest.mark.parametrize("shape", [(1,), (17,), (3, 65)])
def test_nan_and_infinity_are_told_by_sums(entry, finite, nan, dtype, shape):
    x = jnp.full(shape, 1e38, dtype).at[(-1,) * len(shape)].set(entry)
    assert bool(jax.jit(all_finite)(x)) is finite
    assert bool(jax.jit(any_nan)(x)) is nan


def test_cube_root():
    x = np.concatenate([np.logspace(-37, 38, 1000), [0.0, np.inf]]).astype(np.float32)
    expected = np.cbrt(x.astype(np.float64))
    np.testing.assert_allclose(jax.jit(cube_root)(x), expected, rtol=3e-6)
