"""StableSPAM against its paper."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import mean


@pytest.mark.paper("stable_spam")
@pytest.mark.parametrize("interval", [7, 1, 0])
def test_stable_spam_is_the_papers(interval):
    """Huang et al. 2025: the clip, the norms and the reset, with the order of the authors' code."""
    clips = set()

    def update(g, s, t, p):
        most = np.max(np.abs(g))
        limit = mean(s, "largest", most, 0.6) / (1 - 0.6**t)
        spikes = np.abs(g) > limit * (1 + 1e-12)
        clips.add(bool(spikes.any()))
        c = np.where(spikes, g / most * limit, g)
        size = np.sqrt(np.sum(c * c))
        m = mean(s, "norm", size, 0.5) / (1 - 0.5**t)
        v = mean(s, "norm_square", size**2, 0.8) / (1 - 0.8**t)
        x = c / size * m / (np.sqrt(v) + 0.1)
        if interval and t % interval == 0:
            s["m"], s["v"], s["start"] = 0.0, 0.0, t - 1
        n = t - s.get("start", 0)
        first = mean(s, "m", x, 0.8) / (1 - 0.8**n)
        second = mean(s, "v", x * x, 0.7) / (1 - 0.7**n)
        return -0.05 * (first / (np.sqrt(second) + 0.1) + 0.3 * p)

    tx = gradtx.stable_spam(
        0.05, 0.8, 0.7, 0.1, 0.3, gamma1=0.5, gamma2=0.8, gamma3=0.6, reset_interval=interval
    )
    oracle.check(tx, update)
    assert clips == {False, True}


def test_a_reset_leaves_the_clip_as_it_is():
    """Its bias correction does not restart: a spike just after a reset is clipped as any other."""
    tx = gradtx.scale_by_stable_spam(reset_interval=5)
    p = jnp.zeros(4)
    state = tx.init(p)
    for _ in range(5):
        state = tx.update(jnp.ones(4), state)[1]
    assert int(state.count) == 5
    np.testing.assert_allclose(state.mu, 0.1 * 0.5 * jnp.ones(4), rtol=1e-5)  # one step's
    spiked = tx.update(jnp.array([1.0, 1.0, 1.0, 1e4]), state)[1]
    newest = 0.001 / (1 - 0.999**6)  # the weight of the last of six steps
    limit = newest * 1e4 + (1 - newest) * 1
    norm = 2 * (0.7 - 0.7**6) + 0.3 * np.sqrt(3 + limit**2)
    np.testing.assert_allclose(spiked.norm, norm, rtol=1e-5)


@pytest.mark.quick(2)
@pytest.mark.parametrize("shape", [(), (2, 3), (0, 3)])
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e15])
def test_stable_spam_is_finite_for_gradients_of_any_size(shape, size):
    tx = gradtx.scale_by_stable_spam()
    p = jnp.zeros(shape)
    state = tx.init(p)
    for g in (jnp.full(shape, size), jnp.zeros(shape), jnp.full(shape, size)):
        u, state = tx.update(g, state)
        assert bool(jnp.all(jnp.isfinite(u)))
