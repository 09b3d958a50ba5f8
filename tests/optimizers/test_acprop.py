"""ACProp against its paper."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import mean


@pytest.mark.paper("acprop")
@pytest.mark.parametrize("b1", [0.8, 0.3])
def test_acprop_is_the_papers(b1):
    """Zhuang et al. 2021, with the denominator of the step before."""

    def update(g, s, t, p):
        root = np.sqrt(s["v"] / (1 - 0.7 ** (t - 1))) if t > 1 else 1.0
        s["v"] = 0.7 * s.get("v", 0.0) + 0.3 * (g - s.get("m", 0.0)) ** 2 + 0.2
        mean(s, "m", g, b1)
        return -0.05 * (g / (root + 0.1) + 0.3 * p)

    oracle.check(gradtx.acprop(0.05, b1, 0.7, 0.1, 0.2, weight_decay=0.3), update)


@pytest.mark.slow
def test_a_row_that_is_new_has_no_second_moment_yet():
    """Its root is 1, as that of all entries is at the first step, and not that of epsilon."""
    tx = gradtx.scale_by_acprop()
    state = tx.init(jnp.zeros((2, 1)))
    for row in (0, 1):
        g = gradtx.Rows(jnp.array([row]), jnp.full((1, 1), 0.5), (2, 1))
        updates, state = tx.update(g, state)
        assert updates.values.tolist() == [[0.5]]
