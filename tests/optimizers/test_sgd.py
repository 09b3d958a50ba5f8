"""Gradient descent against its formulas and PyTorch."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import beside_torch


@pytest.mark.paper("sgd")
def test_sgd():
    oracle.check(gradtx.sgd(0.05), lambda g, s, t, p: -0.05 * g)


@pytest.mark.paper("sgd")
@pytest.mark.parametrize("dampening", [None, 0.0, 0.3])
@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum(nesterov, dampening):
    """Sutskever et al. 2013, in the form with the learning rate outside."""
    if nesterov and dampening:
        pytest.skip("refused")

    def update(g, s, t, p):
        s["m"] = (1 if t == 1 else 1 - (dampening or 0.0)) * g + 0.8 * s.get("m", 0.0)
        return -0.05 * (g + 0.8 * s["m"] if nesterov else s["m"])

    oracle.check(gradtx.sgd(0.05, 0.8, nesterov, dampening=dampening), update)


@pytest.mark.paper("sign_sgd")
def test_sign_sgd():
    oracle.check(gradtx.sign_sgd(0.05), lambda g, s, t, p: -0.05 * np.sign(g))


def test_no_momentum_keeps_no_slot():
    assert gradtx.slot_names(gradtx.sgd(0.1).init(0.0)) == []


@pytest.mark.library("sgd")
def test_sgd_with_dampening_is_pytorch_s():
    tx = gradtx.sgd(0.1, momentum=0.9, dampening=0.5)
    beside_torch(tx, lambda o, p: o.SGD(p, lr=0.1, momentum=0.9, dampening=0.5))


def test_dampening_and_nesterov_are_refused_together():
    with pytest.raises(ValueError, match="nesterov"):
        gradtx.sgd(0.1, momentum=0.9, nesterov=True, dampening=0.5)


def test_a_negative_rate_is_told_how_to_ascend():
    with pytest.raises(ValueError, match=r"to ascend, chain\(scale\(-1.0\), sgd\(...\)\)"):
        gradtx.sgd(-0.1)
    up = gradtx.chain(gradtx.scale(-1.0), gradtx.sgd(0.1))
    assert up.update(jnp.ones(1), up.init(jnp.zeros(1)))[0] > 0
