"""Transformations that run when a condition holds."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests.oracle import parameters

P = jnp.asarray(parameters(), jnp.float32)


def test_conditions_run_nothing_when_they_do_not_hold():
    def late(step, **extra_args):
        return step >= 1

    for build, first in ((gradtx.conditionally_mask, 0.0), (gradtx.conditionally_transform, 1.0)):
        tx = build(gradtx.adam(0.1), late)
        updates, state = tx.update(jnp.ones(2), tx.init(jnp.ones(2)))
        np.testing.assert_array_equal(updates, first)
        assert int(state.inner_state[0].count) == 0
        _, state = tx.update(jnp.ones(2), state)
        assert int(state.inner_state[0].count) == 1
    with pytest.raises(ValueError, match="one boolean"):
        tx = gradtx.conditionally_mask(gradtx.scale(1.0), lambda step: step)
        tx.update(P, tx.init(P))


@pytest.mark.parametrize(
    ("build", "other"), [(gradtx.conditionally_mask, 0.0), (gradtx.conditionally_transform, 1.0)]
)
def test_a_condition_may_read_extra_arguments(build, other):
    tx = build(gradtx.scale(0.5), lambda step, value: value < 1, forward_extra_args=True)
    for value, want in ((0.5, 0.5), (2.0, other)):
        updates, _ = tx.update(jnp.ones(1), tx.init(P), value=value)
        np.testing.assert_array_equal(updates, want)
