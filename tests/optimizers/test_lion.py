"""Lion against the paper."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle

SHAPES = {
    "hard": np.sign,
    "smooth": lambda c: np.tanh(2.0 * c),
    "refined": lambda c: np.where(np.abs(c) < 1, c, np.sign(c)),
}


@pytest.mark.paper("lion")
@pytest.mark.parametrize("mode", SHAPES)
@pytest.mark.parametrize("b2", [0.99, 0.0])
def test_lion(mode, b2):
    """Chen et al. 2023, algorithm 2."""

    def update(g, s, t, p):
        m = s.get("m", 0.0)
        s["m"] = b2 * m + (1 - b2) * g
        return -0.01 * (SHAPES[mode](0.9 * m + 0.1 * g) + 0.1 * p)

    tx = gradtx.chain(
        gradtx.scale_by_lion(0.9, b2, mode=mode, smooth_beta=2.0),
        gradtx.add_decayed_weights(0.1),
        gradtx.scale_by_learning_rate(0.01),
    )
    oracle.check(tx, update)
    assert gradtx.lion(0.01, weight_decay=0.1).init(jnp.zeros(1))[0].mu.shape == (1,)
