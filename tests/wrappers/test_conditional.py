"""Transformations that run when a condition holds."""

import jax
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


@pytest.mark.slow
def test_rows_pass_on_as_tables_where_a_step_returns_tables():
    """One program returns both, and what it returns has one type."""
    table = jnp.ones((4, 2))
    rows = gradtx.Rows(jnp.array([1]), jnp.full((1, 2), 3.0), table.shape)
    inner = gradtx.lookahead(gradtx.sgd(0.1), 2, 0.5)
    tx = gradtx.conditionally_transform(inner, lambda step: step == 1)
    for update in (tx.update, jax.jit(tx.update)):
        passed, state = update(rows, tx.init(table), table)
        np.testing.assert_array_equal(passed, rows.to_dense())
        np.testing.assert_allclose(update(rows, state, table)[0][1], -0.3, rtol=1e-6)
