"""Hyperparameters that are schedules: their first values, and whose count they go by."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx.declarations.scheduled import Schedules, count_of

LARGE = np.uint64(2**40)


def test_the_first_values_are_those_before_any_step():
    tx = gradtx.scale_by_adam(b1=lambda count: 0.5 + count / 8)
    np.testing.assert_array_equal(Schedules(tx.declaration).at_start().arguments["b1"], 0.5)


def test_a_state_of_another_library_counts_by_that_name():
    state = optax.scale_by_adam().init(1.0)._replace(count=7)
    assert count_of(state) == 7
    assert count_of(optax.trace(0.9).init(1.0)) is None


@pytest.mark.parametrize("build", [gradtx.sgd, gradtx.adam, gradtx.signum, gradtx.clip])
@pytest.mark.parametrize("kind", [jnp.uint8, jnp.int8, jnp.uint32])
def test_narrow_and_unsigned_numbers_are_as_others(build, kind):
    """Of an array too, or of a schedule's value: the negative of uint8 1 is 255."""
    g = jnp.array([-3.0, 0.5])

    def first(number):
        tx = build(number)
        return tx.update(g, tx.init(g))[0].tolist()

    assert first(kind(1)) == first(lambda count: kind(1)) == first(1)


def test_unsigned_numbers_beyond_the_default_type_are_its_largest():
    g = jnp.array([-3.0, 0.5])
    for number in (jnp.uint32(2**31 + 5), lambda count: jnp.uint32(2**31), lambda count: LARGE):
        tx = gradtx.clip(number)
        np.testing.assert_array_equal(tx.update(g, tx.init(g))[0], g)


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [
        gradtx.sgd,
        gradtx.clip_by_global_norm,
        gradtx.scale_by_schedule,
        lambda schedule: gradtx.guard(gradtx.adamw(schedule)),
        lambda schedule: gradtx.inject_hyperparams(gradtx.sgd)(learning_rate=schedule),
    ],
)
def test_a_schedule_of_several_numbers_is_a_sweep(build):
    """Beside a matrix of as many columns each would be trained at another rate."""
    rates, p = jnp.array([0.1, 0.01, 0.001]), jnp.ones((2, 3))

    def first(tx):
        return tx.update(p, tx.init(p), p)[0]

    swept = build(gradtx.cosine_decay_schedule(rates, 100))
    with pytest.raises(ValueError, match=r"has the shape \(3,\), and must be one number"):
        first(swept)
    for got, rate in zip(jax.vmap(first)(swept), rates, strict=True):
        want = first(build(gradtx.cosine_decay_schedule(rate, 100)))
        np.testing.assert_allclose(got, want, rtol=1e-6)
