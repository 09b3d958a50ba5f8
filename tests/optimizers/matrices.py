"""Matrices on which matrix optimizers are compared with float64: ordinary, hard and degenerate."""

import jax
import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import newton_schulz

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


def check_named(build):
    """Coefficients by name are those of as many iterations as are asked for."""
    g = np.asarray(HARD["random"], np.float32)
    found = []
    for coeffs in ("polar_express", gradtx.muon_coefficients("polar_express", 7)):
        tx = build(ns_coeffs=coeffs, ns_steps=7)
        _, state = tx.update(g, tx.init(g))  # some only choose a basis
        found.append(tx.update(g, state)[0])
    assert np.any(found[0])
    np.testing.assert_array_equal(*found)


COEFFICIENTS = (3.0, -4.0, 1.5)
MATRICES = [("ordinary", (4, 3)), ("ordinary", (3, 5)), *((name, None) for name in HARD)]
on_matrices = pytest.mark.parametrize(("name", "shape"), MATRICES)


def check(tx, update, name, shape):
    """Against the transcription, in float64, from parameters of which none is 0."""
    gs = gradients(name) if shape is None else oracle.gradients(shape=shape)
    p = oracle.parameters(shape=gs.shape[1:])
    with jax.enable_x64(True):
        got = oracle.run(tx, p, gs, np.float64)
    np.testing.assert_allclose(got, oracle.transcribe(update, p, gs), rtol=1e-8, atol=1e-8)


def orthogonal(x):
    return newton_schulz(x, [COEFFICIENTS] * 4)


def scaled(x, rms):
    """To this root mean square; zeros stay zeros."""
    size = np.linalg.norm(x)
    return x if size == 0 else rms * np.sqrt(x.size) * x / size
