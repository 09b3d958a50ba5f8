"""Derivatives of updates, forward and reverse, against finite differences in double precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx

TRANSFORMATIONS = {
    "adam": lambda: gradtx.adam(0.1),
    "adaptive_grad_clip": lambda: gradtx.adaptive_grad_clip(0.3),
    "clip_by_block_rms": lambda: gradtx.clip_by_block_rms(0.5),
    "clip_by_global_norm": lambda: gradtx.clip_by_global_norm(0.7),
    "clip_by_norm": lambda: gradtx.clip_by_norm(0.7),
    "fromage": lambda: gradtx.fromage(0.1),
    "lamb": lambda: gradtx.lamb(0.1, weight_decay=0.1),
    "lars": lambda: gradtx.lars(0.1, weight_decay=0.1, trust_coefficient=1.0),
    "mars_adamw": lambda: gradtx.mars_adamw(0.1),
    "muon": lambda: gradtx.muon(0.1),
    "normalize": lambda: gradtx.normalize(),
    "shampoo": lambda: gradtx.shampoo(0.1),
    "soap": lambda: gradtx.soap(0.1),
    "scale_by_trust_ratio": lambda: gradtx.scale_by_trust_ratio(),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", sorted(TRANSFORMATIONS, key=lambda n: (n != "soap", n)))
def test_three_steps(name):
    """With respect to the size of the gradients and that of the parameters."""
    rng = np.random.default_rng(0)
    p, g, weights = rng.normal(size=(3, 3, 4))
    tx = TRANSFORMATIONS[name]()

    def last(sizes):
        params = sizes[0] * p
        state = tx.init(params)
        for i in range(3):
            updates, state = tx.update(sizes[1] * g * (i + 1) + params, state, params)
            params = params + updates
        return jnp.sum(weights * jnp.sin(params))

    with jax.enable_x64():
        at, step = jnp.array([1.0, 1.0]), 1e-6
        value = jax.jit(last)
        want = [float(value(at + step * e) - value(at - step * e)) / (2 * step) for e in np.eye(2)]
        for derivative in (jax.jacfwd, jax.jacrev):
            got = jax.jit(derivative(last))(at)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["clip_by_global_norm", "clip_by_norm", "clip_by_block_rms"])
def test_a_clip_of_zeros(name):
    """It is the identity there; with respect to the limit nothing changes."""
    zero = jnp.zeros((2, 2))

    def updates(g, limit):
        tx = getattr(gradtx, name)(limit)
        return tx.update(g, tx.init(zero))[0]

    for derivative in (jax.jacfwd, jax.jacrev):
        by_gradient, by_limit = jax.jit(derivative(updates, (0, 1)))(zero, jnp.float32(1))
        np.testing.assert_array_equal(by_gradient.reshape(4, 4), np.eye(4))
        np.testing.assert_array_equal(by_limit, 0)
