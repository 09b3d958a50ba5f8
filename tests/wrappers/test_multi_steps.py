"""Optax's class of many small steps, and the guards that it takes."""

import jax.numpy as jnp
import numpy as np
import optax

import gradtx
from tests.wrappers.windows import GS, run


def test_multi_steps_like_optax():
    for k in (3, lambda count: jnp.where(count < 2, 2, 4)):
        ours = gradtx.MultiSteps(gradtx.adam(0.1), k)
        theirs = optax.MultiSteps(optax.adam(0.1), k)
        (_, state), updates = run(ours, GS)
        (_, state_optax), want = run(theirs.gradient_transformation(), GS)
        np.testing.assert_allclose(updates, want, rtol=2e-5, atol=1e-6)
        assert int(state.gradient_step) == int(state_optax.gradient_step)
        assert int(state.mini_step) == int(state_optax.mini_step)
        assert bool(ours.has_updated(state)) == bool(theirs.has_updated(state_optax))
        assert state._fields == state_optax._fields
        np.testing.assert_allclose(state.acc_grads, state_optax.acc_grads, rtol=1e-6)
