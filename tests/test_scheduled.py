"""Hyperparameters that are schedules: their first values, and whose count they go by."""

import numpy as np
import optax

import gradtx
from gradtx.scheduled import Schedules, _count


def test_the_first_values_are_those_before_any_step():
    tx = gradtx.scale_by_adam(b1=lambda count: 0.5 + count / 8)
    np.testing.assert_array_equal(Schedules(tx.declaration).at_start().arguments["b1"], 0.5)


def test_a_state_of_another_library_counts_by_that_name():
    state = optax.scale_by_adam().init(1.0)._replace(count=7)
    assert _count(state) == 7
    assert _count(optax.trace(0.9).init(1.0)) is None
