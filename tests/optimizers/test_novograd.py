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
        s["v"] = square if t == 1 else 0.7 * s["v"] + 0.3 * square
        s["m"] = 0.8 * s.get("m", 0.0) + (g / (np.sqrt(s["v"] + 20.0) + 0.1) + 0.3 * p)
        return -0.05 * s["m"]

    oracle.check(gradtx.novograd(0.05, 0.8, 0.7, 0.1, 20.0, 0.3), update)


def test_novograd_keeps_one_number_for_each_leaf():
    state = gradtx.novograd(0.01).init({"w": jnp.zeros((4, 3), jnp.float16)})
    assert state[0].nu["w"].shape == ()
    assert state[0].nu["w"].dtype == jnp.float32
