"""Lion against the paper."""

import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import mean

SHAPES = {
    "hard": np.sign,
    "smooth": lambda c: np.tanh(2.0 * c),
    "refined": lambda c: np.where(np.abs(c) < 1, c, np.sign(c)),
}


def lion(g, s, b2, shape):
    """Chen et al. 2023, algorithm 2."""
    m = s.get("m", 0.0)
    mean(s, "m", g, b2)
    return shape(0.8 * m + 0.2 * g)


@pytest.mark.paper("lion")
@pytest.mark.parametrize("mode", SHAPES)
@pytest.mark.parametrize("b2", [0.7, 1e-9, 0.0])
def test_lion(mode, b2):
    rule = gradtx.scale_by_lion(0.8, b2, mode=mode, smooth_beta=2.0)
    tx = gradtx.chain(rule, gradtx.scale_by_learning_rate(0.05))
    oracle.check(tx, lambda g, s, t, p: -0.05 * lion(g, s, b2, SHAPES[mode]))


@pytest.mark.paper("lion")
def test_lion_decays():
    tx = gradtx.lion(0.05, 0.8, 0.7, weight_decay=0.3)
    oracle.check(tx, lambda g, s, t, p: -0.05 * (lion(g, s, 0.7, np.sign) + 0.3 * p))
