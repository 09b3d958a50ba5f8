"""Grokfast against transcriptions of its authors' code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle


@pytest.mark.paper("grokfast_ema")
def test_moving_average():
    """Lee et al. 2024, as in the authors' code: the average starts at the first gradient."""

    def update(g, s, t, p):
        s["m"] = 0.8 * s.get("m", g) + 0.2 * g
        return -0.05 * (g + 0.7 * s["m"])

    oracle.check(gradtx.chain(gradtx.grokfast_ema(0.8, 0.7), gradtx.sgd(0.05)), update)


@pytest.mark.paper("grokfast_ma")
@pytest.mark.parametrize("filter_type", ["mean", "sum"])
@pytest.mark.parametrize("warmup", [False, True])
def test_window(filter_type, warmup):
    size, lamb = 7, 0.5

    def update(g, slots, t, p):
        window = slots["window"] = [*slots.get("window", []), g][-size:]
        if warmup and len(window) < size:
            return -0.05 * g
        slow = np.mean(window, 0) if filter_type == "mean" else np.sum(window, 0)
        return -0.05 * (g + lamb * slow)

    links = gradtx.grokfast_ma(size, lamb, filter_type, warmup), gradtx.sgd(0.05)
    oracle.check(gradtx.chain(*links), update)


@pytest.mark.paper("grokfast_ma")
def test_the_sum_cannot_drift_and_forgets_a_nan():
    tx = gradtx.grokfast_ma(4, warmup=False)
    state = tx.init(jnp.zeros(1))
    update = jax.jit(tx.update)
    for t, g in enumerate([1e8, float("nan"), *[1.0] * 10]):
        _, state = update(jnp.array([g]), state)
        assert state.window.shape == (4, 1)
        if t >= 7:
            assert float(state.total[0]) == 4.0


@pytest.mark.paper("grokfast_ma")
def test_every_place_of_the_window_is_replaced_however_many_steps_there_were():
    tx = gradtx.grokfast_ma(4, lamb=4.0, warmup=False)
    state = tx.init(jnp.zeros(1))._replace(count=jnp.int32(2**24))
    for _ in range(4):
        updates, state = tx.update(jnp.ones(1), state)
    assert state.window.ravel().tolist() == [1.0] * 4
    assert updates.tolist() == [5.0]
