"""A rate that falls when a loss stops falling."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests.oracle import parameters

P = jnp.asarray(parameters(), jnp.float32)


def scales(tx, values):
    state, found = tx.init(P), []
    for value in values:
        _, state = tx.update(P, state, value=value)
        found.append(float(state.scale))
    return found


@pytest.mark.slow
def test_plateau():
    values = [3.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    ours = gradtx.reduce_on_plateau(0.5, 2, cooldown=1, min_scale=0.2)
    theirs = optax.contrib.reduce_on_plateau(0.5, 2, cooldown=1, min_scale=0.2)
    np.testing.assert_allclose(scales(ours, values), scales(theirs, values))
    negative = gradtx.reduce_on_plateau(0.5, 2)
    assert scales(negative, [-3.0] * 4)[-1] == 0.5
    highest = gradtx.reduce_on_plateau(0.5, 2, mode="max")
    assert scales(highest, [1.0, 2.0, 3.0, 4.0])[-1] == 1.0
    assert scales(highest, [4.0, 3.0, 2.0])[-1] == 0.5
    with pytest.raises(ValueError, match="metric"):
        ours.update(P, ours.init(P))
    with pytest.raises(ValueError, match=r"value must be one number, not of shape \(3,\)"):
        ours.update(P, ours.init(P), value=jnp.ones(3))


@pytest.mark.paper("reduce_on_plateau")
def test_a_first_value_of_zero_is_the_best():
    assert scales(gradtx.reduce_on_plateau(0.5, 2), [0.0, 1.0, 1.0]) == [1.0, 1.0, 0.5]


@pytest.mark.paper("reduce_on_plateau")
@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("size", [1, 3])
def test_transcription(mode, size):
    """PyTorch's ReduceLROnPlateau, on the mean of several values."""
    factor, patience, rtol, atol, cooldown, least = 0.6, 2, 0.05, 0.02, 2, 0.1
    number = 50 * size
    sign = 1.0 if mode == "min" else -1.0
    rng = np.random.default_rng(0)
    values = sign * (2 * np.exp(-4 * np.arange(number) / number) + 0.1 * rng.random(number))
    scale, best, waited, cooling, want = 1.0, np.inf, 0, 0, []
    for i in range(len(values)):
        if (i + 1) % size == 0:
            value = sign * values[i + 1 - size : i + 1].mean()
            better = value < best - (rtol * abs(best) + atol if np.isfinite(best) else 0)
            best, waited = (value, 0) if better else (best, waited + 1)
            if cooling:
                cooling, waited = cooling - 1, 0
            elif waited >= patience:
                scale, waited, cooling = max(scale * factor, least), 0, cooldown
        want.append(scale)
    tx = gradtx.reduce_on_plateau(factor, patience, rtol, atol, cooldown, size, least, mode=mode)

    def step(state, value):
        updates, state = tx.update(jnp.full(2, 3.0), state, value=value)
        return state, updates[0] / 3

    _, got = jax.jit(lambda v: jax.lax.scan(step, tx.init(P), v))(jnp.asarray(values, jnp.float32))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert len(set(want)) > 3
