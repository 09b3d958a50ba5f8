"""Cautious updates against a transcription of their paper."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle


def adam(g, slots, t, b1=0.9, b2=0.999, eps=1e-8):
    mu = slots["mu"] = b1 * slots.get("mu", 0) + (1 - b1) * g
    nu = slots["nu"] = b2 * slots.get("nu", 0) + (1 - b2) * g**2
    return mu / (1 - b1**t) / (np.sqrt(nu / (1 - b2**t)) + eps)


def masked(u, g, rescale=True):
    phi = (u * g > 0).astype(float)
    return u * phi / (max(phi.mean(), 1e-3) if rescale else 1)


@pytest.mark.paper("cautious")
def test_cautious_adamw_is_the_paper_s():
    tx = gradtx.chain(
        gradtx.cautious(gradtx.scale_by_adam(), flip_sign=False),
        gradtx.add_decayed_weights(0.1),
        gradtx.scale_by_learning_rate(0.02),
    )
    oracle.check(tx, lambda g, s, t, p: -0.02 * (masked(adam(g, s, t), g) + 0.1 * p))


@pytest.mark.parametrize("rescale", [False, True])
def test_around_a_whole_optimizer(rescale):
    tx = gradtx.cautious(gradtx.adam(0.02), rescale=rescale)
    oracle.check(tx, lambda g, s, t, p: -0.02 * masked(adam(g, s, t), g, rescale))


def test_where_nothing_agrees_nothing_moves():
    tx = gradtx.cautious(gradtx.sgd(1.0), flip_sign=False)
    p = jnp.ones(3)
    assert not tx.update(p, tx.init(p), p)[0].any()


@pytest.mark.slow
def test_the_mean_is_at_least_a_thousandth():
    tx = gradtx.cautious(gradtx.stateless(lambda u, p: u * p), flip_sign=False)
    p = jnp.full(4000, -1.0).at[0].set(1.0)
    updates, _ = tx.update(jnp.ones(4000), tx.init(p), p)
    np.testing.assert_allclose(updates[:2], [1000.0, 0.0], rtol=1e-6)


@pytest.mark.slow
def test_rows_of_a_table():
    p = jnp.ones((5, 2))
    rows = gradtx.Rows(jnp.array([3, 1, 3]), jnp.array([[1.0, -1], [1, 1], [1, -1]]), (5, 2))
    tx = gradtx.cautious(gradtx.sgd(1.0, momentum=0.9), rescale=False)
    state = tx.init(p)
    for g in (rows, rows.with_values(rows.values * jnp.array([-0.1, 1.0]))):
        found, state = tx.update(g, state, p)
    np.testing.assert_allclose(found.to_dense()[3], [0.0, 3.8], rtol=1e-6)
    np.testing.assert_allclose(found.to_dense()[1], [0.0, -1.9], rtol=1e-6)
    with pytest.raises(TypeError, match="rescale=False"):
        gradtx.cautious(gradtx.sgd(1.0)).update(rows, gradtx.sgd(1.0).init(p), p)


def test_a_nan_stays_a_nan():
    for rescale in (True, False):
        tx = gradtx.cautious(gradtx.sgd(1.0), rescale=rescale)
        g = jnp.array([np.nan, 1.0])
        updates, _ = tx.update(g, tx.init(g), g)
        np.testing.assert_array_equal(updates, [np.nan, -1.0])


@pytest.mark.slow
def test_rows_that_are_handed_on_are_compared_with_their_own_gradients():
    tx = gradtx.cautious(gradtx.masked(gradtx.sgd(1.0), "w"), flip_sign=False, rescale=False)
    params = {"w": jnp.ones(2), "table": jnp.zeros((4, 1))}
    rows = gradtx.Rows(jnp.array([3, 0, 3]), jnp.array([[-6.0], [7.0], [1.0]]), (4, 1))
    results = [
        tx.update({"w": jnp.ones(2), "table": table}, tx.init(params), params)[0]["table"]
        for table in (rows, rows.to_dense())
    ]
    assert results[0].to_dense().tolist() == results[1].tolist() == [[7], [0], [0], [-5]]
