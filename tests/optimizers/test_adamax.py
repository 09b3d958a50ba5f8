"""AdaMax against its paper and PyTorch."""

import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers import papers


def mean(s, name, x, decay):
    s[name] = decay * s.get(name, 0.0) + (1 - decay) * x
    return s[name]


def adamax(g, s, t, p, b1=0.9, b2=0.999):
    """Kingma and Ba 2015, algorithm 2."""
    m = mean(s, "m", g, b1)
    s["u"] = np.maximum(b2 * s.get("u", 0.0), np.abs(g) + 1e-8)
    return -0.01 / (1 - b1**t) * m / s["u"]


def adamaxw(g, s, t, p):
    return adamax(g, s, t, p) - 0.01 * 0.1 * p


@pytest.mark.paper("adamax")
def test_adamax_is_the_papers():
    oracle.check(gradtx.adamax(0.01), adamax, rtol=1e-5, atol=1e-5)


@pytest.mark.paper("adamaxw")
def test_adamaxw_is_the_papers():
    oracle.check(gradtx.adamaxw(0.01, weight_decay=0.1), adamaxw, rtol=1e-5, atol=1e-5)


@pytest.mark.library("adamax")
def test_adamax_is_pytorchs():
    papers.beside_torch(gradtx.adamax(0.01), lambda o, p: o.Adamax(p, lr=0.01), seed=3, atol=1e-5)
