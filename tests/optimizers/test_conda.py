"""Conda against its paper."""

import numpy as np
import pytest

import gradtx
from tests.optimizers import matrix_trees
from tests.optimizers.papers import adam, mean


@pytest.mark.slow
@pytest.mark.paper("conda")
def test_conda():
    """Wang et al. 2025, algorithm 1."""
    tx = gradtx.conda(0.05, 0.7, 0.6, 0.1, 0.4, None, 7, 0.8)

    def update(g, s, t, p):
        x = g if g.shape[0] >= g.shape[1] else g.T
        m = mean(s, "m", x, 0.7)
        if (t - 1) % 7 == 0:
            s["q"] = np.linalg.svd(m, full_matrices=False)[2].T
        v = mean(s, "v", (x @ s["q"]) ** 2, 0.6) / (1 - 0.6**t)
        u = 0.8 * (m @ s["q"] / (1 - 0.7**t)) / (np.sqrt(v) + 0.1) @ s["q"].T
        return -0.05 * ((u if x is g else u.T) + 0.4 * p)

    def other(g, s, t, p):
        return -0.05 * (adam(g, s, t, 0.7, 0.6, 0.1) + 0.4 * p)

    matrix_trees.check(tx, update, other)
