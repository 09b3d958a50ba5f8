"""A box against NumPy's arithmetic in double precision, entry by entry."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradtx.transforms.bounds import Box

LOW = np.array([-1.0, -np.inf, 0.1, -np.inf, 0.3, -2.0])
HIGH = np.array([1.0, 2.0, np.inf, np.inf, 0.3, 7.7])


def rate_of(x, u, low, high):
    """By how much of `u` one entry can move, without a limit of its own."""
    if u == 0:
        return np.inf
    room = high - x if u > 0 else x - low
    if not np.isfinite(room):
        return np.inf
    rate = max(room, 0) / abs(u)
    return max(rate, 1) if low <= x + u <= high else rate


def cases(count):
    """Points and updates, of which some entries are on a bound, beyond one, or do not move."""
    rng = np.random.default_rng(3)
    for _ in range(count):
        x = np.clip(rng.normal(size=6), LOW, HIGH)
        u = rng.normal(size=6) * rng.choice([0.0, 0.3, 1.0, 30.0], 6)
        ends = rng.choice([LOW, HIGH])
        on = (rng.random(6) < 0.3) & np.isfinite(ends)
        x = np.where(on, ends, x)
        to = (rng.random(6) < 0.2) & np.isfinite(HIGH)
        yield x, np.where(to, HIGH - x, u)


@pytest.mark.slow
def test_the_reach_is_that_of_the_entry_that_meets_its_bound_first():
    box = Box("test", {"a": LOW[:2], "b": LOW[2:]}, {"a": HIGH[:2], "b": HIGH[2:]})
    none, limited = [], []
    with jax.enable_x64(True):
        for x, u in cases(40):
            want = min(rate_of(*each) for each in zip(x, u, LOW, HIGH, strict=True))
            point, way = ({"a": jnp.asarray(v[:2]), "b": jnp.asarray(v[2:])} for v in (x, u))
            for most in (1e10, 0.5):
                got = box.reach(point, way, jnp.asarray(most))
                np.testing.assert_allclose(float(got), min(want, most), rtol=1e-15)
            none.append(want == 0)
            limited.append(0 < want < 0.5)
    assert any(none)
    assert any(limited)
    assert not all(a or b for a, b in zip(none, limited, strict=True))


def test_a_step_whose_rounded_end_is_on_the_bound_is_taken_whole():
    """The room is a little less than the step, which is longer by less than the end can show."""
    high = np.float32(7.7)
    x = np.linspace(4, 7.5, 50, dtype=np.float32)
    u = (high - x) * (1 + np.arange(1, 51, dtype=np.float32) % 5 * np.finfo(np.float32).eps)
    on = x + u <= high
    assert 10 < np.sum(on & (u > high - x)) < 40
    rates = [
        float(Box("test", None, high).reach(*map(jnp.asarray, each), jnp.float32(2)))
        for each in zip(x, u, strict=True)
    ]
    np.testing.assert_array_equal(np.asarray(rates) >= 1, on)


@pytest.mark.slow
def test_a_leaf_without_entries_or_updates_does_not_limit():
    box = Box("test", 0.0, 1.0)
    point = {"a": jnp.zeros(0), "b": jnp.ones(2), "c": jnp.ones(1)}
    way = {"a": jnp.zeros(0), "b": -jnp.ones(2) / 4, "c": None}
    assert float(box.reach(point, way, jnp.float32(1e10))) == 4
    kept = box.within(point, way)
    assert kept["c"] is None
    np.testing.assert_array_equal(kept["b"], way["b"])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_no_rounded_sum_is_outside_and_no_other_update_is_changed(dtype):
    low, high = jnp.asarray(LOW, dtype), jnp.asarray(HIGH, dtype)
    box = Box("test", low, high)
    bottom, top = np.asarray(low, np.float64), np.asarray(high, np.float64)
    changed = []
    for x, u in cases(60):
        point, way = jnp.clip(jnp.asarray(x, dtype), low, high), jnp.asarray(u, dtype)
        got = box.within(point, way)
        assert got.dtype == dtype
        end = np.asarray(point + got, np.float64)
        assert (end >= bottom).all()
        assert (end <= top).all()
        asked = np.asarray(point, np.float64) + np.asarray(way, np.float64)
        inside = (asked >= bottom) & (asked <= top)
        rounded = np.asarray(point + way, np.float64)
        inside &= (rounded >= bottom) & (rounded <= top)
        np.testing.assert_array_equal(np.asarray(got)[inside], np.asarray(way)[inside])
        # What is cut stands on the bound, but for the numbers beside it.
        near = np.where(np.asarray(way) > 0, top, bottom)[~inside]
        np.testing.assert_allclose(end[~inside], near, rtol=2 * float(jnp.finfo(dtype).eps))
        changed.append(not inside.all())
    assert any(changed)


@pytest.mark.parametrize("sign", [-1, 1])
def test_what_is_cut_is_not_outside_by_rounding(sign):
    """The rounded distance to the bound is too long for some of the points."""
    bound = np.float32(sign * 0.3)
    box = Box("test", bound, None) if sign < 0 else Box("test", None, bound)
    x = np.linspace(-0.69 * sign, bound, 500, dtype=np.float32)
    assert np.any(np.abs(x + (bound - x)) > abs(bound))
    end = x + np.asarray(box.within(jnp.asarray(x), jnp.full(500, 30.0 * sign)))
    assert np.all(np.abs(end) <= abs(bound))
    np.testing.assert_allclose(end, bound, rtol=2e-7)


@pytest.mark.slow
def test_a_point_outside_is_led_back_and_not_further_out():
    box = Box("test", jnp.zeros(4), jnp.ones(4))
    point = jnp.array([-2.0, -2.0, 3.0, 3.0])
    np.testing.assert_array_equal(box.nearest(point), [0, 0, 1, 1])
    kept = box.within(point, jnp.array([-1.0, 9.0, 1.0, -9.0]))
    np.testing.assert_array_equal(kept, [0, 3, 0, -3])
    short = jnp.array([0.0, 0.5, 0.0, -0.5])
    np.testing.assert_array_equal(box.within(point, short), short)
    rates = [
        float(box.reach(point, jnp.zeros(4).at[i].set(u), jnp.float32(8)))
        for i, u in ((0, -1.0), (1, 0.5), (1, 2.0))
    ]
    assert rates == [0, 6, 1.5]


def test_the_nearest_point_has_the_type_of_the_parameters():
    box = Box("test", {"a": None, "b": 0.5}, {"a": -0.5, "b": None})
    point = {"a": jnp.zeros(2, jnp.bfloat16), "b": np.zeros(1)}
    got = box.nearest(point)
    assert got["a"].dtype == jnp.bfloat16
    assert got["a"].tolist() == [-0.5, -0.5]
    assert got["b"].tolist() == [0.5]


def test_bounds_are_compared_where_both_are_known():
    Box("test", {"a": 0.0}, {"a": 0.0})
    Box("test", {"a": 5.0}, {"a": {"b": 1.0}})  # prefixes of different depths meet later
    for lower, upper in ((np.array([0.0, 2.0]), 1.0), ({"a": 0.0, "b": 2.0}, 1.0)):
        with pytest.raises(ValueError, match="test: the bound lower=.* is above upper="):
            Box("test", lower, upper)
    jax.jit(lambda high: Box("test", 1.0, high).nearest(jnp.zeros(1)))(0.0)


@pytest.mark.parametrize(
    ("bound", "shape", "fits"),
    [((3,), (2, 3), True), ((2, 1), (2, 3), True), ((2,), (2, 3), False), ((1, 2), (2,), False)],
)
def test_a_bound_is_stretched_over_its_leaf_and_not_beyond(bound, shape, fits):
    box = Box("test", np.zeros(bound), None)
    if fits:
        low, high = box.of(jnp.ones(shape))
        assert low.shape == high.shape == shape
        return
    with pytest.raises(ValueError, match="which does not fit"):
        box.of(jnp.ones(shape))
