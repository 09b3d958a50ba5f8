"""Steps in proportion to the parameters."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle


@pytest.mark.parametrize(
    ("ours", "size"),
    [
        (gradtx.scale_by_param_block_norm(0.5), lambda p: max(np.linalg.norm(p), 0.5)),
        (gradtx.scale_by_param_block_rms(0.5), lambda p: max(np.sqrt(np.mean(p * p)), 0.5)),
    ],
)
def test_scaling_by_the_size_of_the_parameter(ours, size):
    tx = gradtx.chain(ours, gradtx.scale(-0.01))
    oracle.check(tx, lambda g, s, t, p: -0.01 * size(p) * g)


def test_trust_ratio_is_one_where_a_norm_is_zero():
    tx = gradtx.scale_by_trust_ratio(trust_coefficient=0.5)
    zero, one = jnp.zeros(2), jnp.ones(2)
    for p, g in ((zero, one), (one, zero)):
        np.testing.assert_array_equal(tx.update(g, tx.init(p), p)[0], g)


def test_trust_ratio_with_all_arguments():
    def update(g, s, t, p):
        size, length = max(np.linalg.norm(p), 2.0), max(np.linalg.norm(g), 2.0)
        return -0.1 * size / (length + 0.1) * g

    oracle.check(gradtx.chain(gradtx.scale_by_trust_ratio(2.0, 0.1, 0.1), gradtx.scale(-1)), update)
