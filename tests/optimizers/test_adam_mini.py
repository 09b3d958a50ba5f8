"""Adam-mini against its paper."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import mean


@pytest.mark.paper("adam_mini")
@pytest.mark.parametrize(
    ("shape", "axis", "others"),
    [((4, 3), -1, 0), ((4, 3), 0, 1), ((4, 3), None, (0, 1)), ((2, 4, 3), 1, (0, 2)), ((5,), 0, 0)],
)
def test_adam_mini_is_the_papers(shape, axis, others):
    """Zhang et al. 2024, algorithm 1: Adam with the mean square of each block."""

    def update(g, s, t, p):
        m = mean(s, "m", g, 0.8) / (1 - 0.8**t)
        v = mean(s, "v", np.mean(g * g, axis=others, keepdims=True), 0.7) / (1 - 0.7**t)
        return -0.05 * (m / (np.sqrt(v) + 0.1) + 0.3 * p)

    tx = gradtx.adam_mini(0.05, 0.8, 0.7, 0.1, 0.3, block_axis=axis)
    oracle.check(tx, update, shape=shape)


def test_adam_mini_refuses_an_axis_that_a_leaf_has_not():
    tx = gradtx.adam_mini(0.01, block_axis=2)
    with pytest.raises(ValueError, match="block_axis"):
        tx.init(jnp.zeros((4, 3)))
