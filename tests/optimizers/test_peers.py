"""What Keras and PyTorch have and Optax lacks, beside the live ones: FTRL, ASGD, keywords."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle


def beside_torch(tx, make, steps=100):
    """The parameters after each step of `tx` and of a PyTorch optimizer, in float64."""
    torch = pytest.importorskip("torch")
    p, gs = oracle.parameters(), oracle.gradients(steps=steps)
    tensor = torch.tensor(p, requires_grad=True)
    peer, path = make(torch.optim, [tensor]), []
    for g in gs:
        tensor.grad = torch.tensor(g)
        peer.step()
        path.append(tensor.detach().numpy().copy())
    np.testing.assert_allclose(oracle.run(tx, p, gs), np.stack(path), rtol=1e-5, atol=2e-5)
    return peer, tensor


def test_asgd_is_the_papers():
    """Polyak and Juditsky 1992: the average of the iterates, with Bottou's falling rate."""
    path = []

    def update(g, s, t, p):
        rate = 0.1 / (1 + 0.05 * 0.1 * (t - 1)) ** 0.75
        step = -rate * (g + 0.2 * p) - 0.05 * rate * p
        path.append(p + step)
        return step

    tx = gradtx.asgd(0.1, lambd=0.05, t0=20, weight_decay=0.2)
    oracle.check(tx, update)
    p, gs = jnp.asarray(oracle.parameters(), jnp.float32), oracle.gradients()
    state = tx.init(p)
    for g in jnp.asarray(gs, jnp.float32):
        updates, state = tx.update(g, state, p)
        p = gradtx.apply_updates(p, updates)
    # With t0 = 20 it is the iterate itself up to step 22, and then the mean of those from there on.
    np.testing.assert_allclose(state.ax, np.mean(path[21:], axis=0), rtol=1e-5, atol=1e-6)


def test_asgd_is_pytorch_s():
    options = {"lambd": 0.01, "alpha": 0.75, "t0": 20.0, "weight_decay": 0.1}
    tx = gradtx.asgd(0.1, **options)
    peer, tensor = beside_torch(tx, lambda o, p: o.ASGD(p, lr=0.1, **options))
    p = jnp.asarray(oracle.parameters(), jnp.float32)
    state = tx.init(p)
    for g in oracle.gradients(steps=100):
        updates, state = tx.update(jnp.asarray(g, jnp.float32), state, p)
        p = gradtx.apply_updates(p, updates)
    average = peer.state[tensor]["ax"]
    np.testing.assert_allclose(gradtx.get_slot(state, "ax"), average, rtol=1e-4, atol=1e-5)


def test_adagrad_with_lr_decay_is_pytorch_s():
    tx = gradtx.adagrad(0.1, 0.1, eps=0.0, lr_decay=0.05)
    beside_torch(
        tx,
        lambda o, p: o.Adagrad(p, lr=0.1, lr_decay=0.05, initial_accumulator_value=0.1, eps=0.0),
    )


def test_adagrad_without_lr_decay_has_the_state_of_optax():
    assert len(gradtx.adagrad(0.1).init(jnp.zeros(1))) == 2


def test_sgd_with_dampening_is_pytorch_s():
    tx = gradtx.sgd(0.1, momentum=0.9, dampening=0.5)
    beside_torch(tx, lambda o, p: o.SGD(p, lr=0.1, momentum=0.9, dampening=0.5))


def test_dampening_and_nesterov_are_refused_together():
    with pytest.raises(ValueError, match="nesterov"):
        gradtx.sgd(0.1, momentum=0.9, nesterov=True, dampening=0.5)


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


@pytest.mark.parametrize("power", [-0.5, -0.7])
def test_ftrl_is_the_papers(power):
    oracle.check(gradtx.ftrl(0.1, power, **OPTIONS), ftrl(power))


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
