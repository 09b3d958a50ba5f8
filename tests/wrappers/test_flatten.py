"""Leaves as one vector."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx


def test_flatten_of_several_types_equals_the_leaves_alone():
    params = {"a": jnp.ones(2), "h": jnp.ones(3, jnp.bfloat16), "n": None}
    tx, alone = gradtx.flatten(gradtx.adam(0.1)), gradtx.adam(0.1)
    updates, _ = tx.update(params, tx.init(params), params)
    want, _ = alone.update(params, alone.init(params), params)
    jax.tree.map(np.testing.assert_array_equal, updates, want)
    no_gradient = {**params, "a": None}
    assert tx.update(no_gradient, tx.init(params), params)[0]["a"] is None
    with pytest.raises(TypeError, match="'a'"):
        rows = gradtx.Rows(jnp.array([0]), jnp.ones(1), (2,))
        tx.update({**params, "a": rows}, tx.init(params), params)
