"""KL-Shampoo and KL-SOAP against their paper and its authors' code."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests.optimizers import matrix_trees
from tests.optimizers.papers import adam, mean


def of_kl(b1, b2, eps, every, start, largest, direction, most=4000):
    """Lin et al. 2025, with the bases and limits of their code; `direction` in the bases."""

    def update(g, s, t, p):
        has = [n <= largest for n in g.shape]
        floors = [1 / max(10, min(n, most)) ** 2 for n in g.shape]
        if t == 1:
            s["values"] = [
                np.full(n, start if h else 1.0) for n, h in zip(g.shape, has, strict=True)
            ]
        bases = s.setdefault("bases", [np.eye(n) for n in g.shape])
        values, (rows, columns) = s["values"], g.shape
        old = s.get("factors", [0.0, 0.0])
        if t == 1 and any(has):
            s["factors"] = [(1 - b2) * g @ g.T / columns, (1 - b2) * g.T @ g / rows]
            s["bases"] = [
                np.linalg.eigh(f)[1][:, ::-1] if h else b
                for f, b, h in zip(s["factors"], bases, has, strict=True)
            ]
            return np.zeros_like(g)
        k = t - any(has)
        h = bases[0].T @ g @ bases[1]
        u = bases[0] @ direction(h, s, k, *values) @ bases[1].T
        whitened = [bases[i] @ np.diag(1 / values[i]) @ bases[i].T for i in range(2)]
        new = [g @ whitened[1] @ g.T / columns, g.T @ whitened[0] @ g / rows]
        s["factors"] = [b2 * f + (1 - b2) * x for f, x in zip(old, new, strict=True)]
        seen = [np.mean(h**2 / values[1], axis=1), np.mean(h**2 / values[0][:, None], axis=0)]
        s["values"] = [
            np.maximum(b2 * v + (1 - b2) * x, low) if keep else v
            for v, x, low, keep in zip(values, seen, floors, has, strict=True)
        ]
        if k % every == 0:
            s["bases"] = [
                np.linalg.qr(f @ b)[0] if keep else b
                for f, b, keep in zip(s["factors"], bases, has, strict=True)
            ]
        turns = [new.T @ b for new, b in zip(s["bases"], bases, strict=True)]
        s["m"] = turns[0] @ s["m"] @ turns[1].T
        return u

    return update


def check(tx, b1, b2, eps, decay, every, start, direction, correction=True):
    update = of_kl(b1, b2, eps, every, start, 5, direction)

    def other(g, s, t, p):
        if correction:
            return -0.05 * (adam(g, s, t, b1, b2, eps) + decay * p)
        m, v = mean(s, "m", g, b1), mean(s, "v", g * g, b2)
        return -0.05 * (m / (np.sqrt(v) + eps) + decay * p)

    matrix_trees.check(tx, lambda g, s, t, p: -0.05 * (update(g, s, t, p) + decay * p), other)


@pytest.mark.slow
@pytest.mark.paper("kl_shampoo")
def test_kl_shampoo():
    def direction(h, s, k, left, right):
        return mean(s, "m", h, 0.7) / (np.sqrt(np.outer(left, right)) + 0.1)

    tx = gradtx.kl_shampoo(0.05, 0.7, 0.8, 0.1, 0.3, None, 3, 5, 0.3)
    check(tx, 0.7, 0.8, 0.1, 0.3, 3, 0.3, direction)


@pytest.mark.slow
@pytest.mark.paper("kl_soap")
@pytest.mark.parametrize("correction", [True, False])
def test_kl_soap(correction):
    def direction(h, s, k, left, right):
        m, v = mean(s, "m", h, 0.7), mean(s, "v", h * h, 0.8)
        if correction:
            m, v = m / (1 - 0.7**k), v / (1 - 0.8**k)
        return m / (np.sqrt(v) + 0.1)

    tx = gradtx.kl_soap(0.05, 0.7, 0.8, 0.1, 0.3, None, 3, 5, 0.3, bias_correction=correction)
    check(tx, 0.7, 0.8, 0.1, 0.3, 3, 0.3, direction, correction)


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [
        gradtx.scale_by_kl_shampoo,
        gradtx.scale_by_kl_soap,
        functools.partial(gradtx.kl_shampoo, 0.1),
        functools.partial(gradtx.kl_soap, 0.1),
    ],
    ids=["scale_by_kl_shampoo", "scale_by_kl_soap", "kl_shampoo", "kl_soap"],
)
@pytest.mark.parametrize("most", [11.0, 5.0])
def test_the_largest_inverse_root_is_a_limit(build, most):
    """At size 12 it may be 11; sides of up to 10 may have 10 in any case."""
    rng = np.random.default_rng(0)
    tx = build(b2=0.0, max_inverse_root=most)
    g = [jnp.asarray(1e-6 * rng.normal(size=(n, 2)), jnp.float32) for n in (3, 12)]
    state = tx.init(g)
    for _ in range(2):
        _, state = tx.update(g, state, g)
    found = [float(x.min()) for x in gradtx.get_slot(state, "left_values")]
    np.testing.assert_allclose(found, [1 / 100, 1 / max(most, 10) ** 2], rtol=1e-6)


@pytest.mark.slow
def test_the_first_factors_are_means_over_the_other_side():
    """Bases and values would be the same if all factors were larger."""
    g = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    tx = gradtx.scale_by_kl_shampoo(b2=0.75)
    _, state = tx.update(g, tx.init(g))
    np.testing.assert_allclose(state.left[0], 0.25 * g @ g.T / 3, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state.right[0], 0.25 * g.T @ g / 4, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.library("kl_shampoo", "kl_soap")
@pytest.mark.parametrize(
    ("name", "tx"),
    [
        ("kl_shampoo", lambda: gradtx.kl_shampoo(0.01, eps=1e-3, precondition_frequency=4)),
        (
            "kl_soap",
            lambda: gradtx.kl_soap(
                0.01, eps=1e-12, precondition_frequency=4, bias_correction=False
            ),
        ),
    ],
)
def test_they_are_their_authors(name, tx):
    """https://github.com/yorkerlin/KL-Methods, on a CPU."""
    matrix_trees.check_golden(tx(), name)
