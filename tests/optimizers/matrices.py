"""Matrices on which matrix optimizers are compared with float64: ordinary, hard and degenerate."""

import numpy as np

STEPS = 4


def with_singular_values(s, rows, columns, seed=0):
    """A matrix with these singular values, `rows` of them at most, between random bases."""
    rng = np.random.default_rng(seed)
    k = len(s)
    u, v = (np.linalg.qr(rng.normal(size=(n, k)))[0] for n in (rows, columns))
    return (u * np.asarray(s)) @ v.T


def conditioned(rows, columns, seed=0):
    """Singular values spread evenly, by their logarithms, over eight orders of magnitude."""
    k = min(rows, columns)
    return with_singular_values(np.logspace(0, -8, k), rows, columns, seed)


HARD = {
    "random": np.random.default_rng(1).normal(size=(6, 5)),
    "condition 1e8": conditioned(6, 5),
    "condition 1e8, wide": conditioned(4, 10),
    "rank 2": with_singular_values([3.0, 1.0], 5, 6),
    "zero": np.zeros((3, 4)),
    "1 x n": np.random.default_rng(2).normal(size=(1, 5)),
    "n x 1": np.random.default_rng(3).normal(size=(5, 1)),
}


def gradients(name, steps=STEPS):
    """The matrix of this name, larger and smaller and now and then of the other sign."""
    sizes = np.random.default_rng(4).normal(size=steps)
    return HARD[name] * sizes[:, None, None]
