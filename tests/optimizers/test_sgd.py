"""Gradient descent against its formulas and PyTorch."""

import jax.numpy as jnp
import numpy as np
import optax
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


ASCENDING = {
    "sgd": lambda lib, rate: lib.sgd(rate, momentum=0.9),
    "adamw": lambda lib, rate: lib.adamw(rate, weight_decay=0.1),
    "lion": lambda lib, rate: lib.lion(rate),
    "rmsprop": lambda lib, rate: lib.rmsprop(rate, momentum=0.5),
    "injected": lambda lib, rate: lib.inject_hyperparams(lib.adam)(rate),
    "chain": lambda lib, rate: lib.chain(lib.scale_by_adam(), lib.scale_by_learning_rate(rate)),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("rate", [-0.1, optax.linear_schedule(-0.1, 0.1, 4)], ids=["-", "-+"])
@pytest.mark.parametrize("name", ASCENDING)
def test_a_negative_rate_ascends(name, rate):
    ends = []
    for lib in (gradtx, optax):
        tx, p = ASCENDING[name](lib, rate), jnp.array([0.5, -1.0])
        state = tx.init(p)
        for _ in range(3):
            updates, state = tx.update(p - 2.0, state, p)
            p = p + updates
        ends.append(p)
    np.testing.assert_allclose(ends[0], ends[1], rtol=2e-5)
    assert (ends[0] < jnp.array([0.5, -1.0])).all()


def test_the_configuration_of_a_negative_rate():
    tx = gradtx.sgd(-0.1)
    assert gradtx.from_config(gradtx.to_config(tx)) == tx


def test_where_the_rate_is_more_than_a_factor_a_negative_one_is_told_how_to_ascend():
    with pytest.raises(ValueError, match=r"to ascend, chain\(scale\(-1.0\), rprop\(...\)\)"):
        gradtx.rprop(-0.1)
    up = gradtx.chain(gradtx.scale(-1.0), gradtx.rprop(0.1))
    assert up.update(jnp.ones(1), up.init(jnp.zeros(1)), jnp.zeros(1))[0] > 0
