"""Leaves as one vector."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx


def test_flatten_of_several_types_equals_the_leaves_alone():
    params = {
        "a": jnp.arange(2.0),
        "b": jnp.arange(4.0).reshape(2, 2),
        "h": jnp.arange(3, dtype=jnp.bfloat16),
        "n": None,
    }
    tx, alone = gradtx.flatten(gradtx.sgd(0.5, momentum=0.9)), gradtx.sgd(0.5, momentum=0.9)
    updates, _ = tx.update(params, tx.init(params), params)
    want, _ = alone.update(params, alone.init(params), params)
    jax.tree.map(np.testing.assert_array_equal, updates, want)
    no_gradient = {**params, "a": None}
    assert tx.update(no_gradient, tx.init(params), params)[0]["a"] is None
    with pytest.raises(TypeError, match="'a'"):
        rows = gradtx.Rows(jnp.array([0]), jnp.ones(1), (2,))
        tx.update({**params, "a": rows}, tx.init(params), params)
