"""Clipping the gradients of single examples."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx.transforms.per_example import clipped_mean
from tests.oracle import gradients

GS = jnp.asarray(gradients(), jnp.float32)


@pytest.mark.slow
@pytest.mark.parametrize("clip", [0.0, 0.7, 1e9])
def test_per_example_clips_like_optax(clip):
    grads = [GS[:5], GS[:5, 0]]
    for ours, theirs in (
        (gradtx.per_example_global_norm_clip, optax.per_example_global_norm_clip),
        (gradtx.per_example_layer_norm_clip, optax.per_example_layer_norm_clip),
    ):
        (total, count), (want, want_count) = ours(grads, clip), theirs(grads, clip)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), total, want
        )
        jax.tree.map(np.testing.assert_array_equal, count, want_count)
    with pytest.raises(ValueError, match="first"):
        gradtx.per_example_global_norm_clip([jnp.ones((2, 3)), jnp.ones((3, 3))], 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["per_example_global_norm_clip", "per_example_layer_norm_clip"])
def test_integers_are_promoted(name):
    g = [jnp.arange(6).reshape(3, 2), jnp.ones((3, 1), jnp.int32)]
    (got, clipped), (want, count) = (getattr(lib, name)(g, 1.5) for lib in (gradtx, optax))
    np.testing.assert_array_equal(clipped, count)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == jnp.float32
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    large = [100_000 * x for x in g]  # whose squares no int32 holds
    got, want = (
        getattr(gradtx, name)(x, 1.5)[0] for x in (large, [x.astype(float) for x in large])
    )
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("uniform", [False, True])
def test_layers_have_shares_of_the_limit(uniform):
    """McMahan et al. 2018, section 2.3: alike, or by the size of the layer."""
    grads = [np.asarray(GS[:5], np.float64), np.asarray(GS[:5, 0], np.float64)]
    total, count = gradtx.per_example_layer_norm_clip([GS[:5], GS[:5, 0]], 2.0, uniform)
    for x, got, clipped in zip(grads, total, count, strict=True):
        limit = 2.0 * np.sqrt(1 / 2 if uniform else x[0].size / 15)
        norms = np.sqrt(np.sum(x.reshape(5, -1) ** 2, axis=1))
        factors = np.minimum(1, limit / norms)
        np.testing.assert_allclose(got, np.tensordot(factors, x, 1), rtol=1e-5)
        assert int(clipped) == np.sum(factors < 1)


@pytest.mark.slow
def test_the_mean_of_clipped_examples():
    total, _ = gradtx.per_example_global_norm_clip([GS[:5]], 0.7)
    mean, count = clipped_mean([GS[:5]], 0.7)
    assert count == 5
    np.testing.assert_allclose(mean[0], total[0] / 5, rtol=1e-6)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("grads", "examples"), [([], 1), ([jnp.zeros((0, 2))], 0)])
def test_the_mean_of_nothing_is_zero(grads, examples):
    mean, count = clipped_mean(grads, 0.7)
    assert count == examples
    assert not any(x.any() for x in mean)


@pytest.mark.slow
def test_a_single_number_has_the_whole_limit():
    total, _ = gradtx.per_example_layer_norm_clip([jnp.array([[3.0]])], 1.0, uniform=False)
    np.testing.assert_allclose(total[0], [1.0], rtol=1e-6)


@pytest.mark.parametrize("limit", [None, 0.7])
def test_the_mean_of_examples(limit):
    g = {"a": GS[:5], "b": GS[:5, 0]}
    squares = sum(
        np.sum(np.square(x), tuple(range(1, x.ndim))) for x in map(np.asarray, g.values())
    )
    factor = 1.0 if limit is None else np.minimum(1, limit / np.sqrt(squares))
    tx = gradtx.per_example(limit)
    updates, _ = tx.update(g, tx.init({"a": GS[0], "b": GS[0, 0]}))
    for name, x in g.items():
        want = np.mean(np.moveaxis(np.float64(x), 0, -1) * factor, -1)
        np.testing.assert_allclose(updates[name], want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("limit", [None, 0.7])
def test_no_example_has_the_mean_zero(limit):
    """As a batch drawn example by example may have none."""
    tx = gradtx.per_example(limit)
    assert tx.update(jnp.zeros((0, 2)), tx.init(jnp.zeros(2)))[0].tolist() == [0.0, 0.0]
