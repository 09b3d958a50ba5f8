"""Rprop against its paper and PyTorch."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers import papers


@pytest.mark.library("rprop")
def test_rprop_is_pytorchs():
    # PyTorch too treats the gradient after a change of sign as 0.
    papers.beside_torch(gradtx.rprop(0.01), lambda o, p: o.Rprop(p, lr=0.01), seed=3, atol=1e-5)


@pytest.mark.paper("rprop")
def test_rprop_is_the_papers():
    """Riedmiller and Braun 1993, without taking steps back."""

    def update(g, s, t, p):
        size = s.get("size", 0.05)
        sign = np.sign(g) * np.sign(s.get("u", 0.0 * g))
        grown = np.clip(size * np.where(sign > 0, 1.4, 0.6), 0.02, 0.09)
        s["size"] = np.where(sign == 0, size, grown)
        s["u"] = np.where(sign < 0, 0.0, s["size"] * np.sign(g))
        return -s["u"]

    oracle.check(gradtx.rprop(0.05, 0.6, 1.4, 0.02, 0.09), update)


def test_rprop_compares_signs_of_tiny_numbers():
    """The product of two numbers of 1e-30 is 0, that of their signs is not."""
    tx = gradtx.scale_by_rprop(1e-30, min_step_size=0.0)
    g, state = jnp.full(1, 1e-30), tx.init(jnp.zeros(1))
    for _ in range(2):
        _, state = tx.update(g, state)
    np.testing.assert_allclose(state.step_sizes, [1.2e-30], rtol=1e-6)


def test_rprop_refuses_complex_parameters():
    with pytest.raises(TypeError, match="complex"):
        gradtx.rprop(0.1).init(jnp.zeros(1, jnp.complex64))


def test_a_schedule_that_would_have_no_effect_is_refused():
    with pytest.raises(TypeError, match="learning_rate"):
        gradtx.rprop(gradtx.piecewise_constant_schedule(1.0, {1: 0.0}))
