"""LARS against its paper."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle


@pytest.mark.paper("lars")
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("nesterov", [False, True])
def test_lars_is_the_papers(nesterov, decay):
    """You et al. 2017, algorithm 1, with the norm of the decayed gradient."""

    def update(g, s, t, p):
        d = g + decay * p
        step = 2.0 * 0.01 * np.linalg.norm(p) / (np.linalg.norm(d) + 0.5) * d
        s["m"] = 0.8 * s.get("m", 0.0) + step
        return -(step + 0.8 * s["m"]) if nesterov else -s["m"]

    oracle.check(gradtx.lars(2.0, decay, True, 0.01, 0.5, True, 0.8, nesterov), update)


@pytest.mark.paper("lars")
def test_lars_masks_choose_leaves():
    p = {"b": jnp.ones(2), "w": jnp.ones(2)}
    g = {"b": jnp.full(2, 3.0), "w": jnp.array([3.0, 4.0])}
    tx = gradtx.lars(1.0, 0.5, "b", trust_coefficient=0.5, trust_ratio_mask="w")
    updates, _ = tx.update(g, tx.init(p), p)
    np.testing.assert_allclose(updates["b"], -3.5)
    np.testing.assert_allclose(updates["w"], -0.5 * np.sqrt(2) * g["w"] / 5, rtol=1e-6)
