"""Decay before the step, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx


def test_decay_first_is_adamw_where_the_step_ignores_the_parameters():
    p, g = jnp.array([2.0, -3.0]), jnp.array([0.5, 1.0])
    first = gradtx.decay_first(gradtx.adam(0.1), 0.1 * 0.2)
    adamw = gradtx.adamw(0.1, weight_decay=0.2)
    got, _ = first.update(g, first.init(p), p)
    want, _ = adamw.update(g, adamw.init(p), p)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_decay_first_shows_the_decayed_parameters():
    p, g = jnp.array([4.0, 0.0]), jnp.array([0.0, 1.0])
    tx = gradtx.decay_first(gradtx.chain(gradtx.scale_by_trust_ratio(), gradtx.sgd(0.5)), 0.25)
    updates, _ = tx.update(g, tx.init(p), p)
    # The decayed parameter has norm 3, of which half is the length of the step.
    np.testing.assert_allclose(updates, [-1.0, -1.5], rtol=1e-6)


def test_decay_first_with_a_schedule_and_a_mask():
    p = {"a": jnp.ones(1), "b": jnp.ones(1)}
    zero = jax.tree.map(jnp.zeros_like, p)
    schedule = gradtx.piecewise_constant_schedule(0.5, {1: 0.5})
    tx = gradtx.decay_first(gradtx.sgd(0.1), schedule, mask="a")
    state = tx.init(p)
    for want in (-0.5, -0.25):
        updates, state = tx.update(zero, state, p)
        assert [float(updates[k][0]) for k in "ab"] == [want, 0.0]
    with pytest.raises(ValueError, match="needs the parameters"):
        tx.update(zero, state)
