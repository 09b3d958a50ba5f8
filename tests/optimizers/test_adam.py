"""Adam and AdamW against the papers, and the identities between them."""

# Sees mutants of: step.

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import adam


@pytest.mark.paper("adam")
@pytest.mark.parametrize("hat", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_adam_is_the_papers(nesterov, hat):
    tx = gradtx.adam(0.05, 0.8, 0.7, 0.1, 0.2, nesterov=nesterov, epsilon_hat=hat)
    oracle.check(tx, lambda g, s, t, p: -0.05 * adam(g, s, t, 0.8, 0.7, 0.1, 0.2, nesterov, hat))


@pytest.mark.paper("adamw")
@pytest.mark.parametrize("options", [False, True])
def test_adamw_is_the_papers(options):
    """Loshchilov and Hutter 2019, algorithm 2."""

    def update(g, s, t, p):
        return -0.05 * (adam(g, s, t, 0.8, 0.7, 0.1, 0.2, options, options) + 0.3 * p)

    tx = gradtx.adamw(
        0.05, 0.8, 0.7, 0.1, 0.2, weight_decay=0.3, nesterov=options, epsilon_hat=options
    )
    oracle.check(tx, update)


def test_adam_is_accurate_from_the_first_step():
    """A float32 power would give a bias correction that is wrong by 1.3e-5."""
    tx = gradtx.scale_by_adam(b1=0.0, eps=0.0)
    g = jnp.array([0.3, -2.0])
    updates, _ = tx.update(g, tx.init(g))
    np.testing.assert_allclose(updates, [1.0, -1.0], rtol=3e-7)


def test_adamw_with_a_schedule_is_the_papers():
    """Loshchilov and Hutter 2019, algorithm 2, with a learning rate that falls."""
    oracle.check(
        gradtx.adamw(gradtx.linear_schedule(0.02, 0.0, 50), weight_decay=0.1),
        lambda g, s, t, p: -0.02 * (1 - (t - 1) / 50) * (adam(g, s, t, 0.9, 0.999, 1e-8) + 0.1 * p),
    )


def test_adamw_without_decay_is_adam():
    p, gs = oracle.parameters(), oracle.gradients()
    np.testing.assert_array_equal(
        oracle.run(gradtx.adamw(0.01, weight_decay=0.0), p, gs),
        oracle.run(gradtx.adam(0.01), p, gs),
    )


def test_second_moment_of_bfloat16_parameters_decays():
    tx = gradtx.scale_by_adam()
    p = jnp.ones(1, jnp.bfloat16)
    _, state = tx.update(p, tx.init(p))
    before = state.nu
    _, state = tx.update(jnp.zeros_like(p), state)
    np.testing.assert_allclose(state.nu, 0.999 * before, rtol=1e-6)


@pytest.mark.slow
def test_a_thousand_steps_in_bfloat16_follow_float32():
    gs = oracle.gradients(steps=1000)
    p = np.zeros((4, 3))
    exact = oracle.run(gradtx.scale_by_adam(), p, gs)
    half = oracle.run(gradtx.scale_by_adam(), p.astype(jnp.bfloat16), gs, dtype=jnp.bfloat16)
    assert half.dtype == jnp.bfloat16
    moved = np.diff(exact, axis=0), np.diff(half.astype(np.float32), axis=0)
    assert np.corrcoef(moved[0].ravel(), moved[1].ravel())[0, 1] > 0.9


def test_a_schedule_for_a_decay_is_evaluated_at_each_step():
    b1 = gradtx.linear_schedule(0.9, 0.5, 50)

    def update(g, s, t, p):
        b = 0.9 - 0.4 * (t - 1) / 50
        s["m"] = b * s.get("m", 0.0) + (1 - b) * g
        s["v"] = 0.999 * s.get("v", 0.0) + 0.001 * g * g
        return -0.01 * s["m"] / (1 - b**t) / (np.sqrt(s["v"] / (1 - 0.999**t)) + 1e-8)

    oracle.check(gradtx.adam(0.01, b1=b1), update)


def test_storage_types():
    p = jnp.zeros(2, jnp.float32)
    state = gradtx.scale_by_adam(mu_dtype=jnp.bfloat16, nu_dtype=jnp.bfloat16).init(p)
    assert (state.mu.dtype, state.nu.dtype) == (jnp.bfloat16, jnp.bfloat16)
    state = gradtx.scale_by_adam().init(p.astype(jnp.complex64))
    assert (state.mu.dtype, state.nu.dtype) == (jnp.complex64, jnp.float32)
