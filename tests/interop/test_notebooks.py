"""The tasks of Optax's example notebooks, in scripts of our own, with both libraries."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import gradtx

X = jax.random.normal(jax.random.key(0), (16, 3))
Y = X @ jnp.array([1.0, -2.0, 0.5]) + 0.3
START = {"w": jnp.zeros(3), "b": jnp.zeros(())}
STEPS = 6


def loss(p, x=X, y=Y):
    return jnp.mean((x @ p["w"] + p["b"] - y) ** 2)


def lookahead(lib):
    tx = lib.lookahead(lib.adam(0.1), sync_period=3, slow_step_size=0.5)
    p = lib.LookaheadParams.init_synced(START)
    state = tx.init(p)
    for _ in range(STEPS):
        updates, state = tx.update(jax.grad(loss)(p.fast), state, p)
        p = lib.apply_updates(p, updates)
    return p.slow


def sharpness_aware(lib):
    tx = lib.contrib.sam(lib.sgd(0.05), lib.chain(lib.contrib.normalize(), lib.sgd(0.1)), 2)
    p, state = START, tx.init(START)
    for _ in range(STEPS):
        updates, state = tx.update(jax.grad(loss)(p), state, p)
        p = lib.apply_updates(p, updates)
    return p


def meta_learning(lib):
    """The rate of an inner loop, learned through it."""

    def trained(rate):
        tx, p = lib.inject_hyperparams(lib.sgd)(learning_rate=0.1), START
        state = tx.init(p)
        for _ in range(3):
            state.hyperparams["learning_rate"] = jax.nn.sigmoid(rate)
            updates, state = tx.update(jax.grad(loss)(p), state, p)
            p = lib.apply_updates(p, updates)
        return loss(p)

    outer, rate = lib.adam(0.3), jnp.float32(-2.0)
    state = outer.init(rate)
    for _ in range(STEPS):
        updates, state = outer.update(jax.grad(trained)(rate), state)
        rate = lib.apply_updates(rate, updates)
    return rate


def adversarial(lib):
    """Inputs ascend by a negative rate while the parameters descend."""
    tx, up = lib.adam(0.1), lib.chain(lib.scale_by_sign(), lib.sgd(-0.05))
    p, state = START, tx.init(START)
    for _ in range(STEPS):
        moves, _ = up.update(jax.grad(loss, 1)(p, X), up.init(X))
        worst = lib.apply_updates(X, moves)
        updates, state = tx.update(jax.grad(loss)(p, worst), state, p)
        p = lib.apply_updates(p, updates)
    return p


def second_order(lib):
    tx, p = lib.lbfgs(), START
    state = tx.init(p)
    value_and_grad = lib.value_and_grad_from_state(loss)
    for _ in range(3):
        value, grad = value_and_grad(p, state=state)
        updates, state = tx.update(grad, state, p, value=value, grad=grad, value_fn=loss)
        p = lib.apply_updates(p, updates)
    assert loss(p) < 0.1  # the two line searches try other rates
    return ()


@pytest.mark.parametrize(
    "task", [lookahead, sharpness_aware, meta_learning, adversarial, second_order]
)
def test_both_libraries_agree(task):
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=5e-5, atol=1e-5),
        task(gradtx),
        task(optax),
    )
