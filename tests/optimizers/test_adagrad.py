"""Adagrad against its paper and PyTorch."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import beside_torch


@pytest.mark.paper("adagrad")
def test_adagrad():
    """Duchi et al. 2011, figure 1, diagonal, with an initial accumulator."""

    def update(g, s, t, p):
        s["sum"] = s.get("sum", 0.1) + g * g
        return -0.1 * g / np.sqrt(s["sum"] + 1e-7)

    oracle.check(gradtx.adagrad(0.1), update)


def test_without_initial_accumulator_a_zero_gradient_moves_nothing():
    tx = gradtx.scale_by_rss(0.0, 0.0)
    updates, _ = tx.update(np.zeros(2, np.float32), tx.init(np.zeros(2, np.float32)))
    np.testing.assert_array_equal(updates, 0)


@pytest.mark.library("adagrad")
def test_adagrad_with_lr_decay_is_pytorch_s():
    tx = gradtx.adagrad(0.1, 0.1, eps=0.0, lr_decay=0.05)
    beside_torch(
        tx,
        lambda o, p: o.Adagrad(p, lr=0.1, lr_decay=0.05, initial_accumulator_value=0.1, eps=0.0),
    )


def test_adagrad_without_lr_decay_has_the_state_of_optax():
    assert len(gradtx.adagrad(0.1).init(jnp.zeros(1))) == 2
