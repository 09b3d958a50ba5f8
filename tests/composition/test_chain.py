"""Chains: their states, and what they refuse."""

import chex
import jax
import jax.numpy as jnp
import optax
import pytest

import gradtx


def test_an_empty_chain_is_the_identity():
    tx = gradtx.chain()
    assert tx.update({"a": 1.0}, tx.init({"a": 1.0})) == ({"a": 1.0}, ())


def test_named_states():
    tx = gradtx.named_chain(("clip", gradtx.clip(1.0)), ("trace", gradtx.trace(0.9)))
    state = tx.init(jnp.ones(2))
    assert state["trace"] is state[1]
    assert list(state) == ["clip", "trace"]
    paths = [jax.tree_util.keystr(k) for k, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
    assert paths == ["['trace'].trace"]
    with pytest.raises(ValueError, match="comes twice"):
        gradtx.named_chain(("a", gradtx.clip(1.0)), ("a", gradtx.clip(1.0)))
    with pytest.raises(TypeError, match="pairs"):
        gradtx.named_chain(gradtx.clip(1.0))
    with pytest.raises(ValueError, match="expected a state for"):
        tx.update(jnp.ones(2), {"clip": (), "momentum": ()})


def test_the_state_of_another_chain_is_refused():
    with pytest.raises(ValueError, match="2 parts"):
        gradtx.adam(0.1).update(jnp.ones(2), gradtx.sgd(0.1).init(jnp.ones(2))[:1])


def test_stateless_like_optax():
    p, g = {"a": jnp.arange(3.0)}, {"a": jnp.ones(3)}

    def whole(updates, params):
        return jax.tree.map(lambda g, p: g - 0.1 * p, updates, params)

    def leaf(g, p):
        return g - 0.1 * p

    for name, function in (("stateless", whole), ("stateless_with_tree_map", leaf)):
        ours, theirs = (getattr(lib, name)(function) for lib in (gradtx, optax))
        chex.assert_trees_all_equal(
            ours.update(g, ours.init(p), p)[0], theirs.update(g, theirs.init(p), p)[0]
        )
