"""AdaHessian against a transcription of its paper, on a loss whose Hessian is diagonal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests.oracle import parameters


def weights(shape):
    """Of both signs: the curvature's magnitude counts."""
    return np.linspace(-3.0, 20.0, int(np.prod(shape))).reshape(shape)


def loss(p):
    """Hutchinson's estimate of its Hessian's diagonal is exact."""
    return jnp.sum(jnp.asarray(weights(p.shape), p.dtype) * (jnp.cosh(p) + p**2 / 2))


def path(tx, shape, steps=30):
    def step(carry, _):
        p, state = carry
        updates, state = tx.update(jax.grad(loss)(p), state, p, value_fn=loss)
        return (p + updates, state), p + updates

    p = jnp.asarray(parameters(shape=shape), jnp.float32)
    return jax.jit(lambda: jax.lax.scan(step, (p, tx.init(p)), None, steps)[1])()


def transcribed(shape, rate, b1, b2, eps, decay, power, axes, steps=30):
    """Algorithm 1 in float64, with the mean of magnitudes of the authors' code."""
    p, w, found = parameters(shape=shape), weights(shape), []
    m, v = np.zeros(shape), 0.0
    for t in range(1, steps + 1):
        g, d = w * (np.sinh(p) + p), np.abs(w * (np.cosh(p) + 1))
        d = np.mean(d, axis=axes, keepdims=True) if axes else d
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * d**2
        root = np.sqrt(v / (1 - b2**t))
        p = p - rate * (m / (1 - b1**t) / (root**power + eps) + decay * p)
        found.append(p)
    return np.stack(found)


@pytest.mark.quick(1)
@pytest.mark.paper("adahessian")
@pytest.mark.parametrize("power", [1.0, 0.4])
@pytest.mark.parametrize(
    ("shape", "average", "axes"),
    [
        ((4, 3), True, ()),
        ((2, 3, 2, 2), True, (0, 1)),
        ((1, 1, 4, 3), True, (0, 1)),
        ((3, 2, 2), False, ()),
    ],
)
def test_it_is_the_papers(shape, average, axes, power):
    """Yao et al. 2021, algorithm 1."""
    tx = gradtx.adahessian(0.03, 0.8, 0.7, 0.1, 0.3, None, power, spatial_average=average)
    want = transcribed(shape, 0.03, 0.8, 0.7, 0.1, 0.3, power, axes)
    np.testing.assert_allclose(path(tx, shape), want, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_the_estimates_are_hutchinsons_in_whatever_type_the_leaf_is():
    """One draw for each step, squared in float32."""
    mixing = np.random.default_rng(0).normal(size=(6, 6)) * 1e-3
    mixing = jnp.asarray(mixing + mixing.T, jnp.float32)

    def mixed(p):
        p = p.astype(jnp.float32)
        return p @ mixing @ p / 2

    p = jnp.ones(6, jnp.float16)
    tx, estimator = gradtx.scale_by_adahessian(), gradtx.hutchinson_estimator_diag_hessian()
    state, inner, nu = tx.init(p), estimator.init(p), np.zeros(6)
    for _ in range(3):
        g = jax.grad(mixed)(p)
        _, state = tx.update(g, state, p, value_fn=mixed)
        h, inner = estimator.update(g.astype(jnp.float32), inner, p, value_fn=mixed)
        nu = 0.999 * nu + 0.001 * np.asarray(h, np.float64) ** 2
    assert state.nu.dtype == jnp.float32
    np.testing.assert_allclose(state.nu, nu, rtol=1e-5)


@pytest.mark.quick(1)
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (0, 2, 3), (2, 0, 3)])
def test_it_is_finite_where_nothing_curves(shape):
    tx = gradtx.scale_by_adahessian()
    p = jnp.zeros(shape)
    u, state = tx.update(jnp.zeros(shape), tx.init(p), p, value_fn=lambda p: 0.0 * jnp.sum(p))
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in (u, state.mu, state.nu))
    assert (u.shape, state.nu.shape) == (shape, tx.init(p).nu.shape)


def test_it_says_what_it_needs():
    tx, p = gradtx.adahessian(0.1), jnp.ones(2)
    with pytest.raises(ValueError, match="value_fn"):
        tx.update(p, tx.init(p), p)
