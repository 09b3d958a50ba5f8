"""The search that zooms: its conditions, and the valley that Optax finds."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests.transforms.searches import loss, run


def test_zoom_meets_both_conditions():
    tx = gradtx.chain(gradtx.scale(-1.0), gradtx.scale_by_zoom_linesearch(20, curv_rtol=0.1))
    with jax.enable_x64(True):
        x, path = run(gradtx, tx, 25)
        for before, updates, value, grad, state in path:
            slope = float(grad @ updates)
            after, grad_after = jax.value_and_grad(loss)(before + updates)
            assert float(after) <= float(value) + 1e-4 * slope + 1e-6 * abs(float(value))
            assert abs(float(grad_after @ updates)) <= 0.1 * abs(slope) + 1e-12
            # What it keeps belongs to the point that it chose.
            np.testing.assert_allclose(state[1].value, after, rtol=1e-12)
            np.testing.assert_allclose(state[1].grad, grad_after, rtol=1e-8, atol=1e-10)
        assert float(loss(x)) < float(loss(jnp.array([1.0, 2.0, -1.0])))


@pytest.mark.parametrize("start", [0.001, 0.3, 40.0, 1e4])
def test_zoom_finds_the_valley_like_optax(start):
    """From any first rate, as Optax does, and with no more evaluations."""
    counts, values = [], []

    def f(x):
        return (x - 3.0) ** 4 + (x - 3.0) ** 2

    for lib in (gradtx, optax):
        tx = lib.chain(lib.scale(-start), lib.scale_by_zoom_linesearch(40, curv_rtol=0.01))
        x = jnp.float32(0.0)
        grad = jax.grad(f)(x)
        updates, state = tx.update(grad, tx.init(x), x, value=f(x), grad=grad, value_fn=f)
        counts.append(int(state[1].info.num_linesearch_steps))
        values.append(float(f(x + updates)))
    assert values[0] < 0.5
    assert counts[0] <= counts[1] + 1


def test_no_way_down_is_no_step():
    tx = gradtx.scale_by_zoom_linesearch(10)
    x = jnp.array([1.0, 2.0])
    grad = jax.grad(lambda x: jnp.sum(x**2))(x)
    extra = {"value": jnp.sum(x**2), "grad": grad, "value_fn": lambda x: jnp.sum(x**2)}
    updates, state = tx.update(grad, tx.init(x), x, **extra)
    assert updates.tolist() == [0.0, 0.0]
    assert int(state.info.num_linesearch_steps) == 0
    assert float(state.value) == 5.0


def test_a_number_put_into_the_state():
    """As Optax's own tests do to choose the first rate."""
    tx, p = gradtx.scale_by_zoom_linesearch(5), jnp.ones(2)
    state = gradtx.tree.set(tx.init(p), learning_rate=1.0)

    def loss(x):
        return jnp.sum(x**2)

    extra = {"value": loss(p), "grad": 2 * p, "value_fn": loss}
    updates, new = tx.update(-2 * p, state, p, **extra)
    assert loss(p + updates) < loss(p)
    assert new.learning_rate.dtype == jnp.float32
