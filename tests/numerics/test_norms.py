"""Norms of numbers whose squares overflow or vanish, and what is scaled by such norms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.numerics import Norm, norm, plain_rms, rms, root_mean_square, shrunk

SIZES = [1e-30, 1e-20, 1e-10, 1.0, 1e10, 1e20, 3e37]
SHAPE = np.float32([[3.0, -4.0, 1.0], [0.5, 2.0, -2.5]])


def length(x, axes=None):
    return np.sqrt(np.sum(np.asarray(x, np.float64) ** 2, axes, keepdims=axes is not None))


@pytest.mark.quick(1)
@pytest.mark.parametrize("axes", [None, 0, (1,), (-2, -1)])
def test_norms_of_every_size(axes):
    run = jax.jit(lambda x: norm(x, axes).number)
    mean = jax.jit(lambda x: root_mean_square(x, axes).number)
    for size in SIZES:
        x = np.float32(size) * SHAPE
        np.testing.assert_allclose(run(x), length(x, axes), rtol=1e-6)
        np.testing.assert_allclose(norm(x, axes).number, length(x, axes), rtol=1e-6)
        count = x.size / max(1, np.size(length(x, axes)))
        np.testing.assert_allclose(mean(x), length(x, axes) / count**0.5, rtol=1e-6)
    x = SHAPE * np.float32([1e-30, 1e30, 1.0])  # of every column by itself
    if axes == 0:
        np.testing.assert_allclose(run(x), length(x, axes), rtol=1e-6)


@pytest.mark.parametrize("size", [0.0, *SIZES])
def test_norms_of_single_entries(size):
    """XLA takes a sum of one term away, and would then square the scales by themselves."""
    for axes in (None, 0, (-2, -1)):
        x = jnp.full((1, 1), size)
        np.testing.assert_allclose(jax.jit(norm, static_argnums=1)(x, axes).number, size, rtol=1e-6)


def test_a_norm_above_all_numbers_has_parts():
    x = jnp.array([3e38, -3e38])
    found = jax.jit(norm)(x)
    assert found.number == jnp.inf
    want = length(x)
    np.testing.assert_allclose(float(found.value) * float(found.unit), want, rtol=1e-6)
    np.testing.assert_allclose(shrunk(x, found, 2.0), np.float64(x) / want * 2, rtol=1e-6)
    one = jnp.ones(2)
    np.testing.assert_array_equal(shrunk(one, norm(one), 2.0), one)
    of_number = shrunk(jnp.float32(2e38), Norm.of(jnp.float32(2e38)), 1.0)
    np.testing.assert_allclose(of_number, 1, rtol=1e-6)


@pytest.mark.slow
def test_what_is_not_finite_and_what_is_nothing():
    run = jax.jit(lambda x: norm(x).number)
    assert np.isnan(run(jnp.array([jnp.nan, 1e30])))
    assert run(jnp.array([jnp.inf, 1.0])) == jnp.inf
    assert run(jnp.zeros(3)) == run(jnp.zeros(0)) == rms(jnp.zeros(0)) == 0
    assert norm(jnp.array([3, 4])).number == 5
    assert norm(jnp.array([3e25 + 4e25j], jnp.complex64)).number == pytest.approx(5e25)


def test_ordinary_norms_keep_their_bits():
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    plain = jax.jit(lambda x: jnp.sqrt(jnp.sum(jnp.square(x))))
    for scale in (1e-12, 1.0, 1e12):
        y = np.float32(scale) * x
        assert jax.jit(lambda x: norm(x).number)(y) == plain(y)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 1e25, 1e-25])
def test_derivatives(scale):
    x = jnp.float32(scale) * jnp.array([3.0, 4.0])
    for function in (lambda x: norm(x).number, lambda x: gradtx.global_norm([x])):
        for derivative in (jax.jacfwd, jax.jacrev):
            np.testing.assert_allclose(jax.jit(derivative(function))(x), [0.6, 0.8], rtol=1e-6)
            np.testing.assert_array_equal(derivative(function)(jnp.zeros(2)), 0)
        second = jax.jit(jax.hessian(function))(x) * scale
        want = np.array([[0.64, -0.48], [-0.48, 0.36]]) / 5
        np.testing.assert_allclose(second, want, rtol=1e-5)
    np.testing.assert_array_equal(jax.grad(plain_rms)(jnp.zeros(2)), 0)


def test_vmapped_and_sharded_alike():
    x = np.float32([1e-25, 1.0, 1e25])[:, None] * np.float32([3.0, 4.0])
    got = jax.jit(jax.vmap(lambda x: norm(x).number))(x)
    np.testing.assert_allclose(got, length(x, 1)[:, 0], rtol=1e-6)


TO_NORM = {
    "clip_by_global_norm": lambda: gradtx.clip_by_global_norm(1.0),
    "clip_by_norm": lambda: gradtx.clip_by_norm(1.0),
    "clip_by_block_rms": lambda: gradtx.clip_by_block_rms(4.0**-0.5),
    "normalize": gradtx.normalize,
    "normalize_by_update_norm": lambda: gradtx.normalize_by_update_norm(eps=1e-36),
    "scale_by_trust_ratio": gradtx.scale_by_trust_ratio,
    "scale_by_lars": lambda: gradtx.scale_by_lars(trust_coefficient=1.0),
    "adaptive_grad_clip": lambda: gradtx.adaptive_grad_clip(1.0),
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", TO_NORM)
def test_updates_of_every_size(name, dtype):
    """The parameter's norm is 1."""
    tx, p = TO_NORM[name](), jnp.full(4, 0.5, dtype)
    run = jax.jit(tx.update)
    for size in (1e-30, 1e-20, 1.0, 1e20, 3e38):
        g = jnp.array([size, -size, size, 0.0], dtype)
        got = np.asarray(run(g, tx.init(p), p)[0], np.float64)
        wide = np.asarray(g, np.float64)
        want = wide / length(wide)
        if name.startswith(("clip", "adaptive")) and length(wide) < 1:
            want = wide
        np.testing.assert_allclose(got, want, rtol=1e-5 if dtype == jnp.float32 else 8e-3)


@pytest.mark.parametrize("name", ["projection_max_norm", "projection_unit_norm"])
def test_projections_of_every_size(name):
    for size in (1e-30, 1e20, 3e38):
        x = jnp.float32(size) * jnp.array([1.0, -1.0])
        want = np.float64([1, -1]) * 0.5**0.5
        if name == "projection_max_norm" and size < 1:
            want = np.asarray(x)
        got = getattr(gradtx.projections, name)(x, **({"max_value": 1.0} if "max" in name else {}))
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.slow
def test_examples_of_every_size():
    x = np.float32([1e-30, 1.0, 1e20, 3e38])[:, None] * np.float32([1.0, -1.0])
    total, clipped = gradtx.per_example_global_norm_clip([jnp.array(x[2:])], 1.0)
    np.testing.assert_allclose(total[0], 2 * 0.5**0.5 * np.array([1, -1]), rtol=1e-5)
    assert clipped == 2
    total, clipped = gradtx.per_example_layer_norm_clip([jnp.array(x[:1])], 1.0)
    np.testing.assert_allclose(total[0], x[0], rtol=1e-5)
    assert clipped[0] == 0


@pytest.mark.parametrize("size", [1e200, 1e-200, 1.0])
def test_float64_over_axes_under_jit(size):
    with jax.enable_x64(True):
        x = jnp.array([[3 * size, 1.0], [4 * size, 0.0]])
        found = jax.jit(lambda x: norm(x, 0).number)(x)
        np.testing.assert_allclose(found, [[5 * size, 1.0]], rtol=1e-12)
        mixed = jax.jit(gradtx.tree.global_norm)([x[:, 0], jnp.float32([0.0, 0.0])])
        np.testing.assert_allclose(mixed, 5 * size, rtol=1e-12)
