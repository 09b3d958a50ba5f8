"""Adafactor against its paper and Optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests import oracle


def rms(x):
    return np.sqrt(np.mean(x * x))


def factored(square, s, key, beta):
    """Shazeer and Stern 2018, algorithm 4, lines 6-8."""
    s[key + "r"] = beta * s.get(key + "r", 0.0) + (1 - beta) * square.mean(axis=1)
    s[key + "c"] = beta * s.get(key + "c", 0.0) + (1 - beta) * square.mean(axis=0)
    return np.outer(s[key + "r"], s[key + "c"]) / s[key + "r"].mean()


@pytest.mark.paper("adafactor")
@pytest.mark.parametrize("smallest", [2, 128])
def test_adafactor_is_the_papers(smallest):
    def update(g, s, t, p):
        beta, square = 1 - t**-0.8, g * g + 1e-30
        if smallest == 2:
            v = factored(square, s, "v", beta)
        else:
            v = s["v"] = beta * s.get("v", 0.0) + (1 - beta) * square
        u = g / np.sqrt(v)
        u = u / max(1.0, rms(u))
        s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * 0.01 * max(rms(p), 1e-3) * u
        return -s["m"] - 1e-3 * p

    tx = gradtx.adafactor(0.01, smallest, momentum=0.9, weight_decay_rate=1e-3)
    oracle.check(tx, update, rtol=2e-5)


@pytest.mark.parametrize("shape", [(3, 5, 4), (6, 4, 5, 2), (5, 5), (7,), ()])
def test_adafactor_factors_the_dimensions_that_optax_factors(shape):
    p, gs = oracle.parameters(shape=shape), oracle.gradients(shape=shape, steps=20)
    ours, theirs = (
        gradtx.scale_by_factored_rms(True, 0.8, 0, 2),
        optax.scale_by_factored_rms(True, 0.8, 0, 2),
    )
    shapes = [[x.shape for x in jax.tree.leaves(tx.init(jnp.asarray(p)))] for tx in (ours, theirs)]
    assert shapes[0] == shapes[1]
    np.testing.assert_allclose(
        oracle.run(ours, p, gs), oracle.run(theirs, p, gs), rtol=1e-4, atol=1e-5
    )


def test_adafactor_takes_a_decay_of_one_s_own():
    tx = gradtx.scale_by_factored_rms(decay_rate_fn=lambda steps, rate: 0.5 + 0 * steps)
    p = jnp.zeros(1)
    _, state = tx.update(jnp.array([2.0]), tx.init(p))
    np.testing.assert_allclose(state.v, [2.0])


def test_adafactor_with_an_offset_begins_with_finite_steps():
    """Optax raises a negative number to a fractional power here."""
    tx = gradtx.scale_by_factored_rms(step_offset=10)
    p = jnp.zeros(1)
    updates, _ = tx.update(jnp.array([2.0]), tx.init(p))
    np.testing.assert_allclose(updates, [1.0], rtol=1e-6)


def test_adafactor_of_zero_gradients_in_float16_stays():
    """An epsilon of 1e-30 underflows in float16."""
    tx = gradtx.adafactor(0.1, 2)
    p = jnp.ones((2, 2), jnp.float16)
    updates, _ = tx.update(jnp.zeros_like(p), tx.init(p), p)
    np.testing.assert_array_equal(updates, 0)
