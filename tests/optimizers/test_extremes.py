"""Gradients of zero and of great size, over several optimizers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    "name", ["laprop", "diffgrad", "qhadam", "adabound", "stable_adamw", "adam_mini", "came"]
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_a_zero_gradient_takes_no_step(name, dtype):
    tx = getattr(gradtx, name)(0.01, eps=0.0, weight_decay=0.0)
    p = jnp.ones((2, 2), dtype)
    updates, _ = tx.update(jnp.zeros_like(p), tx.init(p), p)
    np.testing.assert_array_equal(updates.astype(jnp.float32), 0)


@pytest.mark.slow
def test_large_float16_gradients_do_not_overflow_the_norms():
    g = jnp.full(4, 3e4, jnp.float16)
    p = jnp.ones(4, jnp.float16)
    for tx in (gradtx.lamb(0.1), gradtx.lars(100.0), gradtx.fromage(0.1), gradtx.novograd(0.1)):
        updates, _ = tx.update(g, tx.init(p), p)
        assert bool(jnp.all(jnp.isfinite(updates)))
        assert bool(jnp.all(updates < 0))


def test_scion_takes_no_step_from_zero():
    tx = gradtx.scion(0.01, eps=0.0, constrained=False)
    p = {"matrix": jnp.ones((2, 3)), "vector": jnp.ones(2)}
    zero = gradtx.tree.zeros_like(p)
    for u in tx.update(zero, tx.init(p), p)[0].values():
        np.testing.assert_array_equal(u, 0)


def test_dadapt_adamw_without_an_epsilon():
    p = jnp.array([1.0, -2.0, 0.5])
    tiny, none = (gradtx.dadapt_adamw(eps=eps, estim_lr0=0.1) for eps in (1e-30, 0.0))
    states = tiny.init(p), none.init(p)
    for _ in range(3):
        (want, first), (u, second) = (
            tx.update(p, state, p) for tx, state in zip((tiny, none), states, strict=True)
        )
        states = first, second
        np.testing.assert_allclose(u, want, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["soap", "shampoo", "splus", "kl_shampoo", "kl_soap"])
def test_factors_outlive_a_gradient_whose_square_overflows(name):
    """Its direction may be anything finite; bases turn again afterwards."""
    tx = getattr(gradtx, name)(0.1, precondition_frequency=1)
    draws = jax.random.normal(jax.random.key(0), (6, 4, 3))
    p = jnp.zeros((4, 3))
    state, factors = tx.init(p), []
    for t, g in enumerate(draws):
        u, state = tx.update(g * (1e25 if t == 2 else 1), state, p)
        assert bool(jnp.all(jnp.isfinite(u)))
        factors.append([gradtx.get_slot(state, slot) for slot in ("left", "right")])
    for before, after in zip(factors[-2], factors[-1], strict=True):
        assert bool(jnp.all(jnp.isfinite(after)))
        assert float(jnp.abs(after - before).max()) > 0
