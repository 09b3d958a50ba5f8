"""Proximal maps against other libraries, dual problems and finite differences, in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import isotonic_regression, lsq_linear

from gradtx.transforms import penalties

RNG = np.random.default_rng(0)
RATE, STRENGTH = 0.5, 0.8


@pytest.fixture(autouse=True)
def _in_float64():
    with jax.enable_x64(True):
        yield


def shorter(x, axes):
    norm = np.sqrt(np.sum(np.abs(x) ** 2, axes, keepdims=True))
    return x * np.maximum(1 - RATE * STRENGTH / norm, 0)


def low_rank(x):
    u, s, v = np.linalg.svd(x, full_matrices=False)
    return u @ np.diag(np.maximum(s - RATE * STRENGTH, 0)) @ v


def denoised(x):
    """By its dual: min ||x - D'u|| with |u| at most the strength."""
    d = np.diff(np.eye(x.shape[-1]), axis=0)
    most = RATE * STRENGTH
    dual = [lsq_linear(d.T, row, (-most, most), method="bvls", tol=1e-14).x for row in x]
    return x - np.stack(dual) @ d


MAPS = {
    "l1": ({"strength": STRENGTH}, lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.4, 0)),
    "l2": ({"strength": STRENGTH}, lambda x: x / (1 + RATE * STRENGTH)),
    "elastic_net": (
        {"l1": STRENGTH, "l2": 3.0},
        lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.4, 0) / (1 + RATE * 3.0),
    ),
    "group_lasso": ({"strength": STRENGTH}, lambda x: shorter(x, (0, 1))),
    "group_lasso by row": ({"strength": STRENGTH, "groups": "row"}, lambda x: shorter(x, (1,))),
    "nuclear_norm": ({"strength": STRENGTH}, low_rank),
    "total_variation": ({"strength": STRENGTH}, denoised),
    "isotonic": ({}, lambda x: np.stack([isotonic_regression(row).x for row in x])),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MAPS)
def test_each_map_and_its_derivatives(name):
    arguments, expected = MAPS[name]
    function = functools.partial(penalties.PENALTIES[name.split()[0]], **arguments)
    x = RNG.normal(size=(3, 8)) * np.array([[1.0], [0.1], [3.0]])
    y = function({"a": jnp.asarray(x), "b": None}, RATE)
    assert y["b"] is None
    np.testing.assert_allclose(y["a"], expected(x), atol=1e-12)
    way, width = RNG.normal(size=x.shape), 1e-6
    at = lambda t: function(jnp.asarray(x) + t * way, RATE)  # noqa: E731
    exact = (at(width) - at(-width)) / (2 * width)
    np.testing.assert_allclose(jax.jvp(at, (0.0,), (1.0,))[1], exact, atol=1e-6)
    np.testing.assert_allclose(jax.jacrev(at)(0.0), exact, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*MAPS} - {"isotonic"}))
def test_the_derivative_by_the_strength_and_the_identity_at_the_rate_zero(name):
    arguments, _ = MAPS[name]
    function = functools.partial(penalties.PENALTIES[name.split()[0]], **arguments)
    x = jnp.asarray(RNG.normal(size=(3, 8)))
    np.testing.assert_allclose(function(x, 0.0), x, atol=1e-14)
    exact = (function(x, RATE + 1e-6) - function(x, RATE - 1e-6)) / 2e-6
    np.testing.assert_allclose(jax.jacfwd(function, 1)(x, RATE), exact, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 17, 60])
@pytest.mark.parametrize("strength", [0.01, 0.3, 2.0, 50.0])
def test_total_variation_and_isotonic_of_any_length(size, strength):
    x = np.cumsum(RNG.normal(size=(1, size)), -1) + RNG.normal(size=(1, size))
    d, most = np.diff(np.eye(size), axis=0), RATE * strength
    expected = x
    if size > 1:
        dual = lsq_linear(d.T, x[0], (-most, most), method="bvls", tol=1e-14)
        expected = x - dual.x @ d
    y = penalties.total_variation(jnp.asarray(x), RATE, strength)
    np.testing.assert_allclose(y, expected, atol=1e-9)
    same = penalties.isotonic(jnp.asarray(x), 0.0)
    np.testing.assert_allclose(same[0], isotonic_regression(x[0]).x, atol=1e-12)


@pytest.mark.slow
def test_zeros_and_empty_leaves():
    for name in ("l1", "group_lasso", "total_variation"):
        function = functools.partial(penalties.PENALTIES[name], strength=1.0)
        tree = {"a": jnp.zeros((2, 3)), "b": jnp.zeros((0, 3)), "c": jnp.zeros([])}
        assert jax.tree.map(lambda x: float(jnp.sum(x)), function(tree, 0.1)) == dict.fromkeys(
            "abc", 0.0
        )
        slope = jax.grad(lambda x, f=function: jnp.sum(f(x, 0.1)))(jnp.zeros((2, 3)))
        assert np.isfinite(slope).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: penalties.l1(x, 0.1, -1.0), "l1 must be a number of at least 0"),
        (lambda x: penalties.group_lasso(x, 0.1, 1.0, "column"), "groups must be 'leaf' or 'row'"),
        (lambda x: penalties.nuclear_norm(x, 0.1, 1.0), r"\(3,\), which is no matrix"),
        (lambda x: penalties.total_variation(x, 0.1, jnp.ones(2)), "strength must be a number"),
    ],
)
def test_what_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call(jnp.ones(3))


@pytest.mark.slow
def test_groups_of_any_size():
    def lasso(x, rate, strength):
        return penalties.group_lasso(jnp.array(x), rate, strength)

    np.testing.assert_allclose(lasso([3e-20, 4e-20], 0.0, 0.0), [3e-20, 4e-20], rtol=1e-6)
    np.testing.assert_allclose(lasso([3e20, 4e20], 1.0, 1e20), [2.4e20, 3.2e20], rtol=1e-6)
    assert np.isnan(lasso([np.nan, 1.0], 0.1, 0.1)).all()
    np.testing.assert_array_equal(lasso([0.0, 0.0], 0.1, 0.1), [0.0, 0.0])
    slope = jax.grad(lambda x: jnp.sum(penalties.group_lasso(x, 0.1, 0.1)))(jnp.zeros(2))
    np.testing.assert_array_equal(slope, [0.0, 0.0])
