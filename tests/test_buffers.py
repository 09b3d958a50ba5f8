"""Hyperparameters that are arrays are no part of a state, whose buffers a step gives up."""

import jax
import jax.numpy as jnp
import pytest

import gradtx
from gradtx.checks import hyperparameter_range
from tests import test_contracts as contracts
from tests.quick import quick


def with_arrays(tx):
    """The transformation with each hyperparameter that may be one as an array, and these."""
    declaration, arrays = tx.declaration, {}
    for name, value in declaration.arguments.items():
        allowed = hyperparameter_range(declaration.builder.hints.get(name))
        if allowed is not None and type(value) in (int, float):
            array = jnp.asarray(value, jnp.int32 if allowed.integer else jnp.float32)
            try:
                gradtx.replace(tx, {name: array})
            except TypeError:  # a Python number alone
                continue
            arrays[name] = array
    return (gradtx.replace(tx, arrays) if arrays else tx), list(arrays.values())


def buffers(tree):
    arrays = [x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array)]
    plain = [x for x in arrays if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
    return {x.unsafe_buffer_pointer() for x in plain if x.size}


@pytest.mark.slow
@pytest.mark.parametrize("name", contracts.NAMES)
def test_a_state_keeps_no_hyperparameter_itself(name):
    tx, arrays = with_arrays(contracts.CATALOGUE[name].made)
    if not arrays:
        pytest.skip("no hyperparameter may be an array")
    assert not buffers(tx.init(contracts.params(name))) & buffers((tx, arrays))


FIRST = {
    "schedule_free": lambda: gradtx.schedule_free(gradtx.sgd(0.1), 0.1, b1=jnp.float32(0.9)),
    "local_sgd": lambda: gradtx.local_sgd(gradtx.sgd(0.1), jnp.int32(2), "data"),
    "dynamic_loss_scale": lambda: gradtx.dynamic_loss_scale(gradtx.sgd(0.1), jnp.float32(8.0)),
    "injected": lambda: gradtx.inject_hyperparams(gradtx.sgd)(learning_rate=jnp.float32(0.1)),
}


@pytest.mark.parametrize("name", quick(FIRST, "schedule_free", "injected"))
def test_a_second_run_of_the_same_optimizer(name):
    step = gradtx.make_step(lambda p: jnp.sum(p**2), FIRST[name]())
    for _ in range(2):
        p, state = jnp.ones(3), step.init(jnp.ones(3))
        for _ in range(2):
            p, state, _ = step(p, state)
        assert bool(jnp.all(jnp.abs(p) < 1))
