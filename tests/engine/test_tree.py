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

    return treewise(BestState, lambda p: {"start": jnp.array(p, copy=True)}, rule, start=numbers)


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


@pytest.mark.slow
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


class PairsState(NamedTuple):
    pairs: gradtx.Slots


@gradtx.transformation
def both(mask=None, rows=False):
    """What is chosen over the norm of all, and the last two gradients of each leaf, stacked."""

    def rule(g, s, t, *, chosen):
        size = gradtx.global_norm(g)
        new = [
            pair if isinstance(x, gradtx.Rows) else jnp.stack([pair[1], x])
            for pair, x in zip(s.pairs, g, strict=True)
        ]
        scaled = gradtx.tree.scale(1 / size, g)
        return [u if own else x for u, x, own in zip(scaled, g, chosen, strict=True)], {
            "pairs": new
        }

    slots = lambda p: {"pairs": jnp.zeros((2, *p.shape))}  # noqa: E731
    return treewise(PairsState, slots, rule, rows=rows, mask=mask)


def test_a_slot_may_stack_several_arrays_of_the_leaf_s_shape():
    tx, g = both(), {"a": jnp.array([3.0, 4.0])}
    updates, state = tx.update(g, tx.init(g))
    np.testing.assert_allclose(updates["a"], [0.6, 0.8], rtol=1e-6)
    assert state.pairs["a"].tolist() == [[0.0, 0.0], [3.0, 4.0]]
    with pytest.raises(ValueError, match=r"the gradient has the shape \(3,\) .* pairs \(2, 2\)"):
        tx.update({"a": jnp.ones(3)}, state)


def test_a_mask_chooses_and_without_one_all_are_chosen():
    g = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
    for mask, want in ((None, [0.6, 0.8]), ("b", [3.0, 0.8])):
        updates, _ = both(mask).update(g, both(mask).init(g))
        np.testing.assert_allclose([updates["a"][0], updates["b"][0]], want, rtol=1e-6)


@gradtx.transformation
def beginnings():
    """Where each leaf begins in a vector of all entries."""

    def rule(g, s, t, p, *, places):
        return [jnp.full_like(x, place) for x, place in zip(g, places, strict=True)], {}

    return treewise(gradtx.EmptyState, None, rule)


def test_a_rule_knows_where_each_leaf_begins_in_a_vector_of_all_entries():
    p = {"a": np.ones((2, 3), "f"), "b": None, "c": np.ones(4, "f"), "d": np.float32(1)}
    tx = beginnings()
    updates, _ = tx.update({**p, "c": None}, tx.init(p), p)
    assert updates["a"][0, 0] == 0
    assert updates["d"] == 10  # the entries of leaves without a gradient count too


def test_a_rule_of_the_tree_sees_rows_if_it_says_so():
    table = {"t": jnp.zeros((3, 2))}
    g = {"t": gradtx.Rows(jnp.array([2]), jnp.array([[3.0, 4.0]]), (3, 2))}
    updates, _ = both(rows=True).update(g, both().init(table))
    np.testing.assert_allclose(updates["t"].to_dense(), [[0, 0], [0, 0], [0.6, 0.8]], rtol=1e-6)
    with pytest.raises(TypeError, match="both looks at whole leaves .* at 't'"):
        both().update(g, both().init(table))


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
