"""Updates let through at every k-th step."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests import oracle
from tests.wrappers.windows import GS, run


@pytest.mark.slow
def test_apply_every():
    (_, _), updates = run(gradtx.apply_every(3), GS[:6].at[0, 0, 0].set(jnp.inf))
    (_, _), want = run(optax.apply_every(3), GS[:6])
    np.testing.assert_allclose(updates[5], want[5], rtol=1e-6)
    np.testing.assert_array_equal(updates[4], 0.0)


def test_a_leaf_without_a_gradient_has_no_update():
    tx, p = gradtx.apply_every(1), {"a": jnp.ones(1), "b": jnp.ones(1)}
    updates, _ = tx.update({**p, "b": None}, tx.init(p), p)
    assert updates == {"a": 1.0, "b": None}


@pytest.mark.paper("apply_every")
@pytest.mark.parametrize("k", [1, 4])
def test_what_is_kept_is_let_through_at_every_kth_step(k):
    def update(g, s, t, p):
        s["sum"] = s.get("sum", 0.0) - 0.05 * g
        return s.pop("sum") if t % k == 0 else 0.0 * g

    oracle.check(gradtx.chain(gradtx.sgd(0.05), gradtx.apply_every(k)), update)


def test_a_schedule_of_k_counts_all_steps_and_not_those_of_a_window():
    tx = gradtx.apply_every(lambda count: jnp.where(count < 4, 2, 3))
    state, let_through = tx.init(jnp.zeros(1)), []
    for _ in range(10):
        updates, state = tx.update(jnp.ones(1), state)
        let_through.append(float(updates[0]))
    assert let_through == [0, 2, 0, 2, 0, 0, 3, 0, 0, 3]
    assert gradtx.iterations(state) == 10
