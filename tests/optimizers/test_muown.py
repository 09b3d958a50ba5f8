"""Muown against its paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests.optimizers.matrices import COEFFICIENTS, check, on_matrices, orthogonal
from tests.optimizers.papers import adam, mean


def columns(x):
    return np.sqrt((x * x).sum(0))


@pytest.mark.quick(2)
@pytest.mark.paper("muown")
@pytest.mark.parametrize("nesterov", [False, True])
@on_matrices
def test_muown(name, shape, nesterov):
    """Lion et al. 2026, algorithm 1; decay is that of the sizes."""

    def update(g, s, t, p):
        v = s.setdefault("direction", p.copy())
        size = s.setdefault("size", columns(p))
        along = (g * p / size).sum(0)
        across = size / columns(v) * (g - along * p / size)
        m = mean(s, "m", across, 0.8)
        m = 0.8 * m + 0.2 * across if nesterov else m
        s["direction"] = v - 0.05 * 0.2 * np.sqrt(max(g.shape)) * orthogonal(m)
        s["size"] = size - 0.05 * (
            adam(along, s.setdefault("adam", {}), t, 0.7, 0.6, 0.1) + 0.4 * size
        )
        return s["size"] * s["direction"] / columns(s["direction"]) - p

    tx = gradtx.muown(
        0.05, 0.8, 0.7, 0.6, 0.1, 0.4, nesterov=nesterov, ns_coeffs=COEFFICIENTS, ns_steps=4
    )
    check(tx, update, name, shape)


@pytest.mark.slow
def test_sizes_and_directions_are_those_of_each_matrix():
    """Outputs first, stacked, and as heads."""
    w, g = (jnp.asarray(np.random.default_rng(i).normal(size=(4, 6)), jnp.float32) for i in (0, 1))

    def step(w, g, numbers):
        tx = gradtx.sizes_and_directions(gradtx.adam(0.1), gradtx.sgd(0.1), numbers)
        return tx.update(g, tx.init(w), w)[0]

    wanted = step(w, g, gradtx.MuonDimensionNumbers())
    turned = step(w.T, g.T, gradtx.MuonDimensionNumbers(1, 0)).T
    np.testing.assert_allclose(turned, wanted, rtol=1e-5, atol=1e-6)
    heads = step(w, g, gradtx.MuonDimensionNumbers(0, 1, heads=(1, 3)))
    np.testing.assert_allclose(heads, wanted, rtol=1e-5, atol=1e-6)
    batch = step(jnp.stack([w, g]), jnp.stack([g, w]), gradtx.MuonDimensionNumbers(1, 2))
    np.testing.assert_allclose(batch[0], wanted, rtol=1e-5, atol=1e-6)


def test_a_leaf_that_is_no_matrix_is_refused_by_its_path():
    tx = gradtx.sizes_and_directions(
        gradtx.sgd(0.1), gradtx.sgd(0.1), weight_dimension_numbers=gradtx.ByRole()
    )
    with pytest.raises(ValueError, match="dimension numbers of 'bias' are None"):
        tx.init({"bias": jnp.ones(3), "kernel": jnp.ones((2, 3))})


@pytest.mark.slow
def test_an_output_without_weights_can_get_some():
    w, g = jnp.zeros((3, 2)), jnp.ones((3, 2))
    tx = gradtx.muown(0.1)
    state = tx.init(w)
    for _ in range(3):
        updates, state = tx.update(g, state, w)
        w = gradtx.apply_updates(w, updates)
    assert bool(jnp.all(jnp.isfinite(w)) & jnp.all(w != 0))


def test_other_leaves_decay_too():
    p, g = {"b": jnp.array([2.0, -1.0])}, {"b": jnp.array([0.5, 0.25])}
    both = gradtx.muown(0.1, weight_decay=0.3), gradtx.adamw(0.1, weight_decay=0.3)
    np.testing.assert_array_equal(*(tx.update(g, tx.init(p), p)[0]["b"] for tx in both))


def test_a_vector_that_is_the_whole_tree_is_left_to_the_others():
    p, g = jnp.array([1.0, -2.0]), jnp.array([0.5, 0.25])
    tx, others = gradtx.muown(0.1), gradtx.adamw(0.1, weight_decay=0.0)
    want = others.update(g, others.init(p), p)[0]
    np.testing.assert_array_equal(tx.update(g, tx.init(p), p)[0], want)


def test_a_matrix_more_is_ten_equations():
    """Each leaf's own part is traced once for all that are alike, and called."""
    tx = gradtx.muown(0.1)

    def step(p, state, g):
        updates, state = tx.update(g, state, p)
        return gradtx.apply_updates(p, updates), state

    def traced(n):
        p = [jnp.ones((4, 6))] * n
        return len(jax.make_jaxpr(step)(p, jax.eval_shape(tx.init, p), p).jaxpr.eqns)

    # jax 0.8.0 broadcasts a number on its own before it multiplies by it.
    assert (traced(8) - traced(6)) / 2 in (10, 11)
