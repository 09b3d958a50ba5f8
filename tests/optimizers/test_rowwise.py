"""Row-wise rules against float64 transcriptions."""

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


RULES = [
    (lambda: gradtx.rowwise_adagrad(0.1), rowwise_adagrad),
    (lambda: gradtx.rowwise_adam(0.1), rowwise_adam),
]


each = pytest.mark.parametrize(("make", "update"), RULES, ids=lambda f: f.__name__)


@pytest.mark.paper("rowwise_adagrad", "rowwise_adam")
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
