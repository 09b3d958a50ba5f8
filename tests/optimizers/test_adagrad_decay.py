"""AdagradDecay against DeepRec's formulas and tests."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle


@pytest.mark.paper("adagrad_decay")
def test_adagrad_decay_is_deeprec_s():
    """All rows are touched at each step, so that the sums decay at every seventh."""

    def update(g, slots, t, p):
        s = slots.get("s", 0.2)
        s = slots["s"] = (np.maximum(0.01 * s, 0.2) if t % 7 == 0 else s) + g**2
        return -0.5 * g / np.sqrt(s)

    oracle.check(gradtx.adagrad_decay(0.5, 0.2, 7, 0.01), update)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [False, True], ids=["dense", "rows"])
def test_deeprec_s_case(rows):
    """The numbers of DeepRec's adagrad_decay_test.py: a decay by 0.9 at the third step."""
    tx = gradtx.adagrad_decay(1.0, accumulator_decay_step=3, accumulator_decay_rate=0.9)
    table = jnp.array([[1.0], [2.0]])
    grad = gradtx.Rows(jnp.array([0]), jnp.array([[0.1]]), (2, 1))
    grad = grad if rows else grad.to_dense()
    state, p, accumulator = tx.init(table), 1.0, 0.1
    for step in range(4):
        updates, state = tx.update(grad, state)
        table = gradtx.apply_updates(table, updates)
        accumulator = accumulator * (0.9 if step == 2 else 1) + 0.01
        p -= 0.1 / np.sqrt(accumulator)
    np.testing.assert_allclose(table[:, 0], [p, 2.0], rtol=1e-5)


def test_deeprec_s_floor():
    """Its test of the baseline: 1.0 decayed by 0.6 stays 1.0."""
    tx = gradtx.scale_by_adagrad_decay(1.0, 3, 0.6)
    state = tx.init(jnp.zeros(1))
    for _ in range(4):
        _, state = tx.update(jnp.array([0.1]), state)
    np.testing.assert_allclose(state.accumulator, [1.02], rtol=1e-6)


@pytest.mark.slow
def test_an_untouched_row_decays_once_at_its_next_touch():
    tx = gradtx.scale_by_adagrad_decay(0.0, 2, 0.5)
    state = tx.init(jnp.zeros((2, 1)))

    def touch(row, state):
        return tx.update(gradtx.Rows(jnp.array([row]), jnp.ones((1, 1)), (2, 1)), state)[1]

    for row in (0, 1, 1, 1, 1, 0):
        state = touch(row, state)
    # Of row 0: 1, and half of it at step 6, where three decays are due.
    assert float(state.accumulator[0, 0]) == 1.5
    assert state.decays[:, 0].tolist() == [1, 2]


@pytest.mark.parametrize("period", [40, 41, 47])
def test_a_sum_decays_at_the_end_of_its_period(period):
    tx = gradtx.scale_by_adagrad_decay(1.0, accumulator_decay_step=period)
    state = tx.init(jnp.zeros(1))._replace(count=jnp.int32(period - 2))
    decays = []
    for _ in range(2):
        _, state = jax.jit(tx.update)(jnp.ones(1), state)
        decays.append(int(state.decays[0]))
    assert decays == [0, 1]
