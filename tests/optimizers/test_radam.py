"""RAdam against its paper, Optax and PyTorch."""

import jax
import numpy as np
import optax
import optax.contrib
import pytest

import gradtx
from tests import oracle
from tests.optimizers import papers


def mean(s, name, x, decay):
    s[name] = decay * s.get(name, 0.0) + (1 - decay) * x
    return s[name]


def radam(g, s, t, p, b1=0.9, b2=0.999):
    """Liu et al. 2020, algorithm 2, with the threshold 5."""
    m, v = mean(s, "m", g, b1) / (1 - b1**t), mean(s, "v", g * g, b2) / (1 - b2**t)
    end = 2 / (1 - b2) - 1
    rho = end - 2 * t * b2**t / (1 - b2**t)
    if rho < 5:
        return -0.01 * m
    r = np.sqrt((rho - 4) * (rho - 2) * end / ((end - 4) * (end - 2) * rho))
    return -0.01 * r * m / (np.sqrt(v) + 1e-8)


def test_radam_is_optaxs_in_double_precision():
    """In float32 Optax's length is off: its first adapted steps by 0.6 %."""
    with jax.enable_x64(True):
        p, gs = oracle.parameters(), oracle.gradients(steps=100)
        ours = oracle.run(gradtx.radam(0.01), p, gs, dtype=np.float64)
        theirs = oracle.run(optax.radam(0.01), p, gs, dtype=np.float64)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


@pytest.mark.parametrize("b2", [0.0, 0.5, 0.9, 0.999, 0.999999])
def test_radam_is_finite_for_every_decay(b2):
    path = oracle.run(gradtx.radam(0.01, b2=b2), oracle.parameters(), oracle.gradients())
    assert np.isfinite(path).all()


@pytest.mark.paper("radam")
def test_radam_is_the_papers():
    oracle.check(gradtx.radam(0.01), radam, rtol=1e-5, atol=1e-5)


@pytest.mark.library("radam")
def test_radam_is_pytorchs():
    # PyTorch's epsilon stands before its correction, which changes less than the tolerance.
    papers.beside_torch(gradtx.radam(0.01), lambda o, p: o.RAdam(p, lr=0.01), seed=3, atol=1e-5)
