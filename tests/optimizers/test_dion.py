"""Dion2 and Dion3 against their paper and the authors' code."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests.optimizers.matrices import (
    COEFFICIENTS,
    check,
    check_named,
    on_matrices,
    orthogonal,
    scaled,
)

OPTIONS = {"weight_decay": 0.4, "ns_coeffs": COEFFICIENTS, "ns_steps": 4}


def chosen(m, axis):
    """Rows (0) or columns (1) with the largest sums, as an index of the matrix."""
    n = math.ceil(0.4 * m.shape[axis])
    found = np.sort(np.argsort(-np.abs(m).sum(1 - axis), kind="stable")[:n])
    return np.ix_(*(found if i == axis else np.arange(k) for i, k in enumerate(m.shape)))


def used(s, g, axis):
    """What of the momentum is used now, and where; its decay."""
    m = s["m"] = s.get("m", 0.0) + g
    k = chosen(m, axis)
    part = m[k]
    s["m"] = m.copy()
    s["m"][k] = 0.8 * part
    return k, part


def step(g, p, k, part):
    u = np.zeros_like(g)
    u[k] = part
    return -0.05 * (np.sqrt(g.shape[1] / g.shape[0]) * u + 0.4 * p)


@pytest.mark.quick(2)
@pytest.mark.paper("dion2")
@on_matrices
def test_dion2(name, shape):
    """Ahn et al. 2025, algorithm 1."""

    def update(g, s, t, p):
        k, part = used(s, g, 1 if g.shape[1] <= g.shape[0] else 0)
        return step(g, p, k, orthogonal(part))

    check(gradtx.dion2(0.05, 0.4, 0.8, 0.1, **OPTIONS), update, name, shape)


@pytest.mark.quick(1)
@pytest.mark.paper("dion3")
@on_matrices
def test_dion3(name, shape):
    """NorDion2 of https://github.com/microsoft/dion."""

    def update(g, s, t, p):
        k, part = used(s, g, 1)
        o = orthogonal(part)
        v = s.setdefault("v", np.zeros((1, g.shape[1])))
        columns = k[1].ravel()
        v[:, columns] = 0.7 * v[:, columns] + 0.3 * np.mean(o * o, axis=0)
        normed = scaled(o / (np.sqrt(v[:, columns]) + 0.1), np.sqrt(np.mean(o * o)))
        return step(g, p, k, normed)

    check(gradtx.dion3(0.05, 0.4, 0.8, 0.7, 0.1, **OPTIONS), update, name, shape)


@pytest.mark.slow
def test_what_waits_is_used_in_the_end():
    """Each column in turn, since those that were used are smaller then."""
    tx = gradtx.scale_by_dion2(0.25, 0.0)
    g = jnp.asarray(np.random.default_rng(0).choice([-1.0, 1.0], (6, 4)), jnp.float32)
    state, moved = tx.init(g), []
    for _ in range(4):
        u, state = tx.update(g, state)
        moved.append(int(np.flatnonzero(np.any(u != 0, axis=0))[0]))
    assert sorted(moved) == [0, 1, 2, 3]


@pytest.mark.parametrize("build", [gradtx.scale_by_dion2, gradtx.scale_by_dion3])
def test_the_fraction_decides_about_shapes(build):
    with pytest.raises(ValueError, match="fraction"):
        build(jnp.float32(0.5))


@pytest.mark.slow
@pytest.mark.parametrize("build", [gradtx.scale_by_dion2, gradtx.scale_by_dion3])
def test_coefficients_by_name(build):
    check_named(build)
