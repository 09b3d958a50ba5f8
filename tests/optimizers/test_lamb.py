"""LAMB against its paper."""

import numpy as np
import pytest

import gradtx
from tests import oracle


def adam(g, s, t, b1=0.9, b2=0.999, eps=1e-6):
    s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * g * g
    return s["m"] / (1 - b1**t) / (np.sqrt(s["v"] / (1 - b2**t)) + eps)


@pytest.mark.paper("lamb")
def test_lamb_is_the_papers():
    """You et al. 2020, algorithm 2."""

    def update(g, s, t, p):
        d = adam(g, s, t) + 0.1 * p
        return -0.01 * np.linalg.norm(p) / np.linalg.norm(d) * d

    oracle.check(gradtx.lamb(0.01, weight_decay=0.1), update)


def test_lamb_without_the_ratio_is_adamw():
    p, gs = oracle.parameters(), oracle.gradients()
    adamw = gradtx.chain(gradtx.scale_by_adam(eps=1e-6), gradtx.add_decayed_weights(0.1))
    rated = gradtx.chain(adamw, gradtx.scale_by_trust_ratio(), gradtx.scale_by_learning_rate(0.01))
    np.testing.assert_allclose(
        oracle.run(gradtx.lamb(0.01, weight_decay=0.1), p, gs),
        oracle.run(rated, p, gs),
        rtol=1e-6,
        atol=1e-7,
    )
