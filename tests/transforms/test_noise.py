"""Noise added to gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle


@pytest.mark.slow
def test_noise_takes_keys_and_seeds():
    g = jnp.zeros(3)

    def first(**arguments):
        tx = gradtx.add_noise(0.1, 0.55, **arguments)
        return np.asarray(tx.update(g, tx.init(g))[0])

    np.testing.assert_array_equal(first(key=3), first(seed=3))
    np.testing.assert_array_equal(first(key=3), first(key=jax.random.key(3)))
    assert (first(key=3) != first()).all()
    with pytest.raises(ValueError, match="seed"):
        first(key=1, seed=2)
    with pytest.raises(TypeError, match="key"):
        first(key="x")


def test_equal_leaves_get_noise_of_their_own_at_every_step():
    tx, g = gradtx.add_noise(0.1, 0.55, key=0), [jnp.zeros(8)] * 3
    first, state = tx.update(g, tx.init(g))
    second, _ = tx.update(g, state)
    drawn = np.stack([*first, *second])
    drawn /= drawn.std(-1, keepdims=True)
    assert len(np.unique(drawn.round(4))) == drawn.size


@pytest.mark.slow
@pytest.mark.paper("add_noise")
def test_the_variance_falls_as_in_the_paper():
    """Neelakantan et al. 2015, equation 1, beside the same draws with a variance of one."""
    g = jnp.asarray(oracle.parameters(), jnp.float32)

    def noises(eta, gamma):
        tx = gradtx.add_noise(eta, gamma, key=0)
        state, found = tx.init(g), []
        for _ in range(4):
            updates, state = tx.update(g, state)
            found.append(updates - g)
        return np.stack(found)

    want = [np.sqrt(0.5 / t**0.7) for t in range(1, 5)]
    ratio = noises(0.5, 0.7) / noises(1.0, 0.0)
    np.testing.assert_allclose(ratio, np.reshape(want, (4, 1, 1)) * np.ones(g.shape), rtol=1e-3)


@pytest.mark.slow
@pytest.mark.paper("add_noise")
def test_the_noise_is_normal_and_its_first_key_is_zero():
    def noise(**arguments):
        tx, g = gradtx.add_noise(0.25, 0.55, **arguments), jnp.zeros(20_000)
        return tx.update(g, tx.init(g))[0]

    np.testing.assert_array_equal(noise(), noise(key=0))
    for power, moment in ((1, 0), (2, 1), (4, 3)):
        assert float(jnp.mean((noise() / 0.5) ** power)) == pytest.approx(moment, abs=0.15)
