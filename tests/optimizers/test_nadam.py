"""Nadam against its paper and PyTorch."""

import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers import papers


def mean(s, name, x, decay):
    s[name] = decay * s.get(name, 0.0) + (1 - decay) * x
    return s[name]


def nadam(g, s, t, p, b1=0.9, b2=0.999, psi=4e-3):
    """Dozat 2016, with its schedule of the momentum."""
    now, ahead = (b1 * (1 - 0.5 * 0.96 ** (i * psi)) for i in (t, t + 1))
    s["product"] = s.get("product", 1.0) * now
    m, v = mean(s, "m", g, b1), mean(s, "v", g * g, b2)
    m = ahead * m / (1 - s["product"] * ahead) + (1 - now) * g / (1 - s["product"])
    return -0.01 * m / (np.sqrt(v / (1 - b2**t)) + 1e-8)


def test_nadam_without_a_schedule_is_adam_with_nesterov():
    p, gs = oracle.parameters(), oracle.gradients()
    want = oracle.run(gradtx.adam(0.01, nesterov=True), p, gs)
    np.testing.assert_array_equal(oracle.run(gradtx.nadam(0.01), p, gs), want)
    np.testing.assert_array_equal(oracle.run(gradtx.nadamw(0.01, weight_decay=0.0), p, gs), want)


def test_nadam_schedules_nesterov_momentum_only():
    with pytest.raises(ValueError, match="momentum_decay"):
        gradtx.nadam(0.01, nesterov=False, momentum_decay=4e-3)


@pytest.mark.paper("nadam")
def test_nadam_is_the_papers():
    oracle.check(gradtx.nadam(0.01, momentum_decay=4e-3), nadam, rtol=1e-5, atol=1e-5)


@pytest.mark.library("nadam")
def test_nadam_is_pytorchs():
    papers.beside_torch(
        gradtx.nadam(0.01, momentum_decay=4e-3), lambda o, p: o.NAdam(p, lr=0.01), seed=3, atol=1e-5
    )


def adam_step(g, s, t, b1=0.9, b2=0.999, eps=1e-8, nesterov=False):
    """Kingma and Ba 2015, algorithm 1; with Nesterov momentum, Dozat 2016."""
    s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * g * g
    m = s["m"] / (1 - b1**t)
    if nesterov:
        m = b1 * s["m"] / (1 - b1 ** (t + 1)) + (1 - b1) * g / (1 - b1**t)
    return m / (np.sqrt(s["v"] / (1 - b2**t)) + eps)


@pytest.mark.paper("nadamw")
def test_nadamw_is_adamw_that_looks_ahead():
    oracle.check(
        gradtx.nadamw(0.01, weight_decay=0.1),
        lambda g, s, t, p: -0.01 * (adam_step(g, s, t, nesterov=True) + 0.1 * p),
    )
