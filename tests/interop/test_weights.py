"""States as NumPy arrays in a row, for the whole catalogue."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.interop import get_weights, set_weights
from tests.catalogue import CATALOGUE

P = {"b": np.ones(3, np.float32), "w": np.ones((2, 3), np.float32)}


@pytest.mark.quick(16)
@pytest.mark.parametrize("name", CATALOGUE)
def test_round_trip(name):
    state = CATALOGUE[name].make().init(jax.tree.map(jnp.asarray, P))
    weights = get_weights(state)
    rng = np.random.default_rng(0)
    drawn = [np.asarray(rng.integers(0, 2, w.shape)).astype(w.dtype) for w in weights]
    try:
        gradtx.iterations(state)
    except ValueError:
        with pytest.raises(ValueError, match="the iteration 3 would be lost"):
            set_weights(state, [np.int32(3), *drawn[1:]])
        drawn[0] = np.zeros_like(drawn[0])
    held = set_weights(state, drawn)
    assert jax.tree.structure(held) == jax.tree.structure(state)
    for i, (got, want) in enumerate(zip(get_weights(held), drawn, strict=True)):
        assert got.dtype == want.dtype, i
        np.testing.assert_array_equal(got, want)


def test_the_order():
    tx = gradtx.chain(gradtx.trace(0.9), gradtx.nadam(0.1, momentum_decay=1.0))
    state = gradtx.apply_gradients(tx, P, P, tx.init(jax.tree.map(jnp.asarray, P)))[1]
    weights = get_weights(state)
    assert weights[0] == 1
    slots = [gradtx.get_slot(state, s, k) for s in ("trace", "mu", "nu") for k in ("b", "w")]
    for got, want in zip(weights[1:7], slots, strict=True):
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(weights[7], state[1][0].momentum_product)


def test_a_counter_that_begins_at_one():
    state = gradtx.schedule_free_sgd(0.1).init(jax.tree.map(jnp.asarray, P))
    weights = get_weights(state)
    assert weights[0] == 0
    assert gradtx.iterations(set_weights(state, [np.int32(7), *weights[1:]])) == 7


def test_bad_weights():
    state = gradtx.adam(0.1).init(jax.tree.map(jnp.asarray, P))
    good = get_weights(state)
    for weights, error, says in (
        (good[:-1], ValueError, "4 arrays, where 5 are needed"),
        ([good[0], good[2], good[1], *good[3:]], ValueError, r"array 1 has the shape \(2, 3\)"),
        ([np.float32(1), *good[1:]], TypeError, "array 0 is float32, not int32"),
        ([good[0], good[1].astype(complex), *good[2:]], TypeError, "array 1 is complex128"),
    ):
        with pytest.raises(error, match=says):
            set_weights(state, weights)
