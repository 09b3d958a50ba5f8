"""Scaling and clipping by norms: of all updates, of units."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests import oracle


def test_normalizing_by_all_leaves_together():
    tx = gradtx.normalize_by_update_norm(2.0)
    g = {"a": jnp.array([3.0]), "b": jnp.array([4.0]), "c": None}
    updates, _ = tx.update(g, tx.init(g))
    np.testing.assert_allclose(updates["a"], [1.2], rtol=1e-5)
    np.testing.assert_allclose(updates["b"], [1.6], rtol=1e-5)
    assert updates["c"] is None


def test_normalizing_large_float16_updates():
    g = jnp.full(4, 3e4, jnp.float16)
    tx = gradtx.normalize_by_update_norm()
    np.testing.assert_allclose(tx.update(g, tx.init(g))[0], 0.5, rtol=1e-3)


SHAPES = [(), (3,), (1, 3), (4, 3), (2, 3, 4), (2, 3, 4, 5), (2, 1, 3, 2, 4)]


@pytest.mark.quick(2)
@pytest.mark.parametrize("shape", SHAPES)
def test_units_are_those_of_optax(shape):
    x = jnp.asarray(oracle.parameters(shape=shape), jnp.float32)
    np.testing.assert_allclose(
        gradtx.unitwise_norm(x), optax.transforms.unitwise_norm(x), rtol=1e-6
    )


@pytest.mark.slow
def test_units_by_axis():
    x = jnp.asarray(oracle.parameters(shape=(2, 3, 4)), jnp.float32)
    for axis in (1, (0, 2)):
        np.testing.assert_allclose(
            gradtx.unitwise_norm(x, axis),
            jnp.broadcast_to(optax.transforms.unitwise_norm(x, axis), x.shape),
            rtol=1e-6,
        )


def test_a_unit_of_many_dimensions_needs_an_axis():
    x = jnp.ones((2,) * 6)
    with pytest.raises(ValueError, match="axis"):
        gradtx.unitwise_norm(x)
    assert gradtx.unitwise_norm(x, 0).shape == x.shape


@pytest.mark.slow
@pytest.mark.paper("normalize_by_update_norm", "normalize", "adaptive_normalize")
def test_normalizing_is_the_papers():
    """Hazan et al. 2015; adaptive, Zhuang et al. 2019, as in Optax."""
    norm = np.linalg.norm

    def adaptive(g, p):
        size = abs(p) + 0.3
        return size**2 * g / norm(size * g)

    for tx, rule in (
        (
            gradtx.normalize_by_update_norm(1.5, 0.4),
            lambda g, p: 1.5 * g / (norm(g) + 0.4),
        ),
        (gradtx.normalize(), lambda g, p: g / norm(g)),
        (gradtx.adaptive_normalize(0.3), adaptive),
    ):
        scaled = gradtx.chain(tx, gradtx.scale(-0.05))
        oracle.check(scaled, lambda g, s, t, p, rule=rule: -0.05 * rule(g, p))


@pytest.mark.quick(2)
@pytest.mark.paper("adaptive_grad_clip")
@pytest.mark.parametrize(
    ("shape", "axes"), [((4, 3), 0), ((5,), 0), ((1, 5), (0, 1)), ((2, 3, 2, 4), (0, 1, 2))]
)
def test_adaptive_clipping_is_the_papers(shape, axes):
    """Brock et al. 2021, equation 3, over the columns of a matrix, or all but the last axis."""

    def size(x):
        return np.sqrt(np.sum(x * x, axis=axes, keepdims=True))

    def update(g, s, t, p):
        limit = 0.1 * np.maximum(size(p), 2.0)
        return -0.1 * g * np.where(size(g) > limit, limit / np.maximum(size(g), 1e-6), 1)

    for axis in (None, axes):
        tx = gradtx.chain(gradtx.adaptive_grad_clip(0.1, 2.0, axis), gradtx.scale(-0.1))
        oracle.check(tx, update, shape=shape)


def test_unitwise_clip_like_optax():
    rng = np.random.default_rng(0)
    n, c, g = (jnp.asarray(rng.random((4, 3)), jnp.float32) for _ in range(3))
    np.testing.assert_allclose(
        gradtx.unitwise_clip(n, c, g), optax.transforms.unitwise_clip(n, c, g), rtol=1e-6
    )


@pytest.mark.paper("adaptive_grad_clip")
def test_unitwise_clip_divides_by_no_less_than_its_bound():
    norms, limits = jnp.array([0.5, 3.0, 0.1]), jnp.array([0.2, 0.6, 0.2])
    got = gradtx.unitwise_clip(norms, limits, jnp.ones(3), 2.0)
    np.testing.assert_allclose(got, [0.1, 0.2, 1.0], rtol=1e-6)
