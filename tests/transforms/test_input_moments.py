"""Gradients times the inverse second moments of inputs, against the paper's formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle

DECAY, RIDGE, EPS, INITIAL, EVERY = 0.8, 0.5, 0.1, 0.3, 3
SAME = np.eye(4, dtype=np.float32)
STACKED = gradtx.MuonDimensionNumbers(1, 2)


def link(**options):
    return gradtx.scale_by_input_moments(DECAY, RIDGE, EPS, INITIAL, EVERY, **options)


def moments_of(steps, side, seed=5):
    """Second moments that have next to nothing in one direction."""
    z = np.random.default_rng(seed).normal(size=(steps, 9, side)) * np.linspace(3, 0.01, side)
    return np.einsum("tni,tnj->tij", z, z) / 9


class Preconditioner:
    """Du and Su 2026, algorithm 1, with the beginning of the authors' code."""

    def __init__(self, side):
        self.k, self.p = INITIAL * np.eye(side), np.eye(side)

    def at(self, t, moments):
        if t % EVERY == 0:
            self.k = DECAY * self.k + (1 - DECAY) * moments
            ridge = RIDGE * np.trace(self.k) / len(self.k) + EPS
            self.p = np.linalg.inv(self.k + ridge * np.eye(len(self.k)))
        return self.p


def run(tx, gs, moments):
    """The updates of parameters that stay zero, and the last state; each step has its moments."""

    def step(state, given):
        zeros = gradtx.tree.zeros_like(given[0])
        updates, state = tx.update(given[0], state, zeros, input_moments=given[1])
        return state, updates

    start = tx.init(jax.tree.map(lambda g: g[0], gs))
    state, updates = jax.jit(lambda: jax.lax.scan(step, start, (gs, moments)))()
    return updates, state


@pytest.mark.quick(1)
@pytest.mark.paper("scale_by_input_moments")
@pytest.mark.parametrize("shape", [(4, 3), (3, 4)])
def test_scale_by_input_moments(shape):
    gs = oracle.gradients(shape=shape, steps=8)
    moments = moments_of(8, shape[0])
    now = Preconditioner(shape[0])
    want = [now.at(t + 1, m) @ g for t, (g, m) in enumerate(zip(gs, moments, strict=True))]
    updates, state = run(link(), jnp.float32(gs), {"*": jnp.float32(moments)})
    np.testing.assert_allclose(updates, want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state.average[0], now.k, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_layers_and_blocks_are_those_by_themselves():
    """Two stacked layers whose four inputs are two blocks, beside four matrices."""
    gs = oracle.gradients(shape=(2, 4, 3), steps=4)
    z = np.random.default_rng(0).normal(size=(4, 2, 7, 4))
    of_inputs = jax.vmap(jax.vmap(lambda z: gradtx.input_moments(z, 2)))(jnp.float32(z))
    assert of_inputs.shape == (4, 2, 2, 2, 2)
    tx = link(block_size=2, weight_dimension_numbers=STACKED)
    updates, state = run(tx, jnp.float32(gs), {"": of_inputs})
    assert state.inverse.shape == (4, 2, 2)
    for layer in range(2):
        for block in range(2):
            rows = slice(2 * block, 2 * block + 2)
            alone, _ = run(
                link(), jnp.float32(gs[:, layer, rows]), {"*": of_inputs[:, layer, block]}
            )
            np.testing.assert_allclose(updates[:, layer, rows], alone, rtol=1e-5, atol=1e-6)
            whole = gradtx.input_moments(z[0, layer])[rows, rows]
            np.testing.assert_allclose(of_inputs[0, layer, block], whole, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_of_a_quadratic_loss_it_is_newtons_step(dtype):
    """Of the mean of the squares of `z W - y`, real or complex, to where it is least."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        x = rng.normal(size=shape)
        return (x + 1j * rng.normal(size=shape) if dtype == np.complex64 else x).astype(dtype)

    z, w, best = normal(50, 4), normal(4, 3), normal(4, 3)
    _, g = gradtx.compute_gradients(lambda w: jnp.sum(jnp.abs(z @ (w - best)) ** 2) / 100, w)
    tx = gradtx.scale_by_input_moments(0.0, 1e-6, 0.0, every=1)
    step, _ = tx.update(g, tx.init(w), input_moments={"*": gradtx.input_moments(z)})
    np.testing.assert_allclose(w - step, best, rtol=1e-3, atol=1e-4)


def test_what_is_measured_for_several_matrices_and_for_none():
    """Queries and keys share their inputs; the output's are not known, and a bias has none."""
    p = {"q": jnp.ones((2, 3)), "k": jnp.ones((2, 2)), "out": jnp.ones((2, 2)), "b": jnp.ones(2)}
    tx = gradtx.scale_by_input_moments(every=2)
    state = tx.init(p)
    moments = {"[qk]": jnp.diag(jnp.array([4.0, 1.0]))}
    updates, state = tx.update(p, state, input_moments=moments)
    jax.tree.map(np.testing.assert_array_equal, updates, p)  # the first of two steps
    updates, state = tx.update(p, state, input_moments=moments)
    ratio = np.asarray(updates["q"][0] / updates["q"][1])
    k = 0.95e-3 + 0.05 * np.array([4.0, 1.0])
    np.testing.assert_allclose(ratio, np.divide(*(k + 0.2 * k.mean())[::-1]), rtol=1e-4)
    np.testing.assert_array_equal(updates["q"][:, 0], updates["k"][:, 0])
    for name in ("out", "b"):
        np.testing.assert_array_equal(updates[name], p[name])
    kept = state
    for _ in range(2):  # without moments the inverse stays
        updates, state = tx.update(p, state)
    np.testing.assert_array_equal(state.inverse["q"], kept.inverse["q"])
    np.testing.assert_allclose(updates["q"][0] / updates["q"][1], ratio, rtol=1e-6)


def test_an_inverse_that_is_not_finite_is_the_identity():
    """Of one layer; the other is divided by its average and a fifth of that."""
    tx = gradtx.scale_by_input_moments(0.0, eps=0.0, every=1, weight_dimension_numbers=STACKED)
    g = jnp.ones((2, 2, 3))
    moments = {"*": jnp.stack([-jnp.eye(2), 4 * jnp.eye(2)])}
    updates, _ = tx.update(g, tx.init(g), input_moments=moments)
    np.testing.assert_array_equal(updates[0], g[0])
    np.testing.assert_allclose(updates[1], 1 / 4.8, rtol=1e-5)


def test_a_layer_with_one_input():
    tx, g = gradtx.scale_by_input_moments(0.5, 0.25, 0.5, 1.0, every=1), jnp.ones((1, 3))
    updates, state = tx.update(g, tx.init(g), input_moments={"*": jnp.full((1, 1), 3.0)})
    np.testing.assert_allclose(state.average, 2.0)
    np.testing.assert_allclose(updates, 1 / (2 + 0.5 + 0.5), rtol=1e-6)


def test_moments_are_means_over_all_axes_but_the_last():
    z = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    want = sum(np.outer(row, row) for row in z.reshape(6, 4)) / 6
    np.testing.assert_allclose(gradtx.input_moments(z), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("moments", "options", "problem"),
    [
        ({"c": jnp.eye(4)}, {}, "'c' matches no matrix"),
        ({"b": jnp.eye(4)}, {}, "'b' matches no matrix"),
        ({"a": SAME, "c": SAME}, {}, "'c' matches no matrix"),
        ({"a": jnp.eye(4), "*": jnp.eye(4)}, {}, r"'a' matches '\*' and 'a'"),
        ({"a": jnp.eye(3)}, {}, r"of 'a' have the shape \(3, 3\)"),
        ({"a": jnp.ones((2, 4, 4))}, {}, r"of 'a' have the shape \(2, 4, 4\)"),
        ({"a": jnp.eye(4), "c": None}, {}, "'c' matches no matrix"),
        ({"a": jnp.eye(4)}, {"block_size": 3}, "block_size=3 does not divide the 4 rows"),
        ({"a": jnp.eye(4)}, {"block_size": 2}, r"its 2 blocks have \(2, 2\) each"),
        ({"a": jnp.ones((2, 1, 2, 2))}, {"block_size": 2}, r"so that \(2, 2, 2\) would fit"),
    ],
)
def test_what_does_not_fit_is_refused(moments, options, problem):
    tx, p = gradtx.scale_by_input_moments(**options), {"a": jnp.ones((4, 3)), "b": jnp.ones(3)}
    with pytest.raises(ValueError, match=problem):
        tx.update(p, tx.init(p), input_moments=moments)


@pytest.mark.slow
def test_moments_of_another_group_or_of_a_frozen_leaf_are_left_to_them():
    """Each group is given all moments; None for moments is as none."""
    p = {"a": jnp.ones((2, 3)), "b": jnp.ones((2, 3)), "c": None}
    moments = {name: jnp.diag(jnp.array([4.0, 1.0])) for name in p}
    group = gradtx.scale_by_input_moments(every=1)
    tx = gradtx.partition({"a": group, "b": group}, {"a": "a", "b": "b", "c": "b"})
    updates, _ = tx.update(p, tx.init(p), input_moments=moments)
    want, _ = group.update(p, group.init(p), input_moments=moments)
    jax.tree.map(np.testing.assert_array_equal, updates, want)
    updates, _ = group.update(p, group.init(p), input_moments={**moments, "a": None})
    np.testing.assert_array_equal(updates["a"], p["a"])
    np.testing.assert_array_equal(updates["b"], want["b"])


@pytest.mark.slow
def test_a_side_that_is_not_longer_than_a_block_is_one_block():
    z = jnp.array([[1.0, 2.0], [3.0, 0.0]])
    for size in (2, 3):
        np.testing.assert_array_equal(gradtx.input_moments(z, size)[0], gradtx.input_moments(z))
    with pytest.raises(ValueError, match="block_size=2 does not divide 3 inputs"):
        gradtx.input_moments(jnp.ones((4, 3)), 2)
    for size in (None, 2):
        nothing = gradtx.input_moments(jnp.ones((4, 0)), size)
        g = jnp.ones((0, 3))
        tx = gradtx.scale_by_input_moments(every=1, block_size=size)
        assert tx.update(g, tx.init(g), input_moments={"*": nothing})[0].shape == (0, 3)


def test_what_is_no_dict_is_refused():
    tx, g = gradtx.scale_by_input_moments(), jnp.ones((4, 3))
    with pytest.raises(TypeError, match="input_moments must be a dict of moments by path"):
        tx.update(g, tx.init(g), input_moments=SAME)


def test_rows_of_a_table_are_refused():
    tx, p = gradtx.scale_by_input_moments(), jnp.ones((4, 3))
    rows = gradtx.Rows(jnp.array([1]), jnp.ones((1, 3)), (4, 3))
    with pytest.raises(TypeError, match="Rows"):
        tx.update(rows, tx.init(p))
