"""Parameters that shrink."""

import numpy as np
import pytest

import gradtx
from tests import oracle


def test_shrinking_after_any_optimizer():
    tx = gradtx.chain(gradtx.sgd(0.1), gradtx.shrink_params(0.03, 0.02))
    p, gs = oracle.parameters(), oracle.gradients()
    whole = gradtx.proximal_gradient_descent(0.1, 0.3, 0.2)
    np.testing.assert_allclose(oracle.run(tx, p, gs), oracle.run(whole, p, gs), atol=1e-6)


@pytest.mark.paper("shrink_params")
def test_shrinking_is_the_proximal_step():
    def update(g, s, t, p):
        q = p - 0.05 * g
        return np.sign(q) * np.maximum(abs(q) - 0.03, 0) / (1 + 0.2) - p

    oracle.check(gradtx.chain(gradtx.sgd(0.05), gradtx.shrink_params(0.03, 0.2)), update)
