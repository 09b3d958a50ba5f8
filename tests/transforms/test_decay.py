"""Weight decay beside transcriptions of its papers."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle


def adam(g, slots, t, b1=0.9, b2=0.999, eps=1e-8):
    mu = slots["mu"] = b1 * slots.get("mu", 0) + (1 - b1) * g
    nu = slots["nu"] = b2 * slots.get("nu", 0) + (1 - b2) * g**2
    return mu / (1 - b1**t) / (np.sqrt(nu / (1 - b2**t)) + eps)


@pytest.mark.paper("add_cautious_decayed_weights")
def test_cautious_weight_decay_is_the_paper_s():
    tx = gradtx.chain(
        gradtx.scale_by_adam(),
        gradtx.add_cautious_decayed_weights(0.3),
        gradtx.scale_by_learning_rate(0.02),
    )

    def update(g, s, t, p):
        u = adam(g, s, t)
        return -0.02 * (u + 0.3 * (u * p >= 0) * p)

    oracle.check(tx, update)


def test_cautious_decay_of_some_leaves_by_a_schedule():
    tx = gradtx.add_cautious_decayed_weights(lambda count: 0.5 * (count + 1), mask="w")
    p = {"b": jnp.ones(1), "w": jnp.ones(1)}
    state = tx.init(p)
    for want in (1.5, 2.0):
        updates, state = tx.update(p, state, p)
        assert (float(updates["b"][0]), float(updates["w"][0])) == (1.0, want)
