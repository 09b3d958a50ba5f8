"""FTRL against its paper and Keras."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle

OPTIONS = {
    "l1_regularization_strength": 0.02,
    "l2_regularization_strength": 0.01,
    "l2_shrinkage_regularization_strength": 0.005,
    "beta": 0.1,
}


def ftrl(power):
    """McMahan et al. 2013, algorithm 1, with Keras's power and shrinkage."""

    def update(g, s, t, p):
        old = s.get("n", 0.1)
        n = s["n"] = old + g * g
        s["z"] = s.get("z", 0.0) + g + 0.01 * p - (n**-power - old**-power) / 0.1 * p
        z = s["z"]
        closed = -np.sign(z) * np.maximum(np.abs(z) - 0.02, 0)
        return closed / ((n**-power + 0.1) / 0.1 + 0.02) - p

    return update


@pytest.mark.paper("ftrl")
@pytest.mark.parametrize("power", [-0.5, -0.7])
def test_ftrl_is_the_papers(power):
    oracle.check(gradtx.ftrl(0.1, power, **OPTIONS), ftrl(power))


@pytest.mark.library("ftrl")
def test_ftrl_is_keras_s(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    keras = pytest.importorskip("keras")
    p, gs = oracle.parameters().astype(np.float32), oracle.gradients(steps=100)
    variable = keras.Variable(p)
    peer = keras.optimizers.Ftrl(0.1, **OPTIONS)
    path = []
    for g in gs.astype(np.float32):
        peer.apply([g], [variable])
        path.append(np.asarray(variable))
    np.testing.assert_allclose(
        oracle.run(gradtx.ftrl(0.1, **OPTIONS), p, gs), np.stack(path), rtol=1e-5, atol=1e-5
    )


def test_ftrl_makes_entries_exactly_zero():
    tx = gradtx.ftrl(0.1, l1_regularization_strength=1.0)
    p = jnp.zeros(2)
    updates, _ = tx.update(jnp.array([0.5, 3.0]), tx.init(p), p)
    assert float(updates[0]) == 0.0
    assert float(updates[1]) < 0.0


def test_ftrl_without_an_accumulator_takes_no_step_on_a_zero_gradient():
    tx = gradtx.ftrl(0.1, initial_accumulator_value=0.0)
    p = jnp.zeros(2, jnp.float16)
    updates, _ = tx.update(jnp.zeros_like(p), tx.init(p), p)
    np.testing.assert_array_equal(updates, 0)


def test_ftrl_refuses_a_positive_power():
    with pytest.raises(ValueError, match="learning_rate_power"):
        gradtx.ftrl(0.1, learning_rate_power=0.5)
