"""A slot that is overwritten when the parameters are new: the order changes no number."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.composition.chain import chain_reading_old

LINKS = (gradtx.scale_by_optimistic_gradient(), gradtx.scale_by_learning_rate(0.1))
PARAMS = {"a": jnp.arange(3.0), "b": jnp.ones((2, 2), jnp.bfloat16), "frozen": None}


def gradient(seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), p.dtype), PARAMS)


@pytest.mark.parametrize("params", [PARAMS, None], ids=["parameters", "none"])
def test_chain_reading_old_is_a_chain(params):
    kept, chained = chain_reading_old("previous_gradient", *LINKS), gradtx.chain(*LINKS)
    state = other = kept.init(PARAMS)
    for seed in range(3):
        updates, state = jax.jit(kept.update)(gradient(seed), state, params)
        expected, other = jax.jit(chained.update)(gradient(seed), other, params)
        chex.assert_trees_all_equal((updates, state), (expected, other))
        chex.assert_trees_all_equal_dtypes((updates, state), (expected, other))


def test_a_slot_is_kept_beside_a_parameter_that_is_not_a_number():
    kept = chain_reading_old("previous_gradient", *LINKS)
    params = {**PARAMS, "a": jnp.array([-jnp.inf, jnp.nan, jnp.inf])}
    _, state = jax.jit(kept.update)(gradient(0), kept.init(params), params)
    chex.assert_trees_all_equal(state[0].previous_gradient, gradient(0))
