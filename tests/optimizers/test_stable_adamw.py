"""StableAdamW against its paper."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle


def moments(g, s, t, b1=0.9, b2=0.999):
    """Adam's moments, without and with the correction for their start at zero."""
    s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * g * g
    return s["m"] / (1 - b1**t), s["v"] / (1 - b2**t)


def stable_adamw(decay):
    """Wortsman et al. 2023, algorithm 2."""

    def update(g, s, t, p):
        m, v = moments(g, s, t, b2=0.99)
        rms = np.sqrt(np.mean(g * g / np.maximum(v, 1e-12)))
        return -0.01 / max(1.0, rms) * (m / (np.sqrt(v) + 1e-6) + decay * p)

    return update


@pytest.mark.paper("stable_adamw")
def test_stable_adamw_is_the_papers():
    oracle.check(gradtx.stable_adamw(0.01, weight_decay=0.1), stable_adamw(0.1))


@pytest.mark.parametrize(("mask", "decay"), [(True, 0.1), (False, 0.0)])
def test_stable_adamw_with_a_mask_decays_what_it_chooses(mask, decay):
    oracle.check(gradtx.stable_adamw(0.01, weight_decay=0.1, mask=mask), stable_adamw(decay))


def test_stable_adamw_shortens_a_step_after_a_jump():
    tx = gradtx.scale_by_stable_adamw()
    p = jnp.zeros(4)
    state = tx.init(p)
    for size in (1e-3, 1e-3, 1.0):
        updates, state = tx.update(jnp.full(4, size), state, p)
    adam = gradtx.scale_by_adam(b2=0.99)
    state = adam.init(p)
    for size in (1e-3, 1e-3, 1.0):
        plain, state = adam.update(jnp.full(4, size), state)
    assert float(jnp.max(updates / plain)) < 0.7
