"""Adagrad against its paper and PyTorch."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import beside_torch


@pytest.mark.quick(5)
@pytest.mark.paper("adagrad")
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("slower", [0.0, 0.05])
@pytest.mark.parametrize("start", [0.0, 0.2])
def test_adagrad(start, slower, inside):
    """Duchi et al. 2011, figure 1, diagonal, with an initial accumulator and a rate that falls."""

    def update(g, s, t, p):
        s["sum"] = s.get("sum", start) + g * g
        root = np.sqrt(s["sum"] + 0.1) if inside else np.sqrt(s["sum"]) + 0.1
        return -0.5 / (1 + slower * (t - 1)) * g / root

    oracle.check(gradtx.adagrad(0.5, start, 0.1, lr_decay=slower, eps_in_sqrt=inside), update)


@pytest.mark.paper("adagrad")
def test_adagrad_with_a_schedule_of_how_its_rate_falls():
    def update(g, s, t, p):
        s["sum"] = s.get("sum", 0.2) + g * g
        return -0.5 / (1 + 0.05 * (1 - (t - 1) / 50) * (t - 1)) * g / np.sqrt(s["sum"] + 0.1)

    slower = gradtx.linear_schedule(0.05, 0.0, 50)
    oracle.check(gradtx.adagrad(0.5, 0.2, 0.1, lr_decay=slower), update)


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
