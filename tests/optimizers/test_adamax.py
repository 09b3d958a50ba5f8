"""AdaMax against its paper and PyTorch."""

import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers import papers
from tests.optimizers.papers import mean


def adamax(g, s, t, inside=True):
    """Kingma and Ba 2015, algorithm 2."""
    m = mean(s, "m", g, 0.8)
    s["u"] = np.maximum(0.7 * s.get("u", 0.0), np.abs(g) + (0.1 if inside else 0.0))
    return m / (1 - 0.8**t) / (s["u"] + (0.0 if inside else 0.1))


@pytest.mark.paper("adamax")
@pytest.mark.parametrize("inside", [False, True])
def test_adamax_is_the_papers(inside):
    tx = gradtx.adamax(0.05, 0.8, 0.7, 0.1, eps_in_max=inside)
    oracle.check(tx, lambda g, s, t, p: -0.05 * adamax(g, s, t, inside))


@pytest.mark.paper("adamaxw")
def test_adamaxw_is_the_papers():
    tx = gradtx.adamaxw(0.05, 0.8, 0.7, 0.1, 0.3)
    oracle.check(tx, lambda g, s, t, p: -0.05 * (adamax(g, s, t) + 0.3 * p))


@pytest.mark.library("adamax")
def test_adamax_is_pytorchs():
    papers.beside_torch(gradtx.adamax(0.01), lambda o, p: o.Adamax(p, lr=0.01), seed=3, atol=1e-5)
