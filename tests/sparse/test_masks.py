"""Masks and labels that are functions, where a step looks up rows of a table."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx import sparse

PARAMS = {"table": jnp.ones((6, 2)), "w": jnp.ones(3)}
BATCHES = jnp.array([[1, 3], [2, 4]])
ROWS = gradtx.Rows(jnp.array([1, 3]), jnp.ones((2, 2)), (6, 2))
GRADS = {"table": ROWS, "w": jnp.ones(3)}


def large(path, x):
    return x.size > 4


def of_matrices(tree):
    return jax.tree.map(lambda x: x.ndim > 1, tree)


def of_several_rows(tree):
    return jax.tree.map(lambda x: min(x.shape) > 1, tree)


def of_sizes(tree):
    return jax.tree.map(lambda x: "many" if x.size > 4 and x.dtype == jnp.float32 else "few", tree)


CHOSEN = {
    "adamw": lambda: gradtx.adamw(0.1, weight_decay=0.5, mask=of_matrices),
    "masked": lambda: gradtx.masked(gradtx.sgd(0.1, 0.9), of_matrices),
    "masked by rows": lambda: gradtx.masked(gradtx.sgd(0.1, 0.9), of_several_rows),
    "masked by path": lambda: gradtx.masked(gradtx.sgd(0.1, 0.9), large),
    "freeze": lambda: gradtx.chain(gradtx.sgd(0.1, 0.9), gradtx.freeze(of_matrices)),
    "selective": lambda: gradtx.selective_transform(gradtx.sgd(0.1, 0.9), freeze_mask=of_matrices),
    "partition": lambda: gradtx.partition(
        {"many": gradtx.sgd(0.1, 0.9), "few": gradtx.adam(0.2)}, of_sizes
    ),
}


def loss(take):
    return lambda p, rows: jnp.sum(take(p["table"], rows) ** 2) * jnp.sum(p["w"])


@pytest.mark.slow
@pytest.mark.parametrize("name", CHOSEN)
def test_exact_rows_of_chosen_leaves_are_the_dense_update(name):
    tx, exact = CHOSEN[name](), gradtx.exact_rows(CHOSEN[name]())
    got = want = PARAMS
    state, whole = exact.init(PARAMS), tx.init(PARAMS)
    for rows in BATCHES:
        got, state, _ = gradtx.minimize(loss(sparse.take), exact, got, state, rows)
        want, whole, _ = gradtx.minimize(loss(lambda t, i: t[i]), tx, want, whole, rows)
    chex.assert_trees_all_close(sparse.catch_up(exact, got, state)[0], want, rtol=1e-6)


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", CHOSEN)
def test_rows_alone_choose_the_same_leaves(name):
    tx = CHOSEN[name]()
    state = tx.init(PARAMS)
    want, _ = tx.update(gradtx.leaves.rows.dense(GRADS), state, PARAMS)
    got, _ = tx.update(GRADS, state, PARAMS)
    chex.assert_trees_all_close(got["table"].to_dense()[ROWS.indices], want["table"][ROWS.indices])
    if name != "adamw":  # whose decay needs the parameters
        alone, _ = tx.update(GRADS, state)
        chex.assert_trees_all_close(alone["table"].values, got["table"].values)


def test_rows_say_what_an_array_says():
    table = ROWS.to_dense()
    for name in ("shape", "ndim", "size", "dtype"):
        assert getattr(ROWS, name) == getattr(table, name)


def test_another_library_that_maps_over_indices_is_refused():
    tx = gradtx.chain(optax.scale(-0.5), gradtx.sgd(0.1))
    with pytest.raises(TypeError, match=r"Rows: indices must be integers"):
        tx.update(GRADS, tx.init(PARAMS))
    for by_an_integer in (optax.scale(-1), optax.apply_if_finite(optax.scale(2), 3)):
        tx = gradtx.chain(by_an_integer, gradtx.sgd(0.1))
        state = tx.init(PARAMS)
        for update in (tx.update, jax.jit(tx.update)):
            with pytest.raises(TypeError, match="at 'table' there are new indices"):
                update(GRADS, state)
    passed = gradtx.chain(optax.masked(optax.scale(-1), {"table": False, "w": True}))
    got, _ = jax.jit(lambda g: passed.update(g, passed.init(PARAMS)))(GRADS)
    np.testing.assert_array_equal(got["table"].indices, ROWS.indices)


@pytest.mark.quick(1)
@pytest.mark.parametrize("inner", [gradtx.sgd(0.1), gradtx.adagrad(0.1)])
def test_another_library_hands_rows_to_what_is_inside(inner):
    around = gradtx.with_extra_args_support(optax.chain(optax.identity(), inner))
    got, _ = jax.jit(lambda g: around.update(g, around.init(PARAMS), PARAMS))(GRADS)
    want, _ = inner.update(GRADS, inner.init(PARAMS), PARAMS)
    chex.assert_trees_all_close(got["table"].to_dense(), want["table"].to_dense(), rtol=1e-6)
