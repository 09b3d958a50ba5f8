"""The radial brake, the radius that it keeps and the floor under updates, against the records."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests.optimizers.matrices import check, on_matrices


def braked(u, w):
    radial = np.sum(u * w) / np.sum(w * w) * w
    return u - radial + (0.3 if np.sum(u * w) > 0 else 0.8) * radial


def kept(u, w):
    size = np.linalg.norm(w)
    radius = max(0.0, size + np.sum(u * w) / size)
    return radius * (w + u) / np.linalg.norm(w + u) - w


def floored(u, w, axis):
    small, size = (np.linalg.norm(x, axis=axis, keepdims=True) for x in (u, w))
    return u * np.maximum(1, 0.4 * size / np.where(small == 0, np.inf, small))


def around(link, step):
    """The link after descent, and its transcription."""
    return gradtx.chain(gradtx.sgd(0.3), link), lambda g, s, t, p: step(-0.3 * g, p)


@pytest.mark.quick(3)
@pytest.mark.paper("radial_brake")
@on_matrices
def test_radial_brake(name, shape):
    check(*around(gradtx.radial_brake(0.3, 0.8), braked), name, shape)


@pytest.mark.quick(2)
@pytest.mark.paper("keep_radius")
@on_matrices
def test_keep_radius(name, shape):
    check(*around(gradtx.keep_radius(), kept), name, shape)


@pytest.mark.quick(5)
@pytest.mark.paper("floor_update_ratio")
@pytest.mark.parametrize(("each_output", "axis"), [(False, (0, 1)), (True, 0)])
@on_matrices
def test_floor_update_ratio(name, shape, each_output, axis):
    link = gradtx.floor_update_ratio(0.4, each_output=each_output)
    check(*around(link, lambda u, w: floored(u, w, axis)), name, shape)


def test_the_three_as_in_the_records():
    """Brake, floor, radius: the floor is seen, and the norm grows by the radial part alone."""
    w, u = jnp.array([[3.0, 0.0], [0.0, 4.0]]), jnp.array([[0.2, 0.1], [-0.1, 0.0]])
    tx = gradtx.chain(gradtx.radial_brake(), gradtx.floor_update_ratio(0.2), gradtx.keep_radius())
    new = w + tx.update(u, tx.init(w), w)[0]
    step = floored(np.asarray(u) - 0.5 * 0.6 / 25 * np.asarray(w), np.asarray(w), (0, 1))
    step *= 0.5  # the floor is 0.2 here
    assert np.linalg.norm(step) == pytest.approx(1.0)
    assert np.linalg.norm(new) == pytest.approx(5 + np.sum(step * np.asarray(w)) / 5, rel=1e-6)


@pytest.mark.slow
def test_what_is_no_matrix_or_has_no_size_is_left_alone():
    p = {"b": jnp.ones(3), "none": None, "w": jnp.zeros((2, 2))}
    u = jax.tree.map(lambda x: x + 0.5, p)
    for link in (gradtx.radial_brake(), gradtx.keep_radius(), gradtx.floor_update_ratio(9.0)):
        out = link.update(u, link.init(p), p)[0]
        assert jax.tree.map(lambda a, b: bool((a == b).all()), out, u) == {
            "b": True,
            "none": None,
            "w": True,
        }
