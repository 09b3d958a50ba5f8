"""Hyperparameters that are schedules: their first values, and whose count they go by."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx.declarations.scheduled import Schedules, count_of


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
