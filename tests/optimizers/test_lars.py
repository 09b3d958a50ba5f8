"""LARS against its paper."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle


@pytest.mark.paper("lars")
@pytest.mark.parametrize("nesterov", [False, True])
def test_lars_is_the_papers(nesterov):
    """You et al. 2017, algorithm 1, with the norm of the decayed gradient."""

    def update(g, s, t, p):
        d = g + 0.1 * p
        step = 2.0 * 0.01 * np.linalg.norm(p) / (np.linalg.norm(d) + 1e-3) * d
        s["m"] = 0.9 * s.get("m", 0.0) + step
        return -(step + 0.9 * s["m"]) if nesterov else -s["m"]

    oracle.check(gradtx.lars(2.0, 0.1, True, 0.01, 1e-3, nesterov=nesterov), update)


def test_lars_masks_choose_leaves():
    p = {"b": jnp.ones(2), "w": jnp.ones(2)}
    g = {"b": jnp.full(2, 3.0), "w": jnp.full(2, 3.0)}
    tx = gradtx.lars(1.0, trust_coefficient=0.5, trust_ratio_mask="w")
    updates, _ = tx.update(g, tx.init(p), p)
    np.testing.assert_allclose(updates["b"], -3.0)
    np.testing.assert_allclose(updates["w"], -0.5)
