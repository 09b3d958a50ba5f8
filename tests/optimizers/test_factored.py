"""Adafactor, CAME, SM3, Adam-mini: second moments in less than the parameters' memory."""

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


def test_came_is_the_papers():
    """Luo et al. 2023, algorithm 2."""

    def update(g, s, t, p):
        u = g / np.sqrt(factored(g * g + 1e-30, s, "v", 0.999))
        u = u / max(1.0, rms(u))
        m = s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * u
        d = m / np.sqrt(factored((u - m) ** 2 + 1e-16, s, "s", 0.9999))
        return -0.01 * (d + 0.1 * p)

    oracle.check(gradtx.came(0.01, weight_decay=0.1), update, rtol=3e-5)


def test_came_on_a_vector_is_clipped_rms_with_momentum():
    p, gs = oracle.parameters(shape=(5,)), oracle.gradients(shape=(5,))

    def update(g, s, t, p):
        s["v"] = 0.999 * s.get("v", 0.0) + 0.001 * (g * g + 1e-30)
        u = g / np.sqrt(s["v"])
        s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * u / max(1.0, rms(u))
        return -0.01 * s["m"]

    np.testing.assert_allclose(
        oracle.run(gradtx.came(0.01), p, gs), oracle.transcribe(update, p, gs), atol=1e-5
    )


@pytest.mark.parametrize("b2", [1.0, 0.9])
def test_sm3_is_the_papers(b2):
    """Anil et al. 2019, SM3-II, with a moving average as momentum."""

    def update(g, s, t, p):
        bound = np.minimum.outer(s.get("r", np.zeros(4)), s.get("c", np.zeros(3)))
        v = b2 * bound + (1 - b2 if b2 < 1 else 1) * g * g
        s["r"], s["c"] = v.max(axis=1), v.max(axis=0)
        u = np.where(v > 0, g / np.sqrt(v + 1e-8), 0.0)
        s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * u
        return -0.1 * s["m"]

    averaging = gradtx.chain(gradtx.scale_by_sm3(0.9, b2), gradtx.scale(-0.1))
    oracle.check(gradtx.sm3(0.1) if b2 == 1.0 else averaging, update)


def test_sm3_trains_scalars_with_a_schedule():
    tx = gradtx.sm3(gradtx.linear_schedule(0.1, 0.0, 10), momentum=0.0)
    p = jnp.zeros(())
    updates, state = tx.update(jnp.float32(4.0), tx.init(p), p)
    np.testing.assert_allclose(updates, -0.1, rtol=1e-6)
    np.testing.assert_allclose(state[0].mu[0], 16.0)


@pytest.mark.parametrize("axis", [-1, 0, None])
def test_adam_mini_is_the_papers(axis):
    """Zhang et al. 2024, algorithm 1: Adam with the mean square of each block."""
    others = {-1: 0, 0: 1, None: (0, 1)}[axis]

    def update(g, s, t, p):
        s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * g
        s["v"] = 0.999 * s.get("v", 0.0) + 0.001 * np.mean(g * g, axis=others, keepdims=True)
        u = s["m"] / (1 - 0.9**t) / (np.sqrt(s["v"] / (1 - 0.999**t)) + 1e-8)
        return -0.01 * (u + 0.1 * p)

    oracle.check(gradtx.adam_mini(0.01, weight_decay=0.1, block_axis=axis), update)


def test_adam_mini_refuses_an_axis_that_a_leaf_has_not():
    tx = gradtx.adam_mini(0.01, block_axis=2)
    with pytest.raises(ValueError, match="block_axis"):
        tx.init(jnp.zeros((4, 3)))


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("adafactor", 128 + 256 + 1),
        ("sm3", 128 + 256 + 128 * 256),  # with momentum, as in Optax
        ("adam_mini", 256 + 128 * 256),
        ("came", 2 * (128 + 256) + 1 + 128 * 256),
        ("novograd", 1 + 128 * 256),
    ],
)
def test_state_is_as_small_as_the_algorithm_s(name, numbers):
    description = gradtx.describe(getattr(gradtx, name)(0.1), jnp.zeros((128, 256)))
    # A count of 4 bytes, where there is one.
    assert 0 <= description.state_bytes - 4 * numbers <= 4
