"""Parameters that shrink."""

import numpy as np

import gradtx
from tests import oracle


def test_shrinking_after_any_optimizer():
    tx = gradtx.chain(gradtx.sgd(0.1), gradtx.shrink_params(0.03, 0.02))
    p, gs = oracle.parameters(), oracle.gradients()
    whole = gradtx.proximal_gradient_descent(0.1, 0.3, 0.2)
    np.testing.assert_allclose(oracle.run(tx, p, gs), oracle.run(whole, p, gs), atol=1e-6)
