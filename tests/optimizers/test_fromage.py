"""Fromage against its paper and Optax."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests import oracle


@pytest.mark.paper("fromage")
@pytest.mark.parametrize("least", [3.0, 9.0])
def test_fromage_is_the_papers(least):
    """Bernstein et al. 2020, algorithm 1, with the bound of the norms."""

    def update(g, s, t, p):
        size, length = (max(np.linalg.norm(x), least) for x in (p, g))
        return (p - 0.3 * size / length * g) / np.sqrt(1 + 0.3**2) - p

    oracle.check(gradtx.fromage(0.3, least), update)


def test_fromage_with_a_schedule_is_optax_s():
    p, gs = oracle.parameters(), oracle.gradients(steps=100)
    ours = gradtx.fromage(gradtx.linear_schedule(0.1, 0.01, 50))
    theirs = optax.fromage(optax.linear_schedule(0.1, 0.01, 50))
    np.testing.assert_allclose(
        oracle.run(ours, p, gs), oracle.run(theirs, p, gs), rtol=1e-5, atol=1e-6
    )


def test_fromage_shrinks_at_small_rates_given_as_arrays():
    """1 / sqrt(1 + 1e-8) is 1 in float32: the difference from 1 needs another formula."""
    tx = gradtx.fromage(jnp.float32(1e-4))
    p = jnp.ones(1)
    updates, _ = tx.update(jnp.zeros(1), tx.init(p), p)
    np.testing.assert_allclose(updates, [-5e-9], rtol=1e-5)


def test_a_leaf_of_zeros_moves_by_its_gradient():
    """As in the authors' code; there is no bound of norms in the paper."""
    tx, p, g = gradtx.fromage(0.1, 0.0), jnp.zeros(2), jnp.array([3.0, 4.0])
    want = -0.1 * np.asarray(g) / np.sqrt(1.01)
    np.testing.assert_allclose(tx.update(g, tx.init(p), p)[0], want, rtol=1e-6)
    theirs = optax.fromage(0.1, 0.0)
    np.testing.assert_allclose(theirs.update(g, theirs.init(p), p)[0], want, rtol=1e-6)
