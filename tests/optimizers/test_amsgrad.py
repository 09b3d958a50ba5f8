"""AMSGrad against its paper and PyTorch."""

import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers import papers
from tests.optimizers.papers import moments


@pytest.mark.quick(5)
@pytest.mark.paper("amsgrad")
@pytest.mark.parametrize("of_m", [False, True])
@pytest.mark.parametrize(
    ("of_v", "largest_first"),
    [("none", False), ("none", True), ("before", False), ("after", True)],
)
@pytest.mark.parametrize("hat", [False, True])
def test_amsgrad_is_the_papers(of_m, of_v, largest_first, hat):
    """Reddi et al. 2018, algorithm 2, with bias corrections of both moments, of the second before
    or after the maximum is taken."""

    def update(g, s, t, p):
        corrected = moments(g, s, t, 0.8, 0.7)
        correction = 1 - 0.7**t
        m, v = corrected[0] if of_m else s["m"], corrected[1] if of_v == "before" else s["v"]
        s["max"] = np.maximum(s.get("max", 0.0), v)
        v = s["max"] / (correction if of_v == "after" else 1)
        corrected_eps = 0.1 / np.sqrt(correction) if hat and of_v != "none" else 0.1
        return -0.05 * m / (np.sqrt(v + 0.2) + corrected_eps)

    tx = gradtx.amsgrad(
        0.05,
        0.8,
        0.7,
        0.1,
        0.2,
        None,
        of_m,
        of_v != "none",
        max_before_correction=largest_first,
        epsilon_hat=hat,
    )
    oracle.check(tx, update)


@pytest.mark.library("amsgrad")
def test_amsgrad_is_pytorchs():
    papers.beside_torch(
        gradtx.amsgrad(0.01, max_before_correction=True),
        lambda o, p: o.Adam(p, lr=0.01, amsgrad=True),
        seed=3,
        atol=1e-5,
    )
