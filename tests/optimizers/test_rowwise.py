"""Row-wise rules against float64 transcriptions."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import mean


@pytest.mark.paper("rowwise_adagrad", "rowwise_adam")
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4), (5,)])
def test_transcription(shape):
    def row_mean(x):
        return x.reshape(len(x), -1).mean(axis=1).reshape(len(x), *[1] * (x.ndim - 1))

    def adagrad(g, s, t, p):
        s["s"] = s.get("s", 0.2) + row_mean(g * g)
        return -0.05 * g / (np.sqrt(s["s"]) + 0.1)

    def adam(g, s, t, p):
        m = mean(s, "m", g, 0.8) / (1 - 0.8**t)
        v = mean(s, "v", row_mean(g * g), 0.7) / (1 - 0.7**t)
        return -0.05 * m / (np.sqrt(v) + 0.1)

    for tx, update in (
        (gradtx.rowwise_adagrad(0.05, 0.2, 0.1), adagrad),
        (gradtx.rowwise_adam(0.05, 0.8, 0.7, 0.1), adam),
    ):
        oracle.check(tx, update, shape=shape)


@pytest.mark.parametrize("name", ["rowwise_adagrad", "rowwise_adam"])
def test_a_second_moment_takes_one_number_a_row(name):
    state = getattr(gradtx, name)(0.1).init(jnp.zeros((7, 5, 2)))
    slot = "sum_of_squares" if name == "rowwise_adagrad" else "nu"
    assert gradtx.get_slot(state, slot).shape == (7, 1, 1)


@pytest.mark.slow
def test_a_row_alone_is_the_same_row_in_a_table():
    tx, table = gradtx.rowwise_adagrad(0.1), jnp.ones((4, 3))
    rows = gradtx.Rows(jnp.array([2, 2]), jnp.array([[1.0, 2, 3], [3.0, 2, 1]]), (4, 3))
    updates, state = jax.jit(tx.update)(rows, tx.init(table))
    want, dense = tx.update(rows.to_dense(), tx.init(table))
    chex.assert_trees_all_close((updates.to_dense(), state), (want, dense), rtol=1e-6)
