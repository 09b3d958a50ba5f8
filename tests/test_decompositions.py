"""Derivatives of decompositions: JAX's own where vectors are unique, finite where they are not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradtx.linalg import decompositions


def gram(x):
    return x.mT.conj() @ x


# Each with what JAX differentiates.
CASES = {
    "eigenvectors": (
        lambda x: decompositions.eigenvectors(gram(x)),
        lambda x: jnp.linalg.eigh(gram(x))[1],
    ),
    "left singular vectors": (
        lambda x: decompositions.singular_vectors(x)[0],
        lambda x: jnp.linalg.svd(x, full_matrices=False)[0],
    ),
    "right singular vectors": (
        lambda x: decompositions.singular_vectors(x)[1],
        lambda x: jnp.linalg.svd(x, full_matrices=False)[2].mT.conj(),
    ),
    "orthonormal": (decompositions.orthonormal, lambda x: jnp.linalg.qr(x)[0]),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (2, 4, 2)])
@pytest.mark.parametrize("name", CASES)
def test_as_jax_where_vectors_are_unique(name, shape):
    if name == "orthonormal" and shape[-1] > shape[-2]:
        pytest.skip("the columns are not independent")
    ours, theirs = CASES[name]
    x, dx = np.random.default_rng(0).normal(size=(2, *shape))
    if name == "eigenvectors" and shape == (3, 4):
        x, dx = x[:, :3], dx[:, :3]  # otherwise the null space has one vector, known to rounding

    @jax.jit
    def program(x, dx):
        got, want = (jax.jvp(f, (x,), (dx,)) for f in (ours, theirs))
        return got, want, jax.grad(lambda x: jnp.sum(got[1] * ours(x)))(x)

    with jax.enable_x64():
        got, want, slope = program(x, dx)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-14)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(np.vdot(slope, dx), np.vdot(got[1], got[1]), rtol=1e-9)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", CASES)
def test_finite_where_they_are_not(name):
    """At 0, at rank 1, and where all singular values are equal."""
    ours, _ = CASES[name]
    rng = np.random.default_rng(0)
    points = np.stack([np.zeros((3, 3)), np.outer(*rng.normal(size=(2, 3))), np.eye(3)])
    change = rng.normal(size=points.shape)

    @jax.jit
    def both(x, change):
        turn = jax.jvp(ours, (x,), (change,))[1]
        return turn, jax.grad(lambda x: jnp.sum(turn * ours(x)))(x)

    with jax.enable_x64():
        turn, slope = both(points, change)
    assert np.isfinite(turn).all()
    assert np.abs(turn).max() < 100
    np.testing.assert_allclose(np.vdot(slope, change), np.vdot(turn, turn), rtol=1e-9)


def test_a_projection_onto_the_space_of_rank_one():
    """Which vectors of the null space there are makes no difference to it."""
    rng = np.random.default_rng(0)
    a, b, da = rng.normal(size=(3, 4))

    def projected(t):
        v = decompositions.singular_vectors(jnp.outer(a + t * da, b))[0]
        return v[:, :1] @ v[:, :1].T

    h = 1e-6
    with jax.enable_x64():
        ends = jax.jit(projected)
        want = (ends(h) - ends(-h)) / (2 * h)
        got = jax.jit(jax.jacfwd(projected))(0.0)
    np.testing.assert_allclose(got, want, atol=1e-8)
