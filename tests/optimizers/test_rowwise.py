"""Row-wise rules against float64 transcriptions, and AdagradDecay against DeepRec's tests."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle


def rowwise_adagrad(g, slots, t, p):
    s = slots["s"] = slots.get("s", 0.0) + np.mean(g**2, axis=1, keepdims=True)
    return -0.1 * g / (np.sqrt(s) + 1e-8)


def rowwise_adam(g, slots, t, p):
    m = slots["m"] = 0.9 * slots.get("m", 0.0) + 0.1 * g
    v = slots["v"] = 0.999 * slots.get("v", 0.0) + 0.001 * np.mean(g**2, axis=1, keepdims=True)
    return -0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)


def adagrad_decay(g, slots, t, p):
    """All rows are touched at each step, so that the sums decay at every seventh."""
    s = slots.get("s", 0.1)
    s = slots["s"] = (np.maximum(0.5 * s, 0.1) if t % 7 == 0 else s) + g**2
    return -0.1 * g / np.sqrt(s)


RULES = [
    (lambda: gradtx.rowwise_adagrad(0.1), rowwise_adagrad),
    (lambda: gradtx.rowwise_adam(0.1), rowwise_adam),
    (lambda: gradtx.adagrad_decay(0.1, 0.1, 7, 0.5), adagrad_decay),
]
each = pytest.mark.parametrize(("make", "update"), RULES, ids=lambda f: f.__name__)


@each
def test_transcription(make, update):
    oracle.check(make(), update)


@pytest.mark.parametrize("name", ["rowwise_adagrad", "rowwise_adam"])
def test_a_second_moment_takes_one_number_a_row(name):
    state = getattr(gradtx, name)(0.1).init(jnp.zeros((7, 5, 2)))
    slot = "sum_of_squares" if name == "rowwise_adagrad" else "nu"
    assert gradtx.get_slot(state, slot).shape == (7, 1, 1)


def test_a_row_alone_is_the_same_row_in_a_table():
    tx, table = gradtx.rowwise_adagrad(0.1), jnp.ones((4, 3))
    rows = gradtx.Rows(jnp.array([2, 2]), jnp.array([[1.0, 2, 3], [3.0, 2, 1]]), (4, 3))
    updates, state = jax.jit(tx.update)(rows, tx.init(table))
    want, dense = tx.update(rows.to_dense(), tx.init(table))
    chex.assert_trees_all_close((updates.to_dense(), state), (want, dense), rtol=1e-6)


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
