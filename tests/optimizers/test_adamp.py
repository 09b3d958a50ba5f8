"""AdamP against its paper."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import mean


def beside(x, p):
    """What remains of `x` beside `p`, and the magnitude of the cosine of their angle, by rows."""
    length = np.linalg.norm(p, axis=1, keepdims=True)
    unit = p / length
    size = np.linalg.norm(x, axis=1, keepdims=True)
    along = np.sum(unit * x, axis=1, keepdims=True)
    return x - unit * along, np.abs(along) / np.where(size > 0, size, 1)


@pytest.mark.quick(1)
@pytest.mark.paper("adamp")
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis", "delta", "kinds"),
    [
        ((4, 3), -1, 1.2, {"channels", "layer", "none"}),
        ((3, 4), 0, 1.2, {"channels", "layer", "none"}),
        ((2, 2, 3), 1, 1.0, {"channels", "layer", "none"}),
        ((4, 1), -1, 1.2, {"channels", "none"}),
        ((1, 3), -1, 1.2, {"channels"}),
        ((5,), -1, 1.2, {"none"}),
    ],
)
def test_adamp_is_the_papers(shape, axis, delta, kinds, nesterov):
    """Heo et al. 2021, algorithm 2, with the two views of the authors' code."""
    seen = set()

    def update(g, s, t, p):
        m, v = mean(s, "m", g, 0.8), mean(s, "v", g * g, 0.7) / (1 - 0.7**t)
        m = 0.8 * m + 0.2 * g if nesterov else m
        d, ratio, kind = m / (1 - 0.8**t) / (np.sqrt(v) + 0.1), 1.0, "none"
        if g.ndim > 1:
            turned = np.moveaxis(p, axis, 0)
            for name, rows in (("channels", len(turned)), ("layer", 1)):
                flat = [np.moveaxis(x, axis, 0).reshape(rows, -1) for x in (g, d, p)]
                if np.max(beside(flat[0], flat[2])[1]) < delta / np.sqrt(flat[2].shape[1]):
                    kept = beside(flat[1], flat[2])[0].reshape(turned.shape)
                    d, ratio, kind = np.moveaxis(kept, 0, axis), 0.4, name
                    break
        seen.add(kind)
        return -0.05 * (d + 0.3 * ratio * p)

    tx = gradtx.adamp(
        0.05, 0.8, 0.7, 0.1, 0.3,
        delta=delta, wd_ratio=0.4, nesterov=nesterov, channel_axis=axis,
    )  # fmt: skip
    oracle.check(tx, update, shape=shape)
    assert seen == kinds


def test_a_weight_that_the_mask_leaves_out_does_not_decay():
    p, g = np.float32([[1.0], [2.0]]), np.float32([[1.0], [2.0]])
    plain, masked = (gradtx.scale_by_adamp(**given) for given in ({}, {"weight_decay": 0.1}))
    masked = gradtx.replace(masked, mask=False)
    np.testing.assert_array_equal(*(tx.update(g, tx.init(p), p)[0] for tx in (plain, masked)))


@pytest.mark.slow
def test_the_length_of_a_weight_before_a_normalization_grows_only_by_the_curve():
    """Its gradient is orthogonal to it, and so is AdamP's step, whatever the momentum."""

    def loss(w):
        return jnp.sum((w / jnp.linalg.norm(w, axis=0)) * jnp.arange(12.0).reshape(4, 3))

    steps = gradtx.adamp(0.1)
    found = gradtx.solve(loss, jnp.ones((4, 3)), steps, max_steps=20).params
    plain = gradtx.solve(loss, jnp.ones((4, 3)), gradtx.adam(0.1), max_steps=20).params
    assert float(jnp.linalg.norm(found)) < 0.9 * float(jnp.linalg.norm(plain))


@pytest.mark.parametrize("p", [jnp.zeros((2, 3)), jnp.zeros((0, 3)), jnp.zeros((3, 0))])
def test_adamp_is_finite_where_nothing_has_a_direction(p):
    tx = gradtx.scale_by_adamp(weight_decay=0.1)
    for g in (jnp.zeros_like(p), jnp.ones_like(p)):
        assert bool(jnp.all(jnp.isfinite(tx.update(g, tx.init(p), p)[0])))
    shrunk = tx.update(jnp.zeros((2, 3)), tx.init(jnp.ones((2, 3))), jnp.ones((2, 3)))[0]
    np.testing.assert_allclose(shrunk, 0.01, rtol=1e-6)


def test_adamp_refuses_an_axis_that_a_leaf_has_not():
    tx = gradtx.adamp(0.01, channel_axis=2)
    with pytest.raises(ValueError, match="channel_axis"):
        tx.init(jnp.zeros((4, 3)))
