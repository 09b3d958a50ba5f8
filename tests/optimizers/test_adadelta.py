"""Adadelta against its paper and PyTorch."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers import papers


@pytest.mark.library("adadelta")
def test_adadelta_is_pytorchs():
    papers.beside_torch(gradtx.adadelta(), lambda o, p: o.Adadelta(p, lr=1.0), seed=3, atol=1e-5)


def adadelta(g, s, t, p, rho=0.8, eps=0.1, inside=True):
    """Zeiler 2012, algorithm 1."""

    def root(x):
        return np.sqrt(x + eps) if inside else np.sqrt(x) + eps

    s["g"] = rho * s.get("g", 0.0) + (1 - rho) * abs(g) ** 2
    step = -root(s.get("x", 0.0)) / root(s["g"]) * g
    s["x"] = rho * s.get("x", 0.0) + (1 - rho) * abs(step) ** 2
    return step


PAPERS = {
    "alone": (lambda: gradtx.adadelta(None, 0.8, 0.1), adadelta),
    "epsilon outside": (
        lambda: gradtx.adadelta(0.5, 0.8, 0.1, 0.3, eps_in_sqrt=False),
        lambda g, s, t, p: 0.5 * adadelta(g + 0.3 * p, s, t, p, inside=False),
    ),
    "rho an array": (
        lambda: gradtx.adadelta(0.5, jnp.float32(0.8), 0.1),
        lambda g, s, t, p: 0.5 * adadelta(g, s, t, p, rho=float(np.float32(0.8))),
    ),
    "decay": (
        lambda: gradtx.adadelta(0.5, 0.8, 0.1, 0.3),
        lambda g, s, t, p: 0.5 * adadelta(g + 0.3 * p, s, t, p),
    ),
    "nothing kept": (
        lambda: gradtx.adadelta(0.5, 0.0, 0.1),
        lambda g, s, t, p: 0.5 * adadelta(g, s, t, p, rho=0.0),
    ),
}


@pytest.mark.paper("adadelta")
@pytest.mark.parametrize("name", PAPERS)
def test_adadelta_is_the_papers(name):
    make, update = PAPERS[name]
    oracle.check(make(), update, rtol=1e-5, atol=2e-5)


@pytest.mark.paper("adadelta")
def test_squares_of_complex_numbers_are_real():
    oracle.check(gradtx.adadelta(None, 0.8, 0.1), adadelta, dtype=np.complex64)


def test_adadelta_without_a_rate_descends():
    p = jnp.array([1.0, -2.0])
    updates, _ = gradtx.adadelta().update(p, gradtx.adadelta().init(p), p)
    assert (updates * p < 0).all()
