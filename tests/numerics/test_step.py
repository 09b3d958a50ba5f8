"""The number of a step, and what depends on it alone, against NumPy in double precision."""

import jax.numpy as jnp
import numpy as np
import pytest

from gradtx.numerics import safe_increment
from gradtx.numerics.step import Step, debias, epsilon_hat, increment, nesterov_mean


def at(number):
    return Step(jnp.int32(number), jnp.float32)


def test_a_step_is_its_number_in_arithmetic():
    t = at(3)
    found = [t + 2, 2 + t, t - 2, 2 - t, t * 2, 2 * t, t / 2, 6 / t, t**2, 2**t]
    assert [float(x) for x in found] == [5, 5, 1, -1, 6, 6, 1.5, 2, 9, 8]


def test_the_step_before_is_at_least_the_first():
    assert [int(at(n).before().count) for n in (1, 2, 5)] == [1, 1, 4]


def test_counts_stop_at_the_largest_number_of_their_type():
    counts = np.int8([-1, 0, 125, 126, 127])
    np.testing.assert_array_equal(increment(jnp.asarray(counts)), [0, 1, 126, 127, 127])
    most = np.finfo(np.float32).max
    np.testing.assert_array_equal(safe_increment(np.float32([1.5, most])), [2.5, most])


def test_numbers_that_nothing_else_gets():
    t = at(3)
    assert len({float(x) for x in (t.number, t.distinct(), t.distinct())}) == 3


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.999, np.float32(0.75)])
@pytest.mark.parametrize("number", [1, 4])
def test_bias_corrections(decay, number):
    t, kept = at(number), 1 - np.float64(decay) ** number
    near = {"rtol": 3e-7}
    traced = jnp.asarray(decay) if isinstance(decay, np.float32) else decay
    np.testing.assert_allclose(t.bias_correction(traced), kept, **near)
    later = 1 - np.float64(decay) ** (number + 2)
    np.testing.assert_allclose(t.bias_correction(traced, ahead=2), later, **near)
    np.testing.assert_allclose(t.less_one(traced, ahead=2), -later, **near)
    np.testing.assert_allclose(t.debiasing(traced), 1 / kept, **near)
    for divided in (False, True):
        np.testing.assert_allclose(debias(3.0, traced, t, divided=divided), 3 / kept, **near)
    np.testing.assert_allclose(epsilon_hat(1e-3, traced, t), 1e-3 / np.sqrt(kept), **near)
    following = 1 - np.float64(decay) ** (number + 1)
    want = decay * 5 / following + (1 - np.float64(decay)) * 7 / kept
    np.testing.assert_allclose(nesterov_mean(5.0, 7.0, traced, t), want, **near)
