"""Hyperball against its paper; matrices in batches; what is not a matrix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.matrices import check, on_matrices
from tests.optimizers.papers import adam


@pytest.mark.quick(2)
@pytest.mark.paper("hyperball")
@on_matrices
def test_hyperball(name, shape):
    """Wen et al. 2026, around Adam."""

    def update(g, s, t, p):
        radius = s.setdefault("radius", np.linalg.norm(p))
        u = adam(g, s, t, 0.8, 0.7, 0.1)
        size = np.linalg.norm(u)
        new = p - 0.3 * radius * (u if size == 0 else u / size)
        return radius * new / np.linalg.norm(new) - p

    check(gradtx.hyperball(gradtx.adam(5.0, 0.8, 0.7, 0.1), 0.3), update, name, shape)


def test_other_leaves_move_as_their_optimizer_says():
    p = {"b": jnp.ones(3), "w": jnp.ones((2, 3))}
    tx = gradtx.hyperball(gradtx.sgd(0.25), 0.1)
    updates, _ = tx.update(p, tx.init(p), p)
    assert updates["b"].tolist() == [-0.25] * 3
    np.testing.assert_allclose(updates["w"], 0.0, atol=1e-6)  # it points to the centre


def test_an_empty_matrix_has_a_sphere_like_others():
    w = jnp.zeros((0, 3))
    tx = gradtx.hyperball(gradtx.sgd(0.25), 0.1)
    state = tx.init(w)
    assert state.radius.tolist() == [[[0.0]]]
    assert tx.update(w, state, w)[0].shape == (0, 3)


@pytest.mark.slow
def test_each_matrix_of_a_batch_has_its_own_sphere():
    w, g = (
        jnp.asarray(np.random.default_rng(i).normal(size=(3, 2, 4)), jnp.float32) for i in (0, 1)
    )
    w = w * jnp.array([1.0, 2.0, 3.0])[:, None, None]
    tx = gradtx.hyperball(gradtx.sgd(1.0), 0.1, gradtx.MuonDimensionNumbers(1, 2))
    together = jax.jit(tx.update)(g, tx.init(w), w)[0]
    one = gradtx.hyperball(gradtx.sgd(1.0), 0.1)
    step = jax.jit(one.update)
    alone = jnp.stack([step(g[i], one.init(w[i]), w[i])[0] for i in range(3)])
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)


def test_the_rate_is_the_tangent_of_the_angle_and_may_be_scheduled():
    w, g = jnp.array([[3.0, 0.0]]), jnp.array([[0.0, 1.0]])
    tx = gradtx.hyperball(gradtx.sgd(1.0), gradtx.linear_schedule(1.0, 0.0, 2))
    state = tx.init(w)
    updates, state = tx.update(g, state, w)
    np.testing.assert_allclose(w + updates, 3 / np.sqrt(2) * np.array([[1, -1]]), rtol=1e-6)
    updates, state = tx.update(jnp.array([[1.0, 1.0]]), state, w)
    np.testing.assert_allclose(np.linalg.norm(w + updates), 3.0, rtol=1e-6)


@pytest.mark.slow
def test_the_norm_does_not_drift_in_bfloat16():
    w = jnp.asarray(oracle.parameters(shape=(16, 16)), jnp.bfloat16)
    tx = gradtx.hyperball(gradtx.muon(0.1), 0.05)

    @jax.jit
    def run(w):
        def step(carry, g):
            w, state = carry
            updates, state = tx.update(g.astype(w.dtype), state, w)
            return (gradtx.apply_updates(w, updates), state), None

        return jax.lax.scan(step, (w, tx.init(w)), jnp.asarray(oracle.gradients(shape=(16, 16))))[0]

    before, after = (float(jnp.linalg.norm(x.astype(jnp.float32))) for x in (w, run(w)[0]))
    np.testing.assert_allclose(after, before, rtol=2e-3)
