"""NovoGrad against its paper."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle


@pytest.mark.paper("novograd")
def test_novograd_is_the_papers():
    """Ginsburg et al. 2019, algorithm 1."""

    def update(g, s, t, p):
        square = np.sum(g * g)
        s["v"] = square if t == 1 else 0.25 * s["v"] + 0.75 * square
        s["m"] = 0.9 * s.get("m", 0.0) + (g / (np.sqrt(s["v"]) + 1e-6) + 0.1 * p)
        return -0.01 * s["m"]

    oracle.check(gradtx.novograd(0.01, weight_decay=0.1), update)


def test_novograd_keeps_one_number_for_each_leaf():
    state = gradtx.novograd(0.01).init({"w": jnp.zeros((4, 3), jnp.float16)})
    assert state[0].nu["w"].shape == ()
    assert state[0].nu["w"].dtype == jnp.float32
