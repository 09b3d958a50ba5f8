"""Gradients without NaN, or without their means."""

import jax.numpy as jnp
import pytest

import gradtx
from tests import oracle


@pytest.mark.paper("centralize")
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4), (5,)])
def test_centralizing(shape):
    """Yong et al. 2020, equation 1: no mean over what feeds a unit; a vector stays."""

    def update(g, s, t, p):
        mean = g.reshape(len(g), -1).mean(axis=1).reshape(len(g), *[1] * (g.ndim - 1))
        return -0.05 * (g - (mean if g.ndim > 1 else 0))

    tx = gradtx.chain(gradtx.centralize(), gradtx.scale(-0.05))
    oracle.check(tx, update, shape=shape)


@pytest.mark.paper("zero_nans")
def test_nan_is_zero_and_told():
    g = {"a": jnp.array([1.0, jnp.nan, jnp.inf]), "b": jnp.ones(2), "c": None}
    tx = gradtx.zero_nans()
    updates, state = tx.update(g, tx.init(g))
    assert updates["a"].tolist() == [1.0, 0.0, jnp.inf]
    assert updates["b"].tolist() == [1.0, 1.0]
    assert (bool(state.found_nan["a"]), bool(state.found_nan["b"])) == (True, False)
    assert not any(tx.init(g).found_nan[name] for name in "ab")
