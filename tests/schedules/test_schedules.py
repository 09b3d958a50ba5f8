"""Schedules beside Optax's, at their ends, and far beyond them."""

import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests.catalogue import builders

CYCLE = {"init_value": 0.1, "peak_value": 1.0, "warmup_steps": 5, "decay_steps": 30}
SCHEDULES = {
    "constant_schedule": (0.3,),
    "polynomial_schedule": (1.0, 0.1, 2, 40, 5),
    "linear_schedule": (1.0, 0.1, 40, 5),
    "exponential_decay": (1.0, 10, 0.5, 3, True, 0.05),
    "cosine_decay_schedule": (1.0, 40, 0.1, 2.0),
    "warmup_constant_schedule": (0.0, 1.0, 10),
    "warmup_cosine_decay_schedule": (0.0, 1.0, 10, 50, 0.1, 1.5),
    "warmup_exponential_decay_schedule": (0.0, 1.0, 10, 20, 0.5, 2, False, 0.2),
    "piecewise_constant_schedule": (1.0, {10: 0.5, 20: 0.1}),
    "piecewise_interpolate_schedule": ("cosine", 1.0, {10: 0.5, 30: 3.0}),
    "cosine_onecycle_schedule": (50, 1.0),
    "linear_onecycle_schedule": (50, 1.0),
    "sgdr_schedule": ([CYCLE, CYCLE],),
}
OWN = {
    "cyclic_schedule": (0.1, 1.0, 7, 3, "exp_range", 0.9),
    "cosine_restarts_schedule": (1.0, 10, 1.5, 0.5, 0.1),
    "inverse_time_decay": (1.0, 10, 0.5, True),
    "relative_step_schedule": (0.5,),
    "stretch_schedule": (gradtx.linear_schedule(1.0, 0.1, 40), 3, 2, 1),
}
LAST = 2**31 - 1

every = pytest.mark.parametrize("name", SCHEDULES | OWN)


def test_every_schedule_is_here():
    known = {b.name for b in builders() if b.function.__module__.startswith("gradtx.schedules")}
    made_of_others = {"join_schedules", "multiply_schedules", "multiplicative_schedule"}
    assert known == {*SCHEDULES, *OWN, *made_of_others}


@pytest.mark.parametrize("name", SCHEDULES)
def test_like_optax(name):
    ours, theirs = (getattr(lib, name)(*SCHEDULES[name]) for lib in (gradtx, optax))
    counts = jnp.arange(60)
    want = jax.jit(jax.vmap(lambda t: jnp.asarray(theirs(t), jnp.float32)))(counts)
    got = jax.jit(jax.vmap(lambda t: jnp.asarray(ours(t), jnp.float32)))(counts)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@every
def test_finite_from_the_first_step_to_the_last(name):
    schedule = jax.jit(getattr(gradtx, name)(*(SCHEDULES | OWN)[name]))
    ends = [schedule(jnp.int32(t)) for t in (0, 1, LAST - 1, LAST)]
    assert np.all(np.isfinite(ends))
    np.testing.assert_allclose(ends[2], ends[3])


@every
def test_python_numbers_and_arrays_agree(name):
    schedule = getattr(gradtx, name)(*(SCHEDULES | OWN)[name])
    np.testing.assert_allclose(schedule(7), schedule(jnp.int32(7)), rtol=1e-6)


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


def test_join():
    schedule = gradtx.join_schedules(
        [gradtx.linear_schedule(0.0, 1.0, 10), gradtx.constant_schedule(1.0)], [10]
    )
    np.testing.assert_allclose(
        [schedule(0), schedule(5), schedule(10), schedule(99)], [0, 0.5, 1, 1]
    )
    with pytest.raises(ValueError, match="2 schedules need 1 boundaries"):
        gradtx.join_schedules([schedule, schedule], [])
    with pytest.raises(ValueError, match="do not ascend"):
        gradtx.join_schedules([schedule] * 3, [5, 2])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("cosine_decay_schedule", (1.0, 0)),
        ("linear_schedule", (1.0, 0.0, -1)),
        ("linear_schedule", (float("nan"), 0.0, 10)),
        ("polynomial_schedule", (1.0, 0.0, "2", 10)),
        ("piecewise_constant_schedule", (1.0, {3: -1.0})),
        ("piecewise_interpolate_schedule", ("spline", 1.0)),
        ("cosine_onecycle_schedule", (0, 1.0)),
        ("exponential_decay", (1.0, 10, -0.5)),
        ("warmup_cosine_decay_schedule", (0.0, 1.0, 10, 10)),
    ],
)
def test_bad_arguments(name, arguments):
    with pytest.raises((ValueError, TypeError)):
        getattr(gradtx, name)(*arguments)(0)


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
    np.testing.assert_allclose([anew(t) for t in range(30)], want, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(anew)(29), want[29], rtol=1e-5)
    for made in (gradtx.multiply_schedules(0.1, down), anew):
        assert gradtx.from_config(json.loads(json.dumps(gradtx.to_config(made)))) == made


@pytest.mark.parametrize("mode", ["sideways", None])
def test_a_cycle_of_no_kind(mode):
    with pytest.raises(ValueError, match="mode must be one of"):
        gradtx.cyclic_schedule(0.0, 1.0, mode=mode)(0)
