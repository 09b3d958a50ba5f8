"""Steps in proportion to the parameters."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle


@pytest.mark.quick(2)
@pytest.mark.paper("scale_by_param_block_norm", "scale_by_param_block_rms")
@pytest.mark.parametrize("least", [0.05, 9.0])
@pytest.mark.parametrize("shape", [(4, 3), (1,)])
def test_scaling_by_the_size_of_the_parameter(shape, least):
    for rule, size in (
        (gradtx.scale_by_param_block_norm, lambda p: max(np.linalg.norm(p), least)),
        (gradtx.scale_by_param_block_rms, lambda p: max(np.sqrt(np.mean(p * p)), least)),
    ):
        tx = gradtx.chain(rule(least), gradtx.scale(-0.01))
        oracle.check(tx, lambda g, s, t, p, size=size: -0.01 * size(p) * g, shape=shape)


@pytest.mark.paper("scale_by_trust_ratio")
def test_trust_ratio_is_one_where_a_norm_is_zero():
    tx = gradtx.scale_by_trust_ratio(trust_coefficient=0.5)
    zero, one = jnp.zeros(2), jnp.ones(2)
    for p, g in ((zero, one), (one, zero)):
        np.testing.assert_array_equal(tx.update(g, tx.init(p), p)[0], g)


@pytest.mark.paper("scale_by_trust_ratio")
@pytest.mark.parametrize("least", [0.0, 2.0, 5.0])
def test_trust_ratio_with_all_arguments(least):
    """You et al. 2017, algorithm 1."""

    def update(g, s, t, p):
        size, length = max(np.linalg.norm(p), least), max(np.linalg.norm(g), least)
        return -0.1 * size / (length + 0.1) * g

    tx = gradtx.scale_by_trust_ratio(least, 0.1, 0.1)
    oracle.check(gradtx.chain(tx, gradtx.scale(-1)), update)
