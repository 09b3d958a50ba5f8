"""AdaBelief against its paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import look_ahead, mean


@pytest.mark.paper("adabelief")
@pytest.mark.parametrize(("nesterov", "decay"), [(False, None), (True, None), (False, 0.3)])
def test_adabelief_is_the_papers(nesterov, decay):
    """Zhuang et al. 2020, algorithm 2, with decoupled decay."""

    def update(g, s, t, p):
        m = mean(s, "m", g, 0.8)
        v = s["v"] = 0.7 * s.get("v", 0.0) + 0.3 * (g - m) ** 2 + 0.2
        m = look_ahead(m, g, t, 0.8) if nesterov else m / (1 - 0.8**t)
        return -0.05 * (m / (np.sqrt(v / (1 - 0.7**t)) + 0.1) + (decay or 0) * p)

    oracle.check(gradtx.adabelief(0.05, 0.8, 0.7, 0.1, 0.2, decay, nesterov=nesterov), update)


def test_decay_is_a_link_only_where_it_is_asked_for():
    """The states of before, and Optax's, have none; with a mask only the chosen leaves decay."""
    p = {"b": jnp.ones(2), "w": jnp.full(2, 3.0)}
    zero = jax.tree.map(jnp.zeros_like, p)
    assert len(gradtx.adabelief(0.1).init(p)) == 2
    tx = gradtx.adabelief(0.1, weight_decay=0.5, weight_decay_mask={"b": False, "w": True})
    updates, state = tx.update(zero, tx.init(p), p)
    assert len(state) == 3
    np.testing.assert_array_equal(updates["b"], 0)
    np.testing.assert_allclose(updates["w"], -0.15, rtol=1e-6)
