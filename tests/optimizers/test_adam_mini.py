"""Adam-mini against its paper."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle


@pytest.mark.paper("adam_mini")
@pytest.mark.parametrize("axis", [-1, 0, None])
def test_adam_mini_is_the_papers(axis):
    """Zhang et al. 2024, algorithm 1: Adam with the mean square of each block."""
    others = {-1: 0, 0: 1, None: (0, 1)}[axis]

    def update(g, s, t, p):
        s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * g
        s["v"] = 0.999 * s.get("v", 0.0) + 0.001 * np.mean(g * g, axis=others, keepdims=True)
        u = s["m"] / (1 - 0.9**t) / (np.sqrt(s["v"] / (1 - 0.999**t)) + 1e-8)
        return -0.01 * (u + 0.1 * p)

    oracle.check(gradtx.adam_mini(0.01, weight_decay=0.1, block_axis=axis), update)


def test_adam_mini_refuses_an_axis_that_a_leaf_has_not():
    tx = gradtx.adam_mini(0.01, block_axis=2)
    with pytest.raises(ValueError, match="block_axis"):
        tx.init(jnp.zeros((4, 3)))
