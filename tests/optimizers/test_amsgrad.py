"""AMSGrad against its paper and PyTorch."""

import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers import papers


def mean(s, name, x, decay):
    s[name] = decay * s.get(name, 0.0) + (1 - decay) * x
    return s[name]


def amsgrad(g, s, t, p, b1=0.9, b2=0.999):
    """Reddi et al. 2018, algorithm 2: no bias correction."""
    m, v = mean(s, "m", g, b1), mean(s, "v", g * g, b2)
    s["max"] = np.maximum(s.get("max", 0.0), v)
    return -0.01 * m / (np.sqrt(s["max"]) + 1e-8)


@pytest.mark.paper("amsgrad")
def test_amsgrad_is_the_papers():
    oracle.check(
        gradtx.amsgrad(0.01, bias_correction_mu=False, bias_correction_nu=False),
        amsgrad,
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.library("amsgrad")
def test_amsgrad_is_pytorchs():
    papers.beside_torch(
        gradtx.amsgrad(0.01, max_before_correction=True),
        lambda o, p: o.Adam(p, lr=0.01, amsgrad=True),
        seed=3,
        atol=1e-5,
    )
