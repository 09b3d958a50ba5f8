"""Dion's first form against its authors' code."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests.optimizers.matrices import check, on_matrices

FRACTION, DECAY, EPS, RATE, WEIGHT_DECAY = 0.4, 0.8, 0.1, 0.05, 0.4


def first(shape, kind=np.float64):
    """The first `Q`, which is drawn."""
    return np.asarray(gradtx.scale_by_dion(FRACTION, key=3).init(jnp.zeros(shape)).q[0], kind)


def transcribed(power_iters):
    """`dion_reference.py` of https://github.com/microsoft/dion; there a matrix is (out, in)."""

    def update(g, s, t, p):
        fan_in, fan_out = g.shape
        x = s["m"] = s.get("m", 0.0) + g.T
        q = s.get("q")
        if q is None:
            q = first(g.shape)
            assert q.shape == (min(g.shape), math.ceil(FRACTION * min(g.shape)))
        b = x.T if fan_out < fan_in else x
        r, left = q, np.zeros((b.shape[0], q.shape[1]))
        if np.any(x):
            for _ in range(power_iters):
                left = np.linalg.qr(b @ r)[0]
                r = b.T @ left
        near = left @ r.T
        s["m"] = x - (1 - DECAY) * (near.T if fan_out < fan_in else near)
        s["q"] = r / (np.linalg.norm(r, axis=0, keepdims=True) + EPS)
        u = left @ s["q"].T
        u = u if fan_out < fan_in else u.T
        return -RATE * (np.sqrt(fan_out / fan_in) * u + WEIGHT_DECAY * p)

    return update


@pytest.mark.quick(1)
@pytest.mark.paper("dion")
@on_matrices
def test_dion(name, shape):
    """Ahn et al. 2025."""
    tx = gradtx.dion(RATE, FRACTION, DECAY, EPS, WEIGHT_DECAY, key=3)
    check(tx, transcribed(1), name, shape)


@pytest.mark.slow
@pytest.mark.paper("dion")
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5)])
def test_more_steps_of_power_iteration(shape):
    tx = gradtx.dion(RATE, FRACTION, DECAY, EPS, WEIGHT_DECAY, power_iters=3, key=3)
    check(tx, transcribed(3), "ordinary", shape)


@pytest.mark.slow
def test_of_full_rank_and_without_momentum_it_orthogonalizes():
    """In the end: power iteration rotates `Q` to the singular vectors of a gradient that stays."""
    g = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)) * [9.0, 3.0, 1.0], jnp.float32)
    tx = gradtx.scale_by_dion(1.0, 0.0)
    state = tx.init(g)
    update = jax.jit(tx.update)
    for _ in range(30):
        u, state = update(g, state)
    left, _, right = np.linalg.svd(g, full_matrices=False)
    np.testing.assert_allclose(u, left @ right, atol=1e-5)
    np.testing.assert_allclose(state.mu, 0.0, atol=1e-5)


@pytest.mark.slow
def test_what_is_missed_is_used_in_the_end():
    """With rank 1, directions take turns: their mean is nearer to the orthogonalized gradient."""
    rng = np.random.default_rng(0)
    g = jnp.asarray(rng.normal(size=(6, 4)), jnp.float32)
    tx = gradtx.scale_by_dion(0.25, 0.0)
    state, total = tx.init(g), 0.0
    update = jax.jit(tx.update)
    for _ in range(40):
        u, state = update(g, state)
        total = total + u
    assert np.linalg.matrix_rank(u, tol=1e-4) == 1
    assert np.linalg.matrix_rank(total, tol=0.5) == 4


@pytest.mark.quick(1)
@pytest.mark.parametrize("shape", [(2, 2), (3, 2), (2, 3)])
def test_a_column_of_zeros_has_no_direction_without_an_epsilon(shape):
    """The gradient has rank 1, the approximation rank 2."""
    tx, g = gradtx.scale_by_dion(1.0, eps=0.0), jnp.zeros(shape).at[0, 0].set(3.0)
    u, state = tx.update(g, tx.init(g))
    np.testing.assert_allclose(abs(u), g / 3, atol=1e-6)
    np.testing.assert_allclose(jnp.linalg.norm(state.q, axis=1), [[1.0, 0.0]], atol=1e-6)


@pytest.mark.slow
def test_zeros_keep_the_directions_and_a_key_decides_about_them():
    tx, p = gradtx.scale_by_dion(0.5), jnp.zeros((6, 4))
    state = tx.init(p)
    u, new = tx.update(p, state)
    assert not np.any(u)
    lengths = jnp.linalg.norm(state.q, axis=-2, keepdims=True)
    np.testing.assert_allclose(new.q, state.q / lengths, rtol=1e-5)
    assert np.any(gradtx.scale_by_dion(0.5, key=1).init(p).q != state.q)
    many = tx.init({"a": jnp.zeros((4, 6)), "b": p})
    assert jax.tree.map(jnp.shape, many.q) == {"a": (1, 4, 2), "b": (1, 4, 2)}


def test_what_is_refused():
    with pytest.raises(ValueError, match="rank_fraction"):
        gradtx.scale_by_dion(jnp.float32(0.5))
    with pytest.raises(TypeError, match="key"):
        gradtx.scale_by_dion(key=0.5)
