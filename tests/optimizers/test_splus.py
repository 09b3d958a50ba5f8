"""SPlus against its paper and its authors' code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers import matrix_trees
from tests.optimizers.papers import mean

B1, B2, EVERY, LARGEST, OTHER = 0.7, 0.8, 4, 5, 0.3


def update(g, s, t, p):
    """Frans et al. 2025, algorithm 1."""
    m, sides = mean(s, "m", g, B1), (g, g.T)
    old = [s.get(i, np.eye(n)) for i, n in enumerate(g.shape)]
    u = old[0] @ np.sign(old[0].T @ m @ old[1]) @ old[1].T
    for i, x in enumerate(sides):
        gram = mean(s, f"gram{i}", x @ x.T, B2)
        if len(x) <= LARGEST and (t == 1 or t % EVERY == 0):
            s[i] = np.linalg.eigh(gram)[1]
    factor = 2 / sum(g.shape) if max(g.shape) <= LARGEST else OTHER
    return -0.05 * (factor * u + 0.4 * p)


@pytest.mark.slow
@pytest.mark.paper("splus")
def test_splus():
    """Without matrices that have a null space, in which rounding chooses vectors and signs."""
    tx = gradtx.splus(0.05, B1, B2, 0.4, None, EVERY, LARGEST, OTHER)
    kinds = ("ill-conditioned", "rank two", "zero", "one row", "one column")

    def other(g, s, t, p):
        return -0.05 * (OTHER * np.sign(mean(s, "m", g, B1)) + 0.4 * p)

    matrix_trees.check(tx, update, other, without=kinds)


@pytest.mark.slow
def test_matrices_of_little_rank_take_steps_of_full_size():
    """Whatever the null space is: its signs are those of rounding, or 0."""
    tx = gradtx.scale_by_splus(0.5, 0.5, 2)

    @jax.jit
    def directions(gs):
        return jax.lax.scan(lambda s, g: tx.update(g, s)[::-1], tx.init(gs[0]), gs)[1]

    for name in ("ill-conditioned", "rank two", "zero", "one row", "one column"):
        gs = jnp.asarray(matrix_trees.gradients()[name], jnp.float32)
        us = jax.jit(
            lambda gs: jax.lax.scan(lambda s, g: tx.update(g, s)[::-1], tx.init(gs[0]), gs)
        )
        sizes = np.linalg.norm(us(gs)[1], 2, (1, 2))
        most = 2 / sum(gs.shape[1:]) * np.sqrt(gs[0].size)
        assert np.all(sizes <= most * (1 + 1e-5)), name
        assert np.all((sizes > 0) == (name != "zero")), name


def test_an_entry_without_a_gradient_stays():
    tx, g = gradtx.scale_by_splus(), jnp.array([0.0, -2.0])
    np.testing.assert_array_equal(tx.update(g, tx.init(g))[0], np.float32([0, -0.001]))


@pytest.mark.slow
def test_the_average_is_there_to_evaluate():
    tx = gradtx.splus(0.1, ema_rate=0.5)
    p, g = jnp.ones((2, 2)), jnp.asarray(oracle.gradients(shape=(2, 2))[1], jnp.float32)
    new, state = gradtx.apply_gradients(tx, g, p, tx.init(p))
    newer, state = gradtx.apply_gradients(tx, g, new, state)
    got = gradtx.eval_params(tx, state, newer)
    np.testing.assert_allclose(got, (new + 2 * newer) / 3, rtol=1e-6)
