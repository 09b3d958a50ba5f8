"""Rules over all leaves: what they see, what is kept, what is refused."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.engine.tree import treewise


class BestState(NamedTuple):
    count: jax.Array
    start: gradtx.Slots
    best: gradtx.TreeScalar
    seen: gradtx.TreeScalar


@gradtx.transformation
def toward_start(rate: gradtx.checks.NonNegative = 0.5):
    """Back toward the start, further the better the loss has been."""

    def rule(g, s, t, p, *, value):
        best = jnp.minimum(s.best, value)
        back = gradtx.tree.scale(rate / t.number, gradtx.tree.sub(s.start, p))
        return back, {"best": best, "seen": True}

    def numbers(p):
        return {"best": 10.0 * len(p), "seen": False}

    return treewise(BestState, lambda p: {"start": jnp.array(p, copy=True)}, numbers, rule)


P = {"a": jnp.ones(2, jnp.bfloat16), "b": jnp.float32(2.0), "none": None}


def test_slots_numbers_and_the_count():
    tx = toward_start()
    state = tx.init(P)
    assert (float(state.best), bool(state.seen), int(state.count)) == (20.0, False, 0)
    assert state.best.dtype == jnp.float32
    away = {"a": jnp.zeros(2, jnp.bfloat16), "b": jnp.float32(0.0), "none": None}
    for n in (1, 2):
        updates, new = tx.update(away, state, away, value=jnp.bfloat16(3.0))
        np.testing.assert_allclose(updates["b"], 1.0 / n)
        assert updates["a"].dtype == jnp.bfloat16
        assert updates["none"] is None
        assert jax.tree.map(jnp.result_type, new) == jax.tree.map(jnp.result_type, state)
        state = new
    assert (float(state.best), bool(state.seen), int(state.count)) == (3.0, True, 2)
    # What the rule does not return stays as it is.
    np.testing.assert_array_equal(state.start["b"], 2.0)
    assert gradtx.slot_names(state) == ["start"]


def test_a_leaf_without_a_gradient_is_not_seen_and_keeps_its_slot():
    tx, g = toward_start(), {"a": None, "b": jnp.float32(1.0), "none": None}
    state = tx.init(P)
    updates, new = tx.update(g, state, {**P, "a": None}, value=1.0)
    assert updates["a"] is None
    np.testing.assert_array_equal(new.start["a"], state.start["a"])


def test_a_schedule_and_a_sweep():
    tx = toward_start(gradtx.linear_schedule(0.0, 1.0, 2))
    away = jax.tree.map(jnp.zeros_like, P)
    state = tx.init(P)
    for want in (0.0, 0.5):
        updates, state = tx.update(away, state, away, value=1.0)
        np.testing.assert_allclose(updates["b"], want)

    def update(tx):
        return tx.update(away, tx.init(P), away, value=1.0)[0]["b"]

    swept = jax.vmap(lambda rate: update(toward_start(rate)))(jnp.array([0.5, 1.0]))
    np.testing.assert_allclose(swept, [1.0, 2.0])


def test_what_does_not_fit_is_refused():
    tx = toward_start()
    state = tx.init(P)
    with pytest.raises(ValueError, match="toward_start needs the parameters"):
        tx.update(P, state, value=1.0)
    with pytest.raises(ValueError, match="toward_start needs the loss"):
        tx.update(P, state, P)
    with pytest.raises(ValueError, match="'b' the gradient has the shape .* parameter"):
        tx.update(P, state, {**P, "b": jnp.ones(2)}, value=1.0)
    with pytest.raises(ValueError, match="'b' the gradient has the shape .* parameter None"):
        tx.update(P, state, {**P, "b": None}, value=1.0)
    with pytest.raises(ValueError, match="'b' the gradient has the shape .* start"):
        tx.update({**P, "b": jnp.ones(2)}, state, {**P, "b": jnp.ones(2)}, value=1.0)
    with pytest.raises(ValueError, match="different trees"):
        tx.update({"a": P["a"]}, state, P, value=1.0)
    with pytest.raises(TypeError, match="expected the state BestState"):
        tx.update(P, gradtx.EmptyState(), P, value=1.0)
    table = {"table": jnp.ones((3, 2))}
    rows = gradtx.Rows(jnp.array([0]), jnp.ones((1, 2)), (3, 2))
    with pytest.raises(TypeError, match="'table'"):
        tx.update({"table": rows}, tx.init(table), table, value=1.0)
    with pytest.raises(TypeError, match="only floating-point"):
        tx.init({"n": jnp.arange(3)})


def test_pairs_of_hyperparameters_are_checked():
    for betas in (0.9, (0.9,), (0.9, 0.9, 0.9), (0.9, len), (0.9, "x")):
        with pytest.raises(TypeError, match=r"prodigy: betas"):
            gradtx.prodigy(betas=betas)
    with pytest.raises(ValueError, match=r"prodigy: betas\[1\]"):
        gradtx.prodigy(betas=(0.9, 1.0))
    swept = gradtx.prodigy(betas=(0.9, jnp.array(0.99)))
    assert len(jax.tree.leaves(swept)) == 1
