"""Guards against gradients that are not finite."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx

P = jnp.ones(3)
BAD = jnp.array([1.0, jnp.nan, 1.0])


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_bad_steps_are_left_out_for_ever(bad):
    tx = gradtx.apply_if_finite(gradtx.adam(0.1), 2)
    _, state = tx.update(P, tx.init(P), P)
    before = state.inner_state
    for i in range(5):
        updates, state = tx.update(P.at[1].set(bad), state, P)
        np.testing.assert_array_equal(updates, 0.0)
        assert int(state.notfinite_count) == i + 1
    np.testing.assert_array_equal(state.inner_state[0].mu, before[0].mu)
    assert not bool(state.last_finite)
    _, state = tx.update(P, state, P)
    assert (int(state.notfinite_count), int(state.total_notfinite)) == (0, 5)


def test_accepting_at_the_limit_as_optax_does():
    tx = gradtx.apply_if_finite(gradtx.sgd(0.1), 1, accept_at_limit=True)
    updates, state = tx.update(BAD, tx.init(P), P)
    np.testing.assert_array_equal(updates, 0.0)
    updates, state = tx.update(BAD, state, P)
    assert np.isnan(updates[1])


@pytest.mark.slow
def test_skips_tell_what_they_saw():
    skip, told = gradtx.skip_not_finite({"a": BAD, "b": BAD}, 0, None)
    assert bool(skip)
    assert int(told["num_not_finite"]) == 2
    assert bool(gradtx.skip_not_finite(BAD, 0, None)[1]["should_skip"])
    skip, told = gradtx.skip_large_updates(
        {"a": jnp.full(4, 300.0, jnp.float16)}, 0, None, max_squared_norm=1e6
    )
    assert not bool(skip)
    assert float(told["norm_squared"]) == 360000.0  # in float16 it would overflow


@pytest.mark.quick(2)
@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (70,), (3, 0, 2), (3, 33)])
def test_leaves_of_any_shape_are_looked_at(shape):
    skip, told = gradtx.skip_not_finite({"a": jnp.full(shape, jnp.nan)}, 0, None)
    assert int(told["num_not_finite"]) == math.prod(shape)
    assert bool(skip) == (math.prod(shape) > 0)


def test_python_numbers_in_a_whole_step():
    tx = gradtx.apply_if_finite(gradtx.sgd(1.0), 3)
    params, _ = gradtx.apply_gradients(tx, 1.0, 1.0, tx.init(1.0))
    assert float(params) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["apply_if_finite", "dynamic_loss_scale", "guard"])
def test_rows_are_finite_where_the_table_is(name):
    """Duplicates may overflow together, and what stands outside of the table does not count."""
    wrap = {
        "apply_if_finite": lambda tx: gradtx.apply_if_finite(tx, 2),
        "dynamic_loss_scale": lambda tx: gradtx.dynamic_loss_scale(tx, 1.0),
        "guard": gradtx.guard,
    }[name]
    tx, table = wrap(gradtx.sgd(1.0)), jnp.zeros((3, 1), jnp.float16)
    most = jnp.array([[40000.0], [40000.0]], jnp.float16)
    overflow = gradtx.Rows(jnp.array([1, 1]), most, (3, 1))
    outside = gradtx.Rows(jnp.array([1, 7]), jnp.array([[1.0], [jnp.nan]], jnp.float16), (3, 1))
    for grads, moved in ((overflow, 0), (outside, -1)):
        updates, _ = tx.update(grads, tx.init(table), table)
        assert updates.to_dense().ravel().tolist() == [0, moved, 0]
        told = gradtx.skip_not_finite(grads, 0, None)[1]
        assert int(told["num_not_finite"]) == (moved == 0)
