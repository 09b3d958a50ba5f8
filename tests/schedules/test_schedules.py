"""Schedules against Optax's, at their ends, and far beyond them."""

# Sees mutants of: scheduled, cyclic, decay, half_life, piecewise, products.

import fractions
import json
import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx.schedules.counting import raised
from tests.catalogue import builders
from tests.oracle import optimized

CYCLE = {"init_value": 0.1, "peak_value": 1.0, "warmup_steps": 5, "decay_steps": 30}
SCHEDULES = {
    "constant_schedule": (0.3,),
    "polynomial_schedule": (1.0, 0.1, 2, 40, 5),
    "linear_schedule": (1.0, 0.1, 40, 5),
    "exponential_decay": (1.0, 10, 0.5, 3, True, 0.05),
    "cosine_decay_schedule": (1.0, 40, 0.1, 2.0),
    "warmup_constant_schedule": (0.0, 1.0, 10),
    "warmup_cosine_decay_schedule": (0.0, 0.8, 10, 50, 0.1, 1.5),
    "warmup_exponential_decay_schedule": (0.0, 1.0, 10, 20, 0.5, 2, True, 0.2),
    "piecewise_constant_schedule": (1.0, {10: 0.5, 20: 0.1}),
    "piecewise_interpolate_schedule": ("cosine", 1.0, {10: 0.5, 30: 3.0}),
    "cosine_onecycle_schedule": (50, 0.7, 0.2, 10.0, 40.0),
    "linear_onecycle_schedule": (50, 0.7, 0.2, 0.6, 10.0, 40.0),
    "sgdr_schedule": ([CYCLE, CYCLE, CYCLE],),
}
OWN = {
    "cyclic_schedule": (0.1, 1.0, 7, 3, "exp_range", 0.9),
    "cosine_restarts_schedule": (1.0, 10, 1.5, 0.5, 0.1),
    "half_life_schedule": (0.5, 0.9999, 40),
    "inverse_time_decay": (1.0, 10, 0.5, True),
    "power_cooldown_schedule": (1.0, 40, 5, 0.5, 0.1),
    "relative_step_schedule": (0.5,),
    "wsd_schedule": (0.8, 5, 40, 12, "1-sqrt", 0.1, 0.2),
    "stretch_schedule": (gradtx.linear_schedule(1.0, 0.1, 40), 3, 2, 1),
}
LAST = 2**31 - 1


def with_module(name):
    """For `tests.mutants`, which looks for it."""
    return f"{getattr(gradtx, name).builder.function.__module__.rpartition('.')[2]}, {name}"


every = pytest.mark.parametrize("name", SCHEDULES | OWN, ids=with_module)


def test_every_schedule_is_here():
    known = {b.name for b in builders() if b.function.__module__.startswith("gradtx.schedules")}
    made_of_others = {"join_schedules", "multiply_schedules", "multiplicative_schedule"}
    assert known == {*SCHEDULES, *OWN, *made_of_others}


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", SCHEDULES, ids=with_module)
def test_like_optax(name):
    ours, theirs = (getattr(lib, name)(*SCHEDULES[name]) for lib in (gradtx, optax))
    counts = jnp.arange(100)
    want = jax.jit(jax.vmap(lambda t: jnp.asarray(theirs(t), jnp.float32)))(counts)
    got = jax.jit(jax.vmap(lambda t: jnp.asarray(ours(t), jnp.float32)))(counts)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def cycled(t):
    """Keras's PolynomialDecay that begins again, from 0.9 to 0.2 with power 2, five steps late."""
    since = np.maximum(t - 5, 0)
    end = 10 * np.maximum(np.ceil(since / 10), 1)
    return 0.7 * (1 - since / end) ** 2 + 0.2


def triangle(t, up, down):
    """From 0 to 1 and back, again and again."""
    since = t % (up + down)
    return np.where(since < up, since / up, (up + down - since) / down)


def restarted(t, length, t_mul, m_mul, alpha):
    """Loshchilov and Hutter 2017, section 3: each half cosine longer and lower than the last."""
    height, t = 1.0, float(t)
    while t >= length:
        t, length, height = t - length, length * t_mul, height * m_mul
    return (1 - alpha) * height * (1 + np.cos(np.pi * t / length)) / 2 + alpha


def trapezoid(t, fall):
    """From 0.1 up to 0.8 in 5 steps, constant to step 28, down to 0.2 in 12."""
    part = np.clip((t - 28) / 12, 0, 1)
    return np.where(t < 5, 0.1 + 0.7 * t / 5, 0.8 - 0.6 * fall(part))


# By their modules, which `tests.mutants` looks for. They are made by the test, not when tests are
# collected: it changes how they are made.
FORMULAS = {
    "decay, inverse time": (
        lambda: gradtx.inverse_time_decay(0.8, 10, 0.5),
        lambda t: 0.8 / (1 + 0.5 * t / 10),
    ),
    "decay, staircase": (
        lambda: gradtx.inverse_time_decay(0.8, 10, 0.5, True),
        lambda t: 0.8 / (1 + 0.5 * (t // 10)),
    ),
    "decay, relative step": (
        lambda: gradtx.relative_step_schedule(0.3),
        lambda t: np.minimum(0.3, (t + 1) ** -0.5),
    ),
    "decay, relative step below a schedule": (
        lambda: gradtx.relative_step_schedule(lambda t: 0.02 * t),
        lambda t: np.minimum(0.02 * t, (t + 1) ** -0.5),
    ),
    "decay, power cooldown": (
        lambda: gradtx.power_cooldown_schedule(0.9, 40, 5, 0.7, -0.1),
        lambda t: 0.9 - (np.clip(t - 5, 0, 40) / 40) ** 0.7,
    ),
    "piecewise, trapezoid": (
        lambda: gradtx.wsd_schedule(0.8, 5, 40, 12, "linear", 0.1, 0.2),
        lambda t: trapezoid(t, lambda part: part),
    ),
    "piecewise, trapezoid with a cosine": (
        lambda: gradtx.wsd_schedule(0.8, 5, 40, 12, "cosine", 0.1, 0.2),
        lambda t: trapezoid(t, lambda part: (1 - np.cos(np.pi * part)) / 2),
    ),
    "piecewise, trapezoid with a root": (
        lambda: gradtx.wsd_schedule(0.8, 5, 40, 12, "1-sqrt", 0.1, 0.2),
        lambda t: trapezoid(t, np.sqrt),
    ),
    "decay, exponential growth": (
        lambda: gradtx.exponential_decay(0.1, 10, 1.5, end_value=0.4),
        lambda t: np.minimum(0.1 * 1.5 ** (t / 10), 0.4),
    ),
    "decay, cosine up and down": (
        lambda: gradtx.cosine_decay_schedule(0.8, 12, 1.8, 1.5, periodic=True),
        lambda t: 0.8 * (1.8 - 0.8 * ((1 + np.cos(np.pi * t / 12)) / 2) ** 1.5),
    ),
    "decay, cycle": (lambda: gradtx.polynomial_schedule(0.9, 0.2, 2, 10, 5, cycle=True), cycled),
    "products, stretched": (
        lambda: gradtx.stretch_schedule(lambda t: t / 7, 3, 2, 5),
        lambda t: (2 * (t // 3) + 5) / 7,
    ),
    "cyclic, triangular": (
        lambda: gradtx.cyclic_schedule(0.2, 0.9, 4),
        lambda t: 0.2 + 0.7 * triangle(t, 4, 4),
    ),
    "cyclic, triangular2": (
        lambda: gradtx.cyclic_schedule(0.2, 0.9, 7, 3, "triangular2", 0.9),
        lambda t: 0.2 + 0.7 * triangle(t, 7, 3) * 0.5 ** (t // 10),
    ),
    "cyclic, exp_range": (
        lambda: gradtx.cyclic_schedule(0.2, 0.9, 3, 7, "exp_range", 1.03),
        lambda t: 0.2 + 0.7 * triangle(t, 3, 7) * 1.03**t,
    ),
    "cyclic, restarts": (
        lambda: gradtx.cosine_restarts_schedule(0.8, 8, 1.25, 0.6, 0.1),
        lambda t: 0.8 * restarted(t, 8, 1.25, 0.6, 0.1),
    ),
    "cyclic, restarts of one length": (
        lambda: gradtx.cosine_restarts_schedule(0.8, 8, 1.0, 0.6, 0.1),
        lambda t: 0.8 * restarted(t, 8, 1.0, 0.6, 0.1),
    ),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize(("made", "formula"), FORMULAS.values(), ids=FORMULAS)
def test_those_that_optax_lacks_are_their_formulas(made, formula):
    schedule, counts = made(), np.arange(60)
    found = jax.vmap(lambda t: jnp.asarray(schedule(t), jnp.float32))(jnp.asarray(counts))
    expected = [formula(t) for t in counts.astype(np.float64)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in FORMULAS if n != "products, stretched"])
def test_in_double_precision_where_that_is_enabled(name):
    """ "stretched" divides its count by itself. Float32 parameters still take their step in it."""
    made, formula = FORMULAS[name]
    counts = np.arange(50)
    with jax.enable_x64(True):
        schedule = made()
        got = optimized(jax.vmap(schedule))(jnp.asarray(counts, jnp.int32))
        assert got.dtype == jnp.float64
        tx, p = gradtx.sgd(schedule), jnp.ones(2, jnp.float32)
        assert tx.update(p, tx.init(p))[0].dtype == jnp.float32
    want = [formula(t) for t in counts]
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("rate", [0.99999, 0.5, 0.1, 1.000001, 1.1])
def test_a_long_exponential_decay_is_that_of_the_rate_as_it_was_given(rate):
    """Rounded to float32 first, 0.99999 would be off by 0.7 % after 500,000 steps."""
    whole = 1 if abs(rate - 1) < 1e-3 else 25_000
    counts = np.array([1, 1000, 500_000])
    want = 0.1 * rate ** (counts / whole)
    got = optimized(jax.vmap(gradtx.exponential_decay(0.1, whole, rate)))(counts)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    cycle = gradtx.cyclic_schedule(0.0, 0.1, 1, 1, "exp_range", rate ** (1 / whole))
    np.testing.assert_allclose(
        cycle(jnp.int32(500_001)), 0.1 * rate ** (500_001 / whole), rtol=1e-5
    )


@pytest.mark.parametrize(
    ("base", "exponent", "dtype"),
    [
        (0.3, 30.0, jnp.bfloat16),
        (1 - 1e-9, 1e9, jnp.float32),
        (1 - 3e-8, 1e10, jnp.float32),
        (1 + 5.9e-8, 2e9, jnp.float32),
        (1e-60, 2.0, jnp.float32),
    ],
)
def test_a_power_is_that_of_the_base_as_it_was_given(base, exponent, dtype):
    """Rounded first, they would be 7 % too large, 1, 0, 1 and 0."""
    got = np.float32(raised(base, jnp.asarray(exponent, dtype)))
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(got, np.float32(base**exponent), rtol=0.01)


@pytest.mark.parametrize("count", [0, 999_999])
def test_an_exponential_decay_that_begins_late_has_its_value_before(count):
    """The power that it would have then is beyond Python's largest number."""
    late = gradtx.exponential_decay(0.1, 10, 0.5, transition_begin=1_000_000)
    assert late(count) == np.float32(0.1)
    assert gradtx.exponential_decay(0.1, 1, 2.0)(10_000 + count) == np.inf


@pytest.mark.slow
def test_a_restart_is_not_early_where_a_logarithm_is_rounded():
    """After 2^20 - 1 decays' lengths; one step before, the logarithm to base 2 is rounded to 20."""
    schedule = gradtx.cosine_restarts_schedule(1.0, 10)
    falls_due = 10 * (2**20 - 1)
    np.testing.assert_allclose(schedule(falls_due - 1), 0, atol=1e-6)
    assert schedule(falls_due) == 1


@pytest.mark.parametrize(("first", "t_mul", "count"), [(1001, 1.25, 11270), (10, 1.5, 66485)])
def test_a_restart_between_steps_is_at_the_later_one(first, t_mul, count):
    schedule = gradtx.cosine_restarts_schedule(1.0, first, t_mul)
    np.testing.assert_allclose([schedule(count), schedule(count + 1)], [0, 1], atol=1e-6)


@pytest.mark.quick(8)
@every
def test_finite_from_the_first_step_to_the_last(name):
    schedule = jax.jit(getattr(gradtx, name)(*(SCHEDULES | OWN)[name]))
    ends = [schedule(jnp.int32(t)) for t in (0, 1, LAST - 1, LAST)]
    assert np.all(np.isfinite(ends))
    np.testing.assert_allclose(ends[2], ends[3])


@pytest.mark.slow
def test_no_value_lies_outside_of_the_range():
    """Compiled too: 1 - t (1 / n), as XLA computes a line, is below 0 at its end."""
    ends = {}

    def add(schedule, start, end):
        ends[schedule] = np.float32(min(start, end)), np.float32(max(start, end))

    for n in (3, 7, 41, 49, 60):
        for a, b in ((1.0, 0.0), (0.0, 1.0), (0.1, 0.0), (0.3, 1.0), (1.0, 0.9)):
            add(gradtx.linear_schedule(a, b, n), a, b)
            for power in (0.5, 0.9, 2):
                add(gradtx.polynomial_schedule(a, b, power, n, 5), a, b)
                add(gradtx.polynomial_schedule(a, b, power, n, cycle=True), a, b)
            add(gradtx.cyclic_schedule(a, b, n, mode="triangular2"), a, b)
            add(gradtx.piecewise_interpolate_schedule("linear", 1.0, {n: b}), 1.0, b)
            add(gradtx.warmup_constant_schedule(a, b, n), a, b)
            if a > 0:
                add(gradtx.cosine_decay_schedule(a, n, b / a, 0.5, periodic=True), a, b)
                add(gradtx.piecewise_interpolate_schedule("cosine", a, {n: b / a}), a, b)
        add(gradtx.cosine_restarts_schedule(1.0, n, 1.5, 0.5), 1.0, 0.0)
        add(gradtx.warmup_cosine_decay_schedule(0.0, 1.0, n, 2 * n), 0.0, 1.0)
        for shape in ("linear", "cosine", "1-sqrt"):
            add(gradtx.wsd_schedule(0.3, 3, n + 8, n, shape, 0.1, 0.1), 0.1, 0.3)
    low, high = np.array(list(ends.values())).T[..., None]

    def values(counts):
        return jnp.stack([jnp.broadcast_to(schedule(counts), counts.shape) for schedule in ends])

    counts = jnp.array([*range(65), LAST], jnp.int32)
    for found in (values(counts), optimized(values)(counts)):
        assert np.all((found >= low) & (found <= high))


@pytest.mark.slow
def test_the_last_value_is_exact():
    line = gradtx.linear_schedule(1.0, 0.0, 1000)
    root = gradtx.polynomial_schedule(0.1, 0.0, 0.9, 1000)
    cosine = gradtx.cosine_decay_schedule(1.0, 1000, exponent=0.5)
    falls = [gradtx.wsd_schedule(0.3, 0, 1000, 49, f) for f in ("linear", "cosine", "1-sqrt")]
    for schedule in (line, root, cosine, *falls):
        for count in (1000, LAST):
            assert schedule(count) == optimized(schedule)(count) == 0


@pytest.mark.slow
def test_far_beyond_the_last_count():
    """Steps that do not fit into a count, and counts whose products do not."""
    assert gradtx.linear_schedule(1.0, 0.0, 10**12)(LAST) == pytest.approx(1 - LAST / 1e12)
    assert gradtx.linear_schedule(1.0, 0.5, 10, 10**12)(LAST) == 1
    assert gradtx.cosine_decay_schedule(1.0, 10**12)(LAST) == pytest.approx(1.0, abs=2e-5)
    joined = gradtx.join_schedules([gradtx.linear_schedule(0.0, 1.0, 10), lambda t: 9.0], [10**12])
    assert joined(LAST) == 1
    assert gradtx.warmup_cosine_decay_schedule(0.0, 1.0, 10**11, 10**12)(10) < 1e-9
    there = gradtx.stretch_schedule(lambda t: t, stride=4, offset=7)
    assert [int(there(jnp.int32(t))) for t in (10**8, LAST)] == [4 * 10**8 + 7, LAST]
    periodic = gradtx.cosine_decay_schedule(1.0, 10, periodic=True)
    for t in (LAST, LAST - 5):
        want = (1 + np.cos(np.pi * (t % 20) / 10)) / 2
        np.testing.assert_allclose(jax.jit(periodic)(jnp.int32(t)), want, rtol=1e-5)


def test_steps_that_a_configuration_wrote_as_floats():
    def made(number):
        yield gradtx.linear_schedule(1.0, 0.0, number(100), number(2))
        yield gradtx.exponential_decay(1.0, number(10), 0.5, number(3), staircase=True)
        yield gradtx.warmup_cosine_decay_schedule(0.0, 1.0, number(10), number(100))
        yield gradtx.join_schedules([lambda t: 1.0, lambda t: t / 7], [number(20)])
        yield gradtx.cyclic_schedule(0.0, 1.0, number(10))

    for of_floats, of_integers in zip(made(float), made(int), strict=True):
        for t in (0, 19, 50, 2**24 + 1):
            assert of_floats(jnp.int32(t)) == of_integers(jnp.int32(t))


@pytest.mark.parametrize("transition_steps", [0, -5])
def test_no_steps_to_go(transition_steps):
    with pytest.warns(UserWarning, match="stays init_value") as warned:
        schedule = gradtx.linear_schedule(0.3, 0.0, transition_steps)
    assert schedule(7) == 0.3
    with pytest.warns(UserWarning, match="stays init_value") as warned_too:
        assert gradtx.exponential_decay(0.3, transition_steps, 0.5)(7) == 0.3
    # The line of the user, however many functions of gradtx lie between.
    assert warned[0].filename == warned_too[0].filename == __file__
    assert gradtx.warmup_cosine_decay_schedule(0.0, 1.0, 0, 10)(0) == 1
    assert gradtx.linear_schedule(0.3, 0.0, 1)(1) == 0


def of_arrays(name, *arguments, count, **more):
    """A schedule's value at a count, where all numbers of which it is made are traced."""
    made = getattr(gradtx, name)
    at = jax.jit(lambda arguments, more, count: made(*arguments, **more)(count))
    return float(at(arguments, more, count))


@pytest.mark.parametrize("steps", [0, -5])
def test_no_steps_to_go_where_only_the_program_knows(steps):
    assert of_arrays("polynomial_schedule", 0.5, 0.0, 2, steps, count=7) == 0.5
    assert of_arrays("power_cooldown_schedule", 0.5, steps, count=7) == 0.5
    assert of_arrays("exponential_decay", 0.5, steps, 0.5, count=7) == 0.5


def test_traced_rates_decay_as_known_ones_do():
    assert of_arrays("exponential_decay", 1.0, 1, 2.0, end_value=10.0, count=2) == 4
    assert of_arrays("exponential_decay", 1.0, 1, 2.0, end_value=10.0, count=5) == 10
    assert of_arrays("exponential_decay", 1.0, 1, 1.5, end_value=10.0, count=2) == 2.25
    assert of_arrays("exponential_decay", 1.0, 1, 0.5, end_value=0.1, count=5) == np.float32(0.1)
    assert of_arrays("exponential_decay", 0.5, 1, 0.0, count=5) == 0.5


@pytest.mark.parametrize("t_mul", [1.0, 3.0])
def test_restarts_of_a_traced_length(t_mul):
    found = of_arrays("cosine_restarts_schedule", 0.8, 8, t_mul, 0.6, 0.1, count=27)
    np.testing.assert_allclose(found, 0.8 * restarted(27, 8, t_mul, 0.6, 0.1), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [jnp.int8, jnp.uint8, jnp.uint32])
def test_unsigned_and_narrow_numbers_of_steps(kind):
    """A period of 200, a fall of more steps than are left, and a difference below 0."""
    n = kind(100)
    assert gradtx.cosine_decay_schedule(1.0, n, periodic=True)(200) == 1
    assert gradtx.cyclic_schedule(0.0, 1.0, n)(100) == 1
    fall = gradtx.wsd_schedule(1.0, kind(10), n, kind(95))
    np.testing.assert_allclose(fall(99), 1 / 95, rtol=1e-5)
    want = gradtx.half_life_schedule(0.5, 0.9, 100)(10)
    assert gradtx.half_life_schedule(0.5, 0.9, n)(10) == want
    assert gradtx.stretch_schedule(lambda t: t, n, n, n)(200) == 300


def test_a_peak_of_0_stays_0():
    arguments = 0.5, 0.0, 10, 100, 0.3
    for count in (10, 55, 100):
        assert optax.warmup_cosine_decay_schedule(*arguments)(count) == 0
        assert gradtx.warmup_cosine_decay_schedule(*arguments)(count) == 0
        assert of_arrays("warmup_cosine_decay_schedule", *arguments, count=count) == 0
    half = gradtx.warmup_cosine_decay_schedule(*arguments)(5)
    np.testing.assert_allclose(half, 0.25, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cosine_onecycle_schedule", "linear_onecycle_schedule"])
def test_one_cycles_of_traced_steps(name):
    made = getattr(gradtx, name)
    for count in (0, 15, 30, 60, 85, 100, 200):
        want = made(100, 1.0)(count)
        np.testing.assert_allclose(of_arrays(name, 100, 1.0, count=count), want, rtol=1e-6)
    several = made(jnp.array([100, 50]), 1.0)(15)
    np.testing.assert_allclose(several, [made(100, 1.0)(15), made(50, 1.0)(15)], rtol=1e-6)


def test_one_cycles_reach_their_peak():
    """Also where they fall from it at once, and where the rise has no steps."""
    assert gradtx.linear_onecycle_schedule(100, 0.5, 0.5, 0.5)(49) < 0.5
    ends = [gradtx.linear_onecycle_schedule(100, 0.5, 0.5, 0.5)(t) for t in (49, 50, 100)]
    np.testing.assert_allclose(ends, [0.4904, 0.02, 2e-6], rtol=1e-5)
    assert gradtx.cosine_onecycle_schedule(2, 0.5)(0) == 0.5
    for bad in ({"pct_start": 30}, {"pct_start": 0.9, "pct_final": 0.5}):
        with pytest.raises(ValueError, match="pct_"):
            gradtx.linear_onecycle_schedule(100, 0.5, **bad)


def test_warm_restarts_of_a_generator_and_of_traced_steps():
    of_list = gradtx.sgdr_schedule([CYCLE, CYCLE])
    of_generator = gradtx.sgdr_schedule(CYCLE for _ in range(2))
    assert of_generator == of_list
    assert of_generator(35) == of_list(35) == 1
    traced = jax.jit(lambda n: gradtx.sgdr_schedule([CYCLE | {"decay_steps": n}, CYCLE])(35))
    assert traced(30) == 1


def test_strict_dtype_promotion():
    cycles = [
        gradtx.polynomial_schedule(1.0, 0.0, 2, 10, cycle=True),
        gradtx.cosine_decay_schedule(1.0, 10, periodic=True),
        *(gradtx.cyclic_schedule(0.1, 1.0, 7, 3, m) for m in ("triangular", "triangular2")),
    ]
    each = [getattr(gradtx, name)(*arguments) for name, arguments in (SCHEDULES | OWN).items()]
    with jax.numpy_dtype_promotion("strict"):
        jax.eval_shape(lambda t: [schedule(t) for schedule in each + cycles], jnp.int32(7))


@every
def test_python_numbers_and_arrays_agree(name):
    schedule = getattr(gradtx, name)(*(SCHEDULES | OWN)[name])
    np.testing.assert_allclose(schedule(7), schedule(jnp.int32(7)), rtol=1e-6)


def test_unsigned_and_narrow_counts():
    """As of Flax's optimizer, whose steps are uint32: before a boundary none wraps around."""
    late = gradtx.linear_schedule(1.0, 0.0, 10, 5)
    slow = gradtx.stretch_schedule(late, 300)
    half = gradtx.multiplicative_schedule(1.0, lambda t: 0.5)
    at = jax.jit(lambda t: [late(t), slow(t), half(t)])
    for kind in (np.uint32, np.uint8):
        assert at(kind(3)) == [1.0, 1.0, 0.125]
    assert half(3.0) == 0.125


@every
def test_they_are_data(name):
    schedule = getattr(gradtx, name)(*(SCHEDULES | OWN)[name])
    again = getattr(gradtx, name)(*(SCHEDULES | OWN)[name])
    assert schedule == again
    assert hash(schedule) == hash(again)
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    text = json.dumps(gradtx.to_config(schedule))
    assert gradtx.from_config(json.loads(text)) == schedule
    assert repr(schedule).startswith(f"{name}(")


@pytest.mark.parametrize("start", [0.9, 0.0])
@pytest.mark.parametrize("kind", [float, jnp.float32])
def test_the_half_life_grows_evenly(start, kind):
    """Pagliardini et al. 2024, appendix A.1, in float64."""
    ends = kind(start), kind(0.9999)
    schedule = gradtx.half_life_schedule(*ends, 1000)
    got = jax.jit(jax.vmap(schedule))(jnp.arange(0, 1200, 50))
    half = [np.log(0.5) / np.log(float(b)) if b else 0.0 for b in ends]
    done = np.minimum(np.arange(0, 1200, 50) / 1000, 1)
    with np.errstate(divide="ignore"):
        want = 0.5 ** (1 / ((1 - done) * half[0] + done * half[1]))
    np.testing.assert_allclose(got, want, atol=3e-7)
    assert float(got[0]) == np.float32(start)
    assert float(got[-1]) == np.float32(0.9999)


def test_join():
    schedule = gradtx.join_schedules(
        [gradtx.linear_schedule(0.0, 1.0, 10), gradtx.constant_schedule(1.0)], [10]
    )
    np.testing.assert_allclose(
        [schedule(0), schedule(5), schedule(10), schedule(99)], [0, 0.5, 1, 1]
    )
    for boundaries in ([], [3, 5]):
        counts = f"2 schedules need 1 boundaries, not {len(boundaries)}"
        with pytest.raises(ValueError, match=counts):
            gradtx.join_schedules([schedule, schedule], boundaries)
    with pytest.raises(ValueError, match="do not ascend"):
        gradtx.join_schedules([schedule] * 3, [5, 2])
    with pytest.raises(ValueError, match="no schedule to join"):
        gradtx.join_schedules([], [])
    assert gradtx.join_schedules([schedule, lambda t: 9.0], [float("inf")])(99) == 1


def test_boundaries_in_an_array():
    parts = [gradtx.constant_schedule(0.5), gradtx.constant_schedule(0.25)]
    tx = gradtx.sgd(gradtx.join_schedules(parts, np.array([1])))
    update = jax.jit(lambda tx, state: tx.update(jnp.ones([]), state))  # in which it is traced
    state = tx.init(jnp.ones([]))
    for want in (-0.5, -0.25):
        updates, state = update(tx, state)
        assert float(updates) == want
    with pytest.raises(ValueError, match="do not ascend"):
        gradtx.join_schedules([*parts, parts[0]], np.array([5, 2]))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("cosine_decay_schedule", (1.0, 0)),
        ("linear_schedule", (1.0, 0.0, 10, -1)),
        ("linear_schedule", (float("nan"), 0.0, 10)),
        ("polynomial_schedule", (1.0, 0.0, "2", 10)),
        ("piecewise_constant_schedule", (1.0, {3: -1.0})),
        ("piecewise_constant_schedule", (1.0, {3: "0.5"})),
        ("piecewise_constant_schedule", (1.0, {3: lambda t: 0.5})),
        ("piecewise_constant_schedule", (1.0, {"3": 0.5, 4: 0.5})),
        ("piecewise_interpolate_schedule", ("linear", 1.0, {float("inf"): 0.5})),
        ("piecewise_interpolate_schedule", ("spline", 1.0)),
        ("cosine_onecycle_schedule", (0, 1.0)),
        ("exponential_decay", (1.0, 10, -0.5)),
        ("warmup_cosine_decay_schedule", (0.0, 1.0, 10, 10)),
        ("wsd_schedule", (1.0, 10, 29, 20)),
        ("wsd_schedule", (1.0, 10, 30, 20, "spline")),
    ],
)
def test_bad_arguments(name, arguments):
    with pytest.raises((ValueError, TypeError), match=name):
        getattr(gradtx, name)(*arguments)(0)


@pytest.mark.slow
def test_a_cooldown_branches_from_a_saved_run(tmp_path):
    """A run of another total goes through the same bits up to its fall."""

    def run(schedule, params, state, steps):
        tx = gradtx.adam(schedule)
        step = jax.jit(lambda p, s: tx.update(jnp.cos(p), s, p))
        for _ in range(steps):
            updates, state = step(params, state)
            params = gradtx.apply_updates(params, updates)
        return params, state

    start = jnp.array([0.3, 1.9])
    long, short = (gradtx.wsd_schedule(0.1, 4, n, 6, "1-sqrt") for n in (100, 20))
    state = gradtx.adam(long).init(start)
    gradtx.save_checkpoint(tmp_path / "stable.npz", *run(long, start, state, 14))
    tx = gradtx.adam(short)
    saved = gradtx.load_checkpoint(tmp_path / "stable.npz", tx, params=start)
    params, state = saved.params, saved.state
    branch, _ = run(short, params, state, 6)
    whole, _ = run(short, start, gradtx.adam(short).init(start), 20)
    stable, _ = run(long, params, state, 6)
    np.testing.assert_array_equal(branch, whole)
    assert np.all(branch != stable)


def test_array_values_are_leaves():
    traces = []

    @jax.jit
    def at(schedule, count):
        traces.append(None)
        return schedule(count)

    for value in (1.0, 2.0):
        schedule = gradtx.linear_schedule(jnp.float32(value), 0.0, 10)
        np.testing.assert_allclose(at(schedule, 5), value / 2)
    assert len(traces) == 1


def test_products_of_schedules():
    down = gradtx.linear_schedule(1.0, 0.5, 10)
    product = gradtx.multiply_schedules(0.1, down, jnp.float32(2.0))
    np.testing.assert_allclose([product(t) for t in (0, 5, 99)], [0.2, 0.15, 0.1], rtol=1e-6)
    with pytest.raises(TypeError, match="a factor must be"):
        gradtx.multiply_schedules(0.1, "x")
    anew = gradtx.multiplicative_schedule(1.0, down)
    want = np.cumprod([1.0, *(down(t) for t in range(1, 30))])
    np.testing.assert_allclose(anew(29), want[29], rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(anew)(jnp.arange(30)), want, rtol=1e-5)
    for made in (gradtx.multiply_schedules(0.1, down), anew):
        assert gradtx.from_config(json.loads(json.dumps(gradtx.to_config(made)))) == made


@pytest.mark.parametrize("mode", ["sideways", None])
def test_a_cycle_of_no_kind(mode):
    with pytest.raises(ValueError, match="mode must be one of"):
        gradtx.cyclic_schedule(0.0, 1.0, mode=mode)(0)


def test_the_first_value_of_a_schedule_is_checked():
    tx = gradtx.scale_by_lion(lambda count: jnp.where(count == 0, 2.0, 0.9))
    with pytest.raises(ValueError, match="scale_by_lion: b1"):
        tx.init(jnp.ones(1))
    later = gradtx.scale_by_lion(lambda count: jnp.where(count == 1, 2.0, 0.9))
    assert later.init(jnp.ones(1))


@pytest.mark.slow
def test_a_schedule_goes_by_the_count_of_a_state_of_optax():
    """Whose fields are not marked: the one of this name counts."""
    tx = gradtx.scale_by_adam(lambda count: jnp.where(count == 3, 0.5, 0.9))
    state = optax.scale_by_adam().init(jnp.ones(1))._replace(count=jnp.int32(3))
    _, state = tx.update(jnp.ones(1), state)
    assert state.mu.tolist() == [0.5]


def test_a_one_cycle_has_one_of_two_conventions():
    """That of PyTorch is compared with it in tests/test_coming_from.py."""
    ours, torch = (gradtx.cosine_onecycle_schedule(10, 1.0, 0.5, convention=c) for c in CONVENTIONS)
    assert [float(s(t)) for s, t in ((ours, 5), (torch, 4))] == [1.0, 1.0]
    assert float(ours(10)) == float(torch(9)) == pytest.approx(4e-6)
    assert gradtx.from_config(gradtx.to_config(torch)) == torch
    with pytest.raises(ValueError, match="convention must be one of .*, not 'keras'"):
        gradtx.cosine_onecycle_schedule(10, 1.0, convention="keras")


CONVENTIONS = ("optax", "torch")


# XLA multiplies with the inverse of these, and loses, or gains, the last bit of some multiples.
UNEVEN = (7, 15, 41, 49, 107)
TIMES = np.array([1, 2, 3, 5, 7])


@pytest.mark.parametrize("n", UNEVEN)
def test_stairs_and_cycles_end_at_their_last_step(n):
    at = jnp.asarray(n * TIMES)
    halved = jax.jit(gradtx.exponential_decay(1.0, n, 0.5, staircase=True))
    np.testing.assert_array_equal([halved(at - 1), halved(at)], [0.5 ** (TIMES - 1), 0.5**TIMES])
    inverse = jax.jit(gradtx.inverse_time_decay(1.0, n, 1.0, staircase=True))
    np.testing.assert_allclose([inverse(at - 1), inverse(at)], [1 / TIMES, 1 / (1 + TIMES)], 1e-6)
    linear = jax.jit(gradtx.polynomial_schedule(1.0, 0.0, 1, n, cycle=True))
    np.testing.assert_array_equal(linear(at), 0)
    np.testing.assert_allclose(linear(at + 1), (n - 1) / (n * (TIMES + 1)), 1e-6)


@pytest.mark.quick(6)
@pytest.mark.parametrize("n", UNEVEN)
@pytest.mark.parametrize("t_mul", [1.0, 1.1, 1.2, 1.5, 2.0, 3.0])
def test_restarts_are_on_time(t_mul, n):
    factor = fractions.Fraction(str(t_mul))
    begins = [sum(n * factor**i for i in range(k)) for k in range(6)]
    at = list(map(math.ceil, begins))
    over = [
        float((t - b) / (n * factor**k)) for k, (t, b) in enumerate(zip(at, begins, strict=True))
    ]
    for made in (t_mul, jnp.float32(t_mul)):
        schedule = jax.jit(gradtx.cosine_restarts_schedule(1.0, n, made, 0.5))
        want = 0.5 ** np.arange(6) * (0.5 + 0.5 * np.cos(np.pi * np.array(over)))
        np.testing.assert_allclose(schedule(jnp.array(at)), want, atol=1e-4)
