"""Squared norms of updates and parameters against NumPy, by hand and in whole steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.wrappers.update_norms import unmeasured, with_norms

PARAMS = {"a": jnp.array([[3.0, -4.0], [1.0, 2.0]]), "b": jnp.array([0.5])}
GRADS = {"a": jnp.array([[0.5, 1.0], [-2.0, 0.25]]), "b": jnp.array([-8.0])}


def square(tree):
    return sum(float(np.sum(np.float64(x) ** 2)) for x in jax.tree.leaves(tree))


INNER = {
    "entries": gradtx.sgd(0.1),
    "leaves": gradtx.chain(gradtx.clip_by_block_rms(0.3), gradtx.sgd(0.1)),
    "keys": gradtx.noisy_sgd(0.1),
    "step": gradtx.compensated(gradtx.sgd(0.1)),
    "cases": gradtx.accumulate(gradtx.sgd(0.1), 1),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("factor", [None, 0.25])
@pytest.mark.parametrize("name", sorted(INNER))
def test_the_squares_are_those_of_the_update_and_of_the_parameters_before_it(name, factor):
    inner = INNER[name]
    scaled = jax.tree.map(lambda g: g * (1.0 if factor is None else factor), GRADS)
    want, _ = jax.jit(inner.update)(scaled, inner.init(PARAMS), PARAMS)

    def measure(g, p):
        tx = with_norms(inner, gradtx.tree.norm(g), factor)
        by_hand = tx.update(g, tx.init(p), p)
        return by_hand, gradtx.apply_gradients(tx, g, p, unmeasured(inner.init(p)))

    (u, by_hand), (p, in_step) = jax.jit(measure)(GRADS, PARAMS)
    for leaf, old in PARAMS.items():
        np.testing.assert_allclose(u[leaf], want[leaf], rtol=1e-6)
        np.testing.assert_allclose(p[leaf], old + want[leaf], rtol=1e-6)
    for state in (by_hand, in_step):
        np.testing.assert_allclose(state.update_sq, square(want), rtol=2e-5)
        np.testing.assert_allclose(state.params_sq, square(PARAMS), rtol=1e-6)


@pytest.mark.slow
def test_of_a_table_only_the_rows_that_move_are_measured():
    table = jnp.arange(1.0, 9.0).reshape(4, 2)
    rows = gradtx.Rows(
        jnp.array([1, 3, 1]), jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), (4, 2)
    )
    tx = with_norms(gradtx.sgd(0.5), jnp.float32(1.0), None)
    _, state = tx.update(rows, tx.init(table), table)
    np.testing.assert_allclose(state.update_sq, 0.25 * (6**2 + 8**2 + 3**2 + 4**2), rtol=1e-6)
    np.testing.assert_allclose(state.params_sq, 3**2 + 4**2 + 7**2 + 8**2, rtol=1e-6)


def test_without_parameters_only_the_update_is_measured():
    tx = with_norms(gradtx.scale(2.0), jnp.float32(1.0), None)
    _, state = tx.update({"a": None, "b": jnp.array([3.0])}, tx.init({"a": None, "b": jnp.ones(1)}))
    assert (float(state.update_sq), float(state.params_sq)) == (36.0, 0.0)


def test_a_tree_without_leaves_has_norms_of_zero():
    tx = with_norms(gradtx.sgd(0.1), jnp.float32(0.0), None)
    _, state = tx.update({}, tx.init({}), {})
    assert (float(state.update_sq), float(state.params_sq)) == (0.0, 0.0)


def test_before_a_step_nothing_is_measured():
    state = unmeasured(())
    assert (state.inner_state, float(state.update_sq), float(state.params_sq)) == ((), 0.0, 0.0)
