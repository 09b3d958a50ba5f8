"""A rate that falls where a loss stays."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests.oracle import parameters

P = jnp.asarray(parameters(), jnp.float32)


def scales(tx, values):
    state, found = tx.init(P), []
    for value in values:
        _, state = tx.update(P, state, value=value)
        found.append(float(state.scale))
    return found


def test_plateau():
    values = [3.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    ours = gradtx.reduce_on_plateau(0.5, 2, cooldown=1, min_scale=0.2)
    theirs = optax.contrib.reduce_on_plateau(0.5, 2, cooldown=1, min_scale=0.2)
    np.testing.assert_allclose(scales(ours, values), scales(theirs, values))
    negative = gradtx.reduce_on_plateau(0.5, 2)
    assert scales(negative, [-3.0] * 4)[-1] == 0.5
    highest = gradtx.reduce_on_plateau(0.5, 2, mode="max")
    assert scales(highest, [1.0, 2.0, 3.0, 4.0])[-1] == 1.0
    assert scales(highest, [4.0, 3.0, 2.0])[-1] == 0.5
    with pytest.raises(ValueError, match="metric"):
        ours.update(P, ours.init(P))
