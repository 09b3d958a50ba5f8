"""Fira against its paper."""

import numpy as np
import pytest

import gradtx
from gradtx.optimizers.fira import tall
from tests.optimizers import matrix_trees
from tests.optimizers.papers import adam


def ratio(a, b):
    return np.where(b == 0, 0, a / np.where(b == 0, 1, b))


def norms(x, axis=1):
    return np.linalg.norm(x, axis=axis, keepdims=True)


def limited(x, s, growth):
    """The norm-growth limiter."""
    size = np.linalg.norm(x)
    new = min(size, growth * s["size"]) if s.get("size", 0) > 0 else size
    s["size"] = new
    return x * ratio(new, size)


@pytest.mark.slow
@pytest.mark.paper("fira")
def test_fira():
    """Chen et al. 2024, algorithm 1."""
    tx = gradtx.fira(0.05, 2, 7, 0.8, 0.7, 0.6, 0.1, 0.4, growth=1.1)

    def update(g, s, t, p):
        x = g if g.shape[0] >= g.shape[1] else g.T
        if (t - 1) % 7 == 0:
            s["p"] = np.linalg.svd(x, full_matrices=False)[2].T[:, :2]
        low = x @ s["p"]
        a = adam(low, s, t, 0.7, 0.6, 0.1)
        rest = ratio(norms(a), norms(low)) * (x - 0.8 * low @ s["p"].T)
        u = 0.8 * a @ s["p"].T + limited(rest, s, 1.1)
        return -0.05 * ((u if x is g else u.T) + 0.4 * p)

    def other(g, s, t, p):
        return -0.05 * (adam(g, s, t, 0.7, 0.6, 0.1) + 0.4 * p)

    matrix_trees.check(tx, update, other)


@pytest.mark.parametrize("shape", [(1, 6, 5), (7, 6, 5), (1, 5, 6), (7, 5, 6)])
def test_the_shorter_side_is_projected_however_many_matrices_there_are(shape):
    assert tall(np.zeros(shape)).shape == (shape[0], 6, 5)
