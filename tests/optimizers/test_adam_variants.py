"""StableAdamW, LaProp, diffGrad, QHAdam, AdaBound, Tiger against the papers."""

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


def test_laprop_is_the_papers():
    """Ziyin et al. 2020, algorithm 1."""

    def update(g, s, t, p):
        s["n"] = 0.999 * s.get("n", 0.0) + 0.001 * g * g
        root = np.sqrt(s["n"] / (1 - 0.999**t)) + 1e-15
        s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * g / root
        return -0.01 * (s["m"] / (1 - 0.9**t) + 0.1 * p)

    oracle.check(gradtx.laprop(0.01, weight_decay=0.1), update)


def test_diffgrad_is_the_papers():
    def update(g, s, t, p):
        m, v = moments(g, s, t)
        friction = 1 / (1 + np.exp(-np.abs(s.get("g", 0.0) - g)))
        s["g"] = g
        return -0.01 * (friction * m / (np.sqrt(v) + 1e-8) + 0.1 * p)

    oracle.check(gradtx.diffgrad(0.01, weight_decay=0.1), update)


def test_qhadam_is_the_papers():
    """Ma and Yarats 2019, section 4."""

    def update(g, s, t, p):
        m, v = moments(g, s, t, b1=0.995)
        root = np.sqrt(0.2 * g * g + 0.8 * v)
        return -0.01 * ((0.3 * g + 0.7 * m) / (root + 1e-8) + 0.1 * p)

    oracle.check(gradtx.qhadam(0.01, nu2=0.8, weight_decay=0.1), update)


def test_qhadam_at_one_is_adam():
    p, gs = oracle.parameters(), oracle.gradients()
    np.testing.assert_allclose(
        oracle.run(gradtx.qhadam(0.01, b1=0.9, nu1=1.0), p, gs),
        oracle.run(gradtx.adam(0.01), p, gs),
        atol=1e-6,
    )


def adabound(gamma, rate=lambda t: 0.01, base=0.01):
    """Luo et al. 2019, algorithm 2, as in the authors' code."""

    def update(g, s, t, p):
        moments(g, s, t)
        final = 0.1 * rate(t) / base
        step = rate(t) * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) / (np.sqrt(s["v"]) + 1e-8)
        low, high = final * (1 - 1 / (gamma * t + 1)), final * (1 + 1 / (gamma * t))
        return -np.clip(step, low, high) * s["m"] - rate(t) * 0.1 * p

    return update


@pytest.mark.parametrize("gamma", [1e-3, 1.0])
def test_adabound_is_the_papers(gamma):
    oracle.check(gradtx.adabound(0.01, gamma=gamma, weight_decay=0.1), adabound(gamma))


def test_adabound_with_a_schedule_lowers_the_final_rate_too():
    schedule = gradtx.linear_schedule(0.01, 0.0, 50)
    tx = gradtx.adabound(schedule, gamma=0.1, weight_decay=0.1, base_lr=0.01)
    oracle.check(tx, adabound(0.1, lambda t: 0.01 * (1 - (t - 1) / 50)))
    with pytest.raises(ValueError, match="base_lr"):
        gradtx.adabound(schedule)


def test_tiger_is_the_authors():
    def update(g, s, t, p):
        s["m"] = 0.965 * s.get("m", 0.0) + 0.035 * g
        return -0.01 * (np.sign(s["m"]) + 0.1 * p)

    oracle.check(gradtx.tiger(0.01, weight_decay=0.1), update)


@pytest.mark.parametrize(
    "name", ["laprop", "diffgrad", "qhadam", "adabound", "stable_adamw", "adam_mini", "came"]
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_a_zero_gradient_takes_no_step(name, dtype):
    tx = getattr(gradtx, name)(0.01, eps=0.0, weight_decay=0.0)
    p = jnp.ones((2, 2), dtype)
    updates, _ = tx.update(jnp.zeros_like(p), tx.init(p), p)
    np.testing.assert_array_equal(updates.astype(jnp.float32), 0)
