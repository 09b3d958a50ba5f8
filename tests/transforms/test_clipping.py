"""Clipping by value and by norms, against the formulas."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle


@pytest.mark.quick(1)
@pytest.mark.paper("clip", "clip_by_norm", "clip_by_block_rms")
@pytest.mark.parametrize("array", [False, True])
@pytest.mark.parametrize("shape", [(4, 3), ()])
def test_of_one_leaf(shape, array):
    limit = jnp.float32(1.5) if array else 1.5
    for tx, factor in (
        (gradtx.clip(limit), lambda g: np.clip(g, -1.5, 1.5) / np.where(g == 0, 1, g)),
        (
            gradtx.clip_by_norm(limit, stacked=True),
            lambda g: (
                1.5
                / np.maximum(1.5, np.sqrt(np.sum(g * g, tuple(range(1, g.ndim)), keepdims=True)))
            ),
        ),
        (gradtx.clip_by_norm(limit), lambda g: 1.5 / max(1.5, np.sqrt(np.sum(g * g)))),
        (gradtx.clip_by_block_rms(limit), lambda g: 1.5 / max(1.5, np.sqrt(np.mean(g * g)))),
    ):
        scaled = gradtx.chain(tx, gradtx.scale(-0.05))
        oracle.check(scaled, lambda g, s, t, p, f=factor: -0.05 * g * f(g), shape=shape)


@pytest.mark.paper("clip")
def test_parts_of_complex_numbers():
    g = jnp.array([1 + 2j, -3 + 0.5j], jnp.complex64)
    tx = gradtx.clip(1.5)
    updates, _ = tx.update(g, tx.init(g))
    np.testing.assert_allclose(updates, [1 + 1.5j, -1.5 + 0.5j])


def test_rows_have_the_norm_of_their_leaf_and_none_of_a_layer():
    rows = gradtx.Rows(jnp.array([1]), jnp.array([[3.0, 4.0]]), (5, 2))
    tx = gradtx.clip_by_norm(1.0)
    updates, _ = tx.update(rows, tx.init(jnp.zeros((5, 2))))
    np.testing.assert_allclose(updates.values, [[0.6, 0.8]], rtol=1e-6)
    tx = gradtx.clip_by_norm(1.0, stacked=True)
    with pytest.raises(TypeError, match="cannot run on the Rows"):
        tx.update(rows, tx.init(jnp.zeros((5, 2))))


@pytest.mark.paper("clip_by_global_norm")
@pytest.mark.parametrize("size", [0.1, 1.0])
def test_of_all_leaves(size):
    """Pascanu et al. 2013."""
    g = {"a": size * jnp.array([3.0, 0.0]), "b": size * jnp.array([4.0]), "c": None}
    tx = gradtx.clip_by_global_norm(2.0)
    updates, _ = tx.update(g, tx.init(g))
    factor = min(1.0, 2.0 / (5 * size))
    for name in "ab":
        np.testing.assert_allclose(updates[name], g[name] * factor, rtol=1e-6)
    assert updates["c"] is None


@pytest.mark.parametrize("limit", [1.5, 100.0])
def test_by_the_norm_of_the_last_step(limit):
    """The equation in float64, over a stream of gradients in two leaves."""
    rng, tx = np.random.default_rng(0), gradtx.clip_by_last_norm(limit)
    state, norm = tx.init({"a": jnp.zeros(3), "b": jnp.zeros((2, 2))}), 0.0
    for _ in range(5):
        g = {"a": rng.normal(size=3), "b": rng.normal(size=(2, 2))}
        given = {name: jnp.asarray(x, jnp.float32) for name, x in g.items()}
        updates, state = tx.update(given, state)
        factor = min(1.0, limit / norm) if norm else 1.0
        for name, x in g.items():
            np.testing.assert_allclose(updates[name], factor * x, rtol=1e-6)
        norm = np.sqrt(sum(np.sum(x * x) for x in g.values()))
        np.testing.assert_allclose(state.norm, norm, rtol=1e-6)


def test_two_passes_are_the_ordinary_clipping_where_gradients_are_there():
    g = {"a": jnp.array([3.0, 0.1]), "b": jnp.array([4.0])}
    one, two = gradtx.clip_by_global_norm(2.0), gradtx.clip_by_global_norm(2.0, two_pass=True)
    want, got = (tx.update(g, tx.init(g))[0] for tx in (one, two))
    given, _ = two.update(g, two.init(g), grad_norm=jnp.float32(10.0))
    for name, x in g.items():
        np.testing.assert_array_equal(got[name], want[name])
        np.testing.assert_allclose(given[name], x / 5, rtol=1e-6)


@pytest.mark.parametrize("limit", [0.0, jnp.float32(0.0)])
@pytest.mark.parametrize(
    "name", ["clip", "clip_by_norm", "clip_by_block_rms", "clip_by_global_norm"]
)
def test_a_limit_of_zero(name, limit):
    tx, g = getattr(gradtx, name)(limit), jnp.array([0.0, 2.0])
    np.testing.assert_array_equal(tx.update(g, tx.init(g))[0], 0)
    np.testing.assert_array_equal(tx.update(0 * g, tx.init(g))[0], 0)
