"""LAMB against its paper."""

import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import adam


@pytest.mark.paper("lamb")
@pytest.mark.parametrize(
    ("given", "mask", "decay"),
    [(0.0, None, 0.0), (0.3, None, 0.3), (0.3, True, 0.3), (0.3, False, 0.0)],
)
def test_lamb_is_the_papers(given, mask, decay):
    """You et al. 2020, algorithm 2."""

    def update(g, s, t, p):
        d = adam(g, s, t, 0.8, 0.7, 0.1, 0.2) + decay * p
        return -0.05 * np.linalg.norm(p) / np.linalg.norm(d) * d

    oracle.check(gradtx.lamb(0.05, 0.8, 0.7, 0.1, 0.2, given, mask), update)


def test_a_scheduled_decay_is_counted_where_optax_counts_it():
    tx = gradtx.lamb(0.1, weight_decay=gradtx.linear_schedule(0.1, 0.0, 5))
    assert tx.init(np.ones(2, np.float32))[1].count == 0


@pytest.mark.slow
def test_lamb_without_the_ratio_is_adamw():
    p, gs = oracle.parameters(), oracle.gradients()
    adamw = gradtx.chain(gradtx.scale_by_adam(eps=1e-6), gradtx.add_decayed_weights(0.1))
    rated = gradtx.chain(adamw, gradtx.scale_by_trust_ratio(), gradtx.scale_by_learning_rate(0.01))
    np.testing.assert_allclose(
        oracle.run(gradtx.lamb(0.01, weight_decay=0.1), p, gs),
        oracle.run(rated, p, gs),
        rtol=1e-6,
        atol=1e-7,
    )
