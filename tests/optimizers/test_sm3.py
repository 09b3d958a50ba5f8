"""SM3 against its paper."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle


@pytest.mark.paper("sm3")
@pytest.mark.parametrize("b2", [1.0, 0.9])
def test_sm3_is_the_papers(b2):
    """Anil et al. 2019, SM3-II, with a moving average as momentum."""

    def update(g, s, t, p):
        bound = np.minimum.outer(s.get("r", np.zeros(4)), s.get("c", np.zeros(3)))
        v = b2 * bound + (1 - b2 if b2 < 1 else 1) * g * g
        s["r"], s["c"] = v.max(axis=1), v.max(axis=0)
        u = np.where(v > 0, g / np.sqrt(v + 1e-8), 0.0)
        s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * u
        return -0.1 * s["m"]

    averaging = gradtx.chain(gradtx.scale_by_sm3(0.9, b2), gradtx.scale(-0.1))
    oracle.check(gradtx.sm3(0.1) if b2 == 1.0 else averaging, update)


def test_sm3_trains_scalars_with_a_schedule():
    tx = gradtx.sm3(gradtx.linear_schedule(0.1, 0.0, 10), momentum=0.0)
    p = jnp.zeros(())
    updates, state = tx.update(jnp.float32(4.0), tx.init(p), p)
    np.testing.assert_allclose(updates, -0.1, rtol=1e-6)
    np.testing.assert_allclose(state[0].mu[0], 16.0)
