"""Array mathematics: the forms that XLA computes fast have the same values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradtx import numerics
from gradtx.numerics import all_finite, any_nan, cube_root, root, root_plus
from gradtx.numerics.mathematics import one_per_row, row_mean, shrink


@pytest.mark.quick(2)
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


INF = np.inf
LARGEST = float(np.finfo("float32").max)
SQUARABLE = LARGEST**0.5 * (1 - 1e-6)
CUBE = np.arange(1.0, 9.0, dtype=np.float32).reshape(2, 2, 2)


@pytest.mark.quick(7)
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("abs_sq", ([3 + 4j, -2],), [25, 4]),
        ("abs_sq", ([True, False],), [1, 0]),
        ("sum_sq", ([3 + 4j, -2],), 29),
        ("rms", ([3 + 4j, 0],), 12.5**0.5),
        ("rms", ([-3],), 3),
        ("rms", (np.zeros(0),), 0),
        ("ema", (2.0, 4.0, 0.75), 3.5),
        ("bounded", ([5, -INF, INF, np.nan],), [5, -INF, LARGEST, np.nan]),
        ("bounded", ([5, INF], 4), [5, LARGEST / 4]),
        ("squarable", ([-3, INF, -1e30],), [-3, SQUARABLE, -SQUARABLE]),
        ("divide", ([6.0, 3, 0], [4.0, 0, 0]), [1.5, 0, 0]),
        ("inverse_root", ([0, 0.25, 4],), [0, 2, 0.5]),
        ("row_mean", (CUBE[0, 0],), [1, 2]),
        ("row_mean", (CUBE[0],), [[1.5], [3.5]]),
        ("row_mean", (CUBE,), [[[2.5]], [[6.5]]]),
        ("one_per_row", (CUBE[0, 0],), [1, 2]),
        ("one_per_row", (CUBE[0],), [[1], [3]]),
        ("one_per_row", (CUBE,), [[[1]], [[5]]]),
        ("shrink", ([3, -2, 0.5], 1.0), [2, -1, 0]),
        ("shrink", ([3, -2, 0.5], 1.0, 0.25), [1.6, -0.8, 0]),
    ],
)
def test_by_hand(name, arguments, expected):
    first, *others = arguments
    arrays = [jnp.asarray(x) if isinstance(x, list) else x for x in others]
    found = getattr(numerics, name)(jnp.asarray(first), *arrays)
    np.testing.assert_allclose(found, np.array(expected), rtol=2e-7)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_infinity(sign):
    assert float(numerics.infinity("float32", sign)) == sign * INF


def test_a_quotient_is_zero_where_the_divisor_is():
    x, y = jnp.array([0.0, 3.0, 3.0, -1.0]), jnp.array([0.0, 0.0, 2.0, 4.0])
    assert numerics.divide(x, y).tolist() == [0, 0, 1.5, -0.25]


@pytest.mark.parametrize(("x", "want"), [([], 0.0), (-3.0, 3.0), ([-3.0], 3.0), ([1.0, -7.0], 5.0)])
def test_the_root_of_the_mean_of_squares(x, want):
    assert numerics.rms(jnp.array(x)) == want


def test_rows_lie_along_the_first_dimension():
    x = jnp.arange(24.0).reshape(2, 3, 4)
    for rank, means, first in (
        (1, [0, 12], [0, 12]),  # numbers are rows by themselves
        (2, [[1.5], [13.5]], [[0], [12]]),
        (3, [[[5.5]], [[17.5]]], [[[0]], [[12]]]),
    ):
        rows = (x[:, 0, 0], x[:, 0], x)[rank - 1]
        assert row_mean(rows).tolist() == means
        assert one_per_row(rows).tolist() == first


@pytest.mark.parametrize(("l2", "want"), [((), [2, 0, -1]), ((3.0,), [0.5, 0, -0.25])])
def test_entries_shrink_by_a_threshold_and_a_share(l2, want):
    assert shrink(jnp.array([3.0, -0.5, -2.0]), 1.0, *l2).tolist() == want


@pytest.mark.parametrize("x", [9, True, np.uint8([4, 9]), np.int32([])])
def test_the_root_of_integers(x):
    got, want = root(x), jnp.sqrt(x)
    np.testing.assert_array_equal(got, want)
    assert got.dtype == want.dtype


@pytest.mark.slow
def test_a_quotient_rests_where_the_square_alone_is_zero():
    """Bit for bit what it is without the sum; and where both are 0, the derivative is had."""
    x, square = jnp.array([-0.0, 0.0, 3.0, 3.0, jnp.nan]), jnp.array([0.0, 0.0, 0.0, 4.0, 0.0])
    for eps in (0.0, 0.5):
        got = x / root_plus(square, eps, x)
        want = x / (jnp.sqrt(jnp.where(square > 0, square, jnp.inf)) + eps)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(jnp.signbit(got[:4]), jnp.signbit(want[:4]))
    slope = jax.grad(lambda x, eps: x / root_plus(x**2, eps, x))
    assert (float(slope(0.0, 0.5)), float(slope(0.0, 0.0))) == (2.0, 0.0)
