"""Mistakes in a user's own rule are reported in the words of the rule."""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import pytest

import gradtx
from gradtx.core.traits import Scope

P = {"w": jnp.ones(3)}


class State(NamedTuple):
    count: gradtx.Counter
    m: gradtx.Slots


class Uncounted(NamedTuple):
    m: gradtx.Slots


def slots(p):
    return {"m": jnp.zeros_like(p)}


def lifted(rule, state=State, slots=slots):
    return gradtx.elementwise(state, slots, rule)


def run(tx):
    return tx.update(P, tx.init(P))


@pytest.mark.slow
def test_the_step_counts_from_1_and_is_a_number():
    def rule(g, s, t):
        return g / t**0.5 + (1 - t) * (2 / t) + (t + 1) - (1 + t) + 0 * (t * 2**t - t / 2), {"m": g}

    tx = lifted(rule)
    _, state = run(tx)
    updates, _ = tx.update(P, state)
    assert jnp.allclose(updates["w"], 2**-0.5 - 1.0)


@pytest.mark.parametrize(
    "use", [lambda t: t**0.5, lambda t: t.bias_correction(0.9), lambda t: 1 - t]
)
def test_a_step_that_is_not_counted(use):
    tx = lifted(lambda g, s, t: (g * use(t), {"m": g}), Uncounted)
    with pytest.raises(TypeError, match="Uncounted counts none: give it a field annotated Counter"):
        run(tx)


@pytest.mark.parametrize("lift", [gradtx.elementwise, gradtx.rowwise, gradtx.leafwise])
def test_slots_begin_as_zeros_like_their_parameters(lift):
    params = {"w": jnp.ones((2, 3), jnp.bfloat16), "b": jnp.ones(2), "none": None}
    state = lift(State, None, lambda g, s, t: (g, {"m": g})).init(params)
    zeros = {"w": jnp.zeros((2, 3), jnp.bfloat16), "b": jnp.zeros(2), "none": None}
    chex.assert_trees_all_equal_shapes_and_dtypes(state, State(jnp.zeros([], jnp.int32), zeros))
    chex.assert_trees_all_equal(state.m, zeros)


@pytest.mark.parametrize(
    ("new", "problem"),
    [({"n": 0.0}, "'m' missing, 'n' unknown"), ({}, "'m' missing"), ({"m": 0.0, "n": 0.0}, "'n'")],
)
def test_slots_that_are_not_those_of_the_state(new, problem):
    with pytest.raises(ValueError, match=f"new slots: {problem}"):
        run(lifted(lambda g, s, t: (g, new)))


def test_a_slot_that_is_misspelt_where_it_is_read():
    with pytest.raises(AttributeError, match="there is no slot 'mu'; the slots are m"):
        run(lifted(lambda g, s, t: (g * s.mu, {"m": g})))


def test_slots_at_the_start_that_are_not_those_of_the_state():
    with pytest.raises(ValueError, match="slots at the start: 'm' missing, 'mu' unknown"):
        lifted(lambda g, s, t: (g, {"m": g}), slots=lambda p: {"mu": p}).init(P)


def test_a_rule_that_returns_something_else():
    with pytest.raises(TypeError, match="a rule returns"):
        run(lifted(lambda g, s, t: g))


def test_a_field_that_does_not_say_what_it_is():
    class Silent(NamedTuple):
        m: jax.Array

    with pytest.raises(TypeError, match="Silent does not say what m is: annotate"):
        lifted(lambda g, s, t: (g, {"m": g}), Silent)


def module_level(g, s, t, decay=0.9):
    return g, {"m": decay * s.m + g}


@pytest.mark.parametrize("rule", [module_level, functools.partial(module_level, decay=0.5)])
def test_a_rule_that_stands_alone_has_its_own_name(rule):
    # A default argument is no parameter of the model.
    tx = lifted(functools.partial(rule, decay=0.9))
    run(tx)
    with pytest.raises(TypeError, match="module_level: expected the state State"):
        tx.update(P, gradtx.EmptyState())


def test_a_rule_of_entries_may_read_a_number_of_the_tree():
    tx = gradtx.elementwise(
        gradtx.EmptyState,
        None,
        lambda g, s, t: (g / s.largest, {}),
        of_tree=lambda g: {"largest": gradtx.tree.max(g)},
    )
    assert tx.rule.scope is Scope.TREE
    grads = {"a": jnp.array([2.0, 4.0], jnp.bfloat16), "b": None, "c": jnp.array(8.0)}
    updates, _ = tx.update(grads, tx.init(grads))
    chex.assert_trees_all_equal(
        updates, {"a": jnp.array([0.25, 0.5], jnp.bfloat16), "b": None, "c": jnp.array(1.0)}
    )


def test_the_pair_says_what_its_rule_reads():
    assert gradtx.scale_by_adam().rule.scope is Scope.ENTRY
    assert gradtx.rowwise_adagrad(0.1).parts[0].rule.scope is Scope.ROW
    assert gradtx.scale_by_lamb().parts or gradtx.scale_by_lamb().rule.scope is Scope.LEAF
    assert gradtx.scale_by_muon().rule.scope is Scope.MATRIX
    assert gradtx.clip_by_global_norm(1.0).rule.scope is Scope.TREE
    assert gradtx.adam(1e-3).rule is None
    assert [part.rule.scope for part in gradtx.adam(1e-3).parts] == [Scope.ENTRY] * 2
    # A schedule changes no scope.
    assert gradtx.scale_by_adam(b1=gradtx.linear_schedule(0.9, 0.5, 9)).rule.scope is Scope.ENTRY


def test_what_a_pair_has_beside_its_functions_is_kept():
    tx = gradtx.GradientTransformation(lambda p: (), lambda u, s, p=None: (u, s), lambda *a: a)
    assert tx._replace(init=lambda p: 1).step is tx.step
    leaves, treedef = jax.tree.flatten(tx)
    assert jax.tree.unflatten(treedef, leaves).step is tx.step


@pytest.mark.slow
def test_the_step_is_compared_as_its_number():
    class Counted(NamedTuple):
        count: gradtx.Counter

    class Uncounted(NamedTuple):
        pass

    def built(state, of):
        return gradtx.elementwise(state, None, lambda g, s, t: (jnp.where(of(t), g, -g), {}))

    cases = {
        "==": (lambda t: t == 2, [-1, 1, -1]),
        "!=": (lambda t: t != 2, [1, -1, 1]),
        "<": (lambda t: t < 2, [1, -1, -1]),
        "<=": (lambda t: t <= 2, [1, 1, -1]),
        ">": (lambda t: t > 2, [-1, -1, 1]),
        ">=": (lambda t: t >= 2, [-1, 1, 1]),
        "%": (lambda t: t % 2, [1, -1, 1]),
        "-": (lambda t: -t + 2, [1, -1, 1]),
    }
    g = jnp.ones(1)
    for of, want in cases.values():
        tx, found = built(Counted, of), []
        state = tx.init(g)
        for _ in want:
            updates, state = jax.jit(tx.update)(g, state)
            found += updates.tolist()
        assert found == want
        tx = built(Uncounted, of)
        with pytest.raises(TypeError, match="the rule uses the step, and Uncounted counts none"):
            tx.update(g, tx.init(g))
