"""Parameters that stay in a set."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle


def test_parameters_stay_nonnegative():
    p = jnp.array([1.0, 0.1])
    tx = gradtx.keep_params_nonnegative()
    updates, _ = tx.update(jnp.array([-2.0, 0.1]), tx.init(p), p)
    assert float(jnp.min(p + updates)) == 0.0


@pytest.mark.paper("keep_params_nonnegative")
def test_parameters_stop_at_zero():
    tx = gradtx.chain(gradtx.sgd(0.05), gradtx.keep_params_nonnegative())
    oracle.check(tx, lambda g, s, t, p: np.maximum(p - 0.05 * g, 0) - p)
