"""CAME against its paper."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import mean


def factored(square, s, key, beta):
    """Shazeer and Stern 2018, algorithm 4, lines 6-8, of the last two axes."""
    r = mean(s, key + "r", square.mean(axis=-1, keepdims=True), beta)
    c = mean(s, key + "c", square.mean(axis=-2, keepdims=True), beta)
    return r * c / r.mean(axis=-2, keepdims=True)


@pytest.mark.paper("came")
@pytest.mark.parametrize("shape", [(4, 3), (2, 4, 3), (5,)])
def test_came_is_the_papers(shape):
    """Luo et al. 2023, algorithm 2; on a vector it is a clipped RMS with momentum."""

    def update(g, s, t, p):
        square = g * g + 0.1
        v = factored(square, s, "v", 0.7) if len(shape) > 1 else mean(s, "v", square, 0.7)
        u = g / np.sqrt(v)
        u = u / max(1.0, np.sqrt(np.mean(u * u)) / 0.5)
        d = m = mean(s, "m", u, 0.8)
        if len(shape) > 1:
            d = m / np.sqrt(factored((u - m) ** 2 + 0.2, s, "s", 0.6))
        return -0.05 * (d + 0.3 * p)

    tx = gradtx.came(0.05, 0.8, 0.7, 0.6, 0.1, 0.2, 0.5, 0.3)
    oracle.check(tx, update, rtol=3e-5, atol=1e-5, shape=shape)


@pytest.mark.parametrize(("shape", "full"), [((4, 1), (1,)), ((0, 3), (0, 3))])
def test_a_matrix_without_entries_is_not_factored(shape, full):
    tx, p = gradtx.scale_by_came(), jnp.ones(shape)
    updates, state = tx.update(p, tx.init(p), p)
    assert updates.shape == shape
    assert state.v.shape == full
