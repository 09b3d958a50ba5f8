"""Adagrad against the paper."""

import numpy as np

import gradtx
from tests import oracle


def test_adagrad():
    """Duchi et al. 2011, figure 1, diagonal, with an initial accumulator."""

    def update(g, s, t, p):
        s["sum"] = s.get("sum", 0.1) + g * g
        return -0.1 * g / np.sqrt(s["sum"] + 1e-7)

    oracle.check(gradtx.adagrad(0.1), update)


def test_without_initial_accumulator_a_zero_gradient_moves_nothing():
    tx = gradtx.scale_by_rss(0.0, 0.0)
    updates, _ = tx.update(np.zeros(2, np.float32), tx.init(np.zeros(2, np.float32)))
    np.testing.assert_array_equal(updates, 0)
