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


def adadelta(g, s, t, p, rho=0.9, eps=1e-6, inside=True):
    """Zeiler 2012, algorithm 1."""

    def root(x):
        return np.sqrt(x + eps) if inside else np.sqrt(x) + eps

    s["g"] = rho * s.get("g", 0.0) + (1 - rho) * g * g
    step = -root(s.get("x", 0.0)) / root(s["g"]) * g
    s["x"] = rho * s.get("x", 0.0) + (1 - rho) * step * step
    return step


def madgrad(g, s, t, p, rate=0.01, momentum=0.9, eps=1e-6):
    """Defazio and Jelassi 2021, algorithm 1."""
    start = s.setdefault("start", p.copy())
    weight = (rate + eps) * np.sqrt(t)
    s["v"] = s.get("v", 0.0) + weight * g * g
    s["s"] = s.get("s", 0.0) + weight * g
    z = start - s["s"] / (np.cbrt(s["v"]) + eps)
    return (1 - momentum) * (z - p)


def rprop(g, s, t, p):
    """Riedmiller and Braun 1993, without taking steps back."""
    sign = np.sign(g) * np.sign(s.get("u", 0.0 * g))
    grown = np.clip(s.get("size", 0.01) * np.where(sign > 0, 1.2, 0.5), 1e-6, 50)
    s["size"] = np.where(sign == 0, s.get("size", 0.01), grown)
    s["u"] = np.where(sign < 0, 0.0, s["size"] * np.sign(g))
    return -s["u"]


def signum(g, s, t, p):
    """Bernstein et al. 2018, algorithm 2."""
    s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * g
    return -0.01 * np.sign(s["m"])


def optimistic(g, s, t, p):
    """Mokhtari et al. 2019."""
    before, s["g"] = s.get("g", g), g
    return -0.01 * (1.5 * g - 0.5 * before)


def optimistic_adam(g, s, t, p, b1=0.9, b2=0.999):
    """Daskalakis et al. 2018, algorithm 1, from Adam without Nesterov momentum."""
    s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * g * g
    a = s["m"] / (1 - b1**t) / (np.sqrt(s["v"] / (1 - b2**t)) + 1e-8)
    before, s["a"] = s.get("a", a), a
    return -2 * 0.01 * a + 0.01 * before


PAPERS = {
    "adadelta": (lambda: gradtx.adadelta(), adadelta),
    "adadelta, epsilon outside": (
        lambda: gradtx.adadelta(eps=1e-3, eps_in_sqrt=False),
        lambda g, s, t, p: adadelta(g, s, t, p, eps=1e-3, inside=False),
    ),
    "adadelta, rho an array": (
        lambda: gradtx.adadelta(rho=jnp.float32(0.9)),
        lambda g, s, t, p: adadelta(g, s, t, p, rho=float(np.float32(0.9))),
    ),
    "adadelta, decay": (
        lambda: gradtx.adadelta(weight_decay=0.1),
        lambda g, s, t, p: adadelta(g + 0.1 * p, s, t, p),
    ),
    "madgrad": (lambda: gradtx.madgrad(0.01), madgrad),
    "madgrad, a schedule": (
        lambda: gradtx.madgrad(gradtx.linear_schedule(0.02, 0.0, 50)),
        lambda g, s, t, p: madgrad(g, s, t, p, rate=0.02 * (1 - (t - 1) / 50)),
    ),
    "rprop": (lambda: gradtx.rprop(0.01), rprop),
    "signum": (lambda: gradtx.signum(0.01), signum),
    "optimistic": (lambda: gradtx.optimistic_gradient_descent(0.01, beta=0.5), optimistic),
    "optimistic_adam": (lambda: gradtx.optimistic_adam(0.01, nesterov=False), optimistic_adam),
    "optimistic_adam_v2": (
        lambda: gradtx.optimistic_adam_v2(0.01, nesterov=False),
        optimistic_adam,
    ),
}


def test_adadelta_without_a_rate_descends():
    p = jnp.array([1.0, -2.0])
    updates, _ = gradtx.adadelta().update(p, gradtx.adadelta().init(p), p)
    assert (updates * p < 0).all()


PAPERS = {
    "adadelta": (lambda: gradtx.adadelta(), adadelta),
    "epsilon outside": (
        lambda: gradtx.adadelta(eps=1e-3, eps_in_sqrt=False),
        lambda g, s, t, p: adadelta(g, s, t, p, eps=1e-3, inside=False),
    ),
    "rho an array": (
        lambda: gradtx.adadelta(rho=jnp.float32(0.9)),
        lambda g, s, t, p: adadelta(g, s, t, p, rho=float(np.float32(0.9))),
    ),
    "decay": (
        lambda: gradtx.adadelta(weight_decay=0.1),
        lambda g, s, t, p: adadelta(g + 0.1 * p, s, t, p),
    ),
}


@pytest.mark.paper("adadelta")
@pytest.mark.parametrize("name", PAPERS)
def test_adadelta_is_the_papers(name):
    make, update = PAPERS[name]
    oracle.check(make(), update, rtol=1e-5, atol=2e-5)
