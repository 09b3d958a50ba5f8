"""Loss scaling, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx


def test_the_scale_falls_at_once_and_rises_after_a_period():
    tx = gradtx.dynamic_loss_scale(gradtx.sgd(1.0), 8.0, period=2, factor=4.0, min_loss_scale=1.5)
    p = jnp.zeros(1)
    state = tx.init(p)
    scales, updates = [], []
    for g in (1.0, jnp.inf, jnp.nan, 1.0, 1.0, 1.0):
        u, state = tx.update(jnp.full(1, g) * gradtx.loss_scale(state), state, p)
        scales.append(float(gradtx.loss_scale(state)))
        updates.append(float(u[0]))
    assert scales == [8.0, 2.0, 1.5, 1.5, 6.0, 6.0]
    assert updates == [-1.0, 0.0, 0.0, -1.0, -1.0, -1.0]


def test_the_scale_never_leaves_the_normal_numbers():
    tx = gradtx.dynamic_loss_scale(gradtx.sgd(1.0), 8.0, period=1, min_loss_scale=0.0)
    p = jnp.zeros(1)

    @jax.jit
    def after(g, state):
        return jax.lax.scan(lambda s, _: (tx.update(g, s, p)[1], None), state, length=300)[0]

    for g, want in ((0.0, 2.0**126), (jnp.inf, 2.0**-126)):
        state = after(jnp.full(1, g), tx.init(p))
        assert gradtx.loss_scale(state) == want
        scaled = jnp.full(1, 2.0) * gradtx.loss_scale(state)
        np.testing.assert_allclose(tx.update(scaled, state, p)[0], [-2.0])


def test_a_step_left_out_leaves_the_slots():
    tx = gradtx.dynamic_loss_scale(gradtx.adam(0.1))
    p = jnp.ones(2)
    _, state = tx.update(jnp.ones(2), tx.init(p), p)
    _, after = tx.update(jnp.array([1.0, jnp.inf]), state, p)
    jax.tree.map(np.testing.assert_array_equal, after.inner_state, state.inner_state)


def test_small_gradients_survive_float16():
    p = jnp.ones(2, jnp.float16)
    tx = gradtx.dynamic_loss_scale(gradtx.sgd(1.0), loss_scale=2.0**15)
    state = tx.init(p)

    def grad(scale):
        return jax.grad(lambda p: jnp.sum(p.astype(jnp.float32) * 2e-8) * scale)(p)

    assert not np.any(grad(1.0))
    assert np.all(grad(gradtx.loss_scale(state)))


def test_a_state_without_a_scale():
    with pytest.raises(ValueError, match="holds 0 states"):
        gradtx.loss_scale(gradtx.adam(0.1).init(jnp.ones(2)))
