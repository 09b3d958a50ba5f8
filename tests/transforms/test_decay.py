"""Weight decay against transcriptions of its papers."""

import jax.numpy as jnp
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import adam


@pytest.mark.paper("add_decayed_weights")
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_weight_decay(decay):
    tx = gradtx.chain(gradtx.add_decayed_weights(decay), gradtx.scale(-0.05))
    oracle.check(tx, lambda g, s, t, p: -0.05 * (g + decay * p))


@pytest.mark.paper("add_cautious_decayed_weights")
def test_cautious_weight_decay_is_the_paper_s():
    """Chen et al. 2025."""
    tx = gradtx.chain(
        gradtx.scale_by_adam(0.8, 0.7, 0.1),
        gradtx.add_cautious_decayed_weights(0.3),
        gradtx.scale_by_learning_rate(0.05),
    )

    def update(g, s, t, p):
        u = adam(g, s, t, 0.8, 0.7, 0.1)
        return -0.05 * (u + 0.3 * (u * p >= 0) * p)

    oracle.check(tx, update)


def test_cautious_decay_of_some_leaves_by_a_schedule():
    tx = gradtx.add_cautious_decayed_weights(lambda count: 0.5 * (count + 1), mask="w")
    p = {"b": jnp.ones(1), "w": jnp.ones(1)}
    state = tx.init(p)
    for want in (1.5, 2.0):
        updates, state = tx.update(p, state, p)
        assert (float(updates["b"][0]), float(updates["w"][0])) == (1.0, want)
