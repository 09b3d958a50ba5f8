"""Estimates in NumPy's float64, with the directions that an estimator draws."""

import jax
import jax.numpy as jnp
import numpy as np

import gradtx

POINT = np.array([[0.3, -1.2, 0.7], [1.1, 0.2, -0.4]])


def loss(x):
    """Cubic, so that differences are not derivatives, and no coordinate is like another."""
    weights = np.arange(1.0, 7.0).reshape(2, 3)
    return (weights * x**2).sum() + (x**3).sum() + x[0, 0] * x[1, 2]


def gradient(x):
    weights = np.arange(1.0, 7.0).reshape(2, 3)
    slopes = 2 * weights * x + 3 * x**2
    slopes[0, 0] += x[1, 2]
    slopes[1, 2] += x[0, 0]
    return slopes


def directions(estimator, key, count):
    """The directions as an array ``[count, 2, 3]`` in float64."""
    drawn = estimator.directions(key, [jnp.asarray(POINT)])
    return np.stack([np.asarray(drawn.leaf(0, k)) for k in range(count)])


def estimated(estimator, seed=0):
    """The value and the estimate of gradtx at the point, in float64."""
    key = jax.random.key(seed)
    value, grads = jax.jit(
        lambda x: gradtx.compute_gradients(loss, x, gradients=estimator, gradients_key=key)
    )(jnp.asarray(POINT))
    return float(value), np.asarray(grads)


def assert_is(found, wanted, **tolerance):
    """Two estimates agree, and not with the other sign, nor with another factor."""
    np.testing.assert_allclose(found, wanted, **tolerance)
    for factor in (-1.0, 0.5, 2.0):
        assert not np.allclose(factor * found, wanted, **tolerance)


def assert_agrees(estimator, transcription, count):
    """The estimate is that of a transcription, which gets the directions."""
    with jax.enable_x64(True):
        value, grads = estimated(estimator)
        z = directions(estimator, jax.random.key(0), count)
        assert z.dtype == grads.dtype == np.float64
    wanted_value, wanted = transcription(z)
    np.testing.assert_allclose(value, wanted_value, rtol=1e-12)
    assert_is(grads, wanted, rtol=1e-9)


def assert_unbiased(estimator, count, wanted=None):
    """The mean over many directions is the gradient, within five standard errors."""
    wanted = gradient(POINT) if wanted is None else wanted
    _, found = estimated(estimator)
    # Of one estimate, a coordinate's variance is at most twice the gradient's squared norm.
    error = np.sqrt(2 * np.sum(wanted**2) / count)
    assert error < 0.1 * np.linalg.norm(wanted)
    assert_is(found, wanted, atol=5 * error, rtol=0)
