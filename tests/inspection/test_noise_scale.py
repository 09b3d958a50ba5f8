"""The noise scale, on a quadratic whose covariance is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx


@pytest.mark.slow
@pytest.mark.parametrize("batch", [8, 64, 512, 4096])
def test_it_is_that_of_a_quadratic_with_a_known_covariance(batch):
    """Gradients of one example are G + noise; the mean of b of them has noise / b."""
    rng = np.random.default_rng(batch)
    deviation = rng.uniform(0.5, 1.5, 200)
    gradient = rng.normal(size=200)
    gradient *= np.sqrt(np.sum(deviation**2) / 300) / np.linalg.norm(gradient)
    found = None
    step = jax.jit(lambda s, m, a: gradtx.noise_scale(s, m, batch // 4, batch, a, decay=0.999))
    for _ in range(3000):
        noise = rng.normal(size=(4, 200)) * deviation / np.sqrt(batch / 4)
        parts = gradient + noise
        small, large = np.mean(np.sum(parts**2, 1)), np.sum(np.mean(parts, 0) ** 2)
        found = step(small, large, found)
    np.testing.assert_allclose(found.value, 300, rtol=0.1)


@pytest.mark.parametrize("decay", [0.25, 0.5, np.float32(0.5), 1 - 1e-9])
def test_averages_are_weighted_means(decay):
    """Also of a decay that float32 rounds to 1: then the weights are equal."""
    pairs, found = [(5.0, 2.0), (7.0, 3.0), (4.0, 1.0)], None
    for pair in pairs:
        found = gradtx.noise_scale(*pair, 8, 32, found, decay=decay)
    weights = float(decay) ** np.array([2, 1, 0])
    weights /= sum(weights)
    noise = [(s - m) / (1 / 8 - 1 / 32) for s, m in pairs]
    square = [(32 * m - 8 * s) / 24 for s, m in pairs]
    np.testing.assert_allclose(found.value, weights @ noise / (weights @ square), rtol=1e-6)


def test_nothing_but_noise_is_infinite_and_sizes_are_checked():
    assert gradtx.noise_scale(4.0, 1.0, 8, 32).value == jnp.inf
    with pytest.raises(ValueError, match="the small one first"):
        gradtx.noise_scale(4.0, 1.0, 32, 8)
    with pytest.raises(ValueError, match="decay"):
        gradtx.noise_scale(4.0, 1.0, 8, 32, decay=1.0)


def quadratic(batch):
    """A gradient and the deviation of one example's, with a noise scale of 300 examples."""
    rng = np.random.default_rng(batch)
    deviation = rng.uniform(0.5, 1.5, 2000)
    gradient = rng.normal(size=2000)
    gradient *= np.sqrt(np.sum(deviation**2) / 300) / np.linalg.norm(gradient)
    return jnp.asarray(gradient, jnp.float32), jnp.asarray(deviation, jnp.float32)


def part(key, batch, sizes):
    """The mean gradient of a micro-batch of each of these sizes."""
    gradient, deviation = quadratic(batch)
    noise = (
        jax.random.normal(key, (len(sizes), 2000)) / jnp.sqrt(jnp.asarray(sizes, float))[:, None]
    )
    return gradient + deviation * noise


@pytest.mark.slow
@pytest.mark.parametrize("batch", [8, 64, 512, 4096])
def test_accumulate_measures_that_of_a_quadratic(batch):
    """In windows of four micro-batches, of 1/8, 1/8, 1/4 and 1/2 of the batch."""
    sizes = jnp.array([batch / 8, batch / 8, batch / 4, batch / 2])
    tx = gradtx.accumulate(gradtx.sgd(0.0), 4, noise_decay=0.999)

    def window(state, key):
        for g, w in zip(part(key, batch, sizes), sizes, strict=True):
            _, state = tx.update(g, state, weight=w)
        return state, None

    keys = jax.random.split(jax.random.key(batch), 2000)
    state = jax.jit(lambda keys: jax.lax.scan(window, tx.init(jnp.zeros(2000)), keys)[0])(keys)
    found = gradtx.tree.get(state, "noise_scale")
    assert found.estimates == 2000
    np.testing.assert_allclose(found.value, 300, rtol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [8, 64, 512, 4096])
def test_aggregate_measures_that_of_a_quadratic(batch):
    sizes = jnp.array([batch / 8, batch / 8, batch / 4, batch / 2])
    tx = gradtx.aggregate("data", noise_decay=0.999)

    def step(state, key):
        update = jax.vmap(
            lambda g, w: tx.update(g, state, weight=w), out_axes=(0, None), axis_name="data"
        )
        return update(part(key, batch, sizes), sizes)[1], None

    keys = jax.random.split(jax.random.key(batch), 2000)
    state = jax.jit(lambda keys: jax.lax.scan(step, tx.init(jnp.zeros(2000)), keys)[0])(keys)
    found = gradtx.tree.get(state, "noise_scale")
    assert found.estimates == 2000
    np.testing.assert_allclose(found.value, 300, rtol=0.1)


@pytest.mark.slow
def test_a_micro_batch_of_weight_0_counts_for_nothing_in_the_noise():
    """With weights of an eighth an example is an eighth, and so is its noise."""
    tx, p = gradtx.accumulate(gradtx.sgd(1.0), 3, noise_decay=0.5), jnp.zeros(2)
    seen = []
    for idle, unit in (([1.0, 2.0], 1.0), ([jnp.nan, 2.0], 1.0), ([1.0, 2.0], 0.125)):
        state = tx.init(p)
        for g, weight in (([1.0, 3.0], 2.0), (idle, 0.0), ([2.0, -1.0], 4.0)):
            _, state = tx.update(jnp.array(g), state, p, weight=unit * weight)
        seen.append(gradtx.tree.get(state, "noise_scale"))
    assert [int(each.estimates) for each in seen] == [1, 1, 1]
    assert float(seen[0].noise) == float(seen[1].noise) == 8 * float(seen[2].noise)
    assert float(seen[0].square) == float(seen[1].square) == float(seen[2].square)


@pytest.mark.parametrize(
    "wrong", [(np.int64(32), np.int64(8), 0.9), (8, np.int32(8), 0.9), (8, 32, np.float32(1.5))]
)
def test_numbers_of_numpy_are_checked_too(wrong):
    *sizes, decay = wrong
    with pytest.raises(ValueError, match="noise_scale"):
        gradtx.noise_scale(5.0, 2.0, *sizes, decay=decay)
