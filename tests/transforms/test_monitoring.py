"""Measurements kept in the state."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests.oracle import gradients, parameters

P = jnp.asarray(parameters(), jnp.float32)


GS = jnp.asarray(gradients(), jnp.float32)


@pytest.mark.parametrize("debias", [True, False])
def test_monitor_averages(debias):
    def make(lib):
        measure = lib.measure_with_ema(jnp.mean, 0.5, debias)
        return lib.monitor({"m": measure, "now": lambda u: jnp.max(u)})

    tx, theirs = make(gradtx), make(optax)
    state, state_optax = tx.init(P), theirs.init(P)
    assert state.measurements == {"m": 0.0, "now": 0.0}
    for g in GS[:4]:
        _, state = tx.update(g, state, P)
        _, state_optax = theirs.update(g, state_optax, P)
    for name in ("m", "now"):
        np.testing.assert_allclose(
            state.measurements[name], state_optax.measurements[name], rtol=1e-5
        )


def test_a_measure_whose_decay_is_a_schedule_is_kept():
    """With a schedule the state of a measure is beside a count of steps."""
    decay = gradtx.linear_schedule(0.5, 0.5, 3)
    scheduled = gradtx.monitor({"m": gradtx.measure_with_ema(jnp.max, decay)})
    constant = gradtx.monitor({"m": gradtx.measure_with_ema(jnp.max, 0.5)})
    states = [tx.init(P) for tx in (scheduled, constant)]
    for g in GS[:3]:
        states = [
            tx.update(g, s, P)[1] for tx, s in zip((scheduled, constant), states, strict=True)
        ]
        np.testing.assert_allclose(*(s.measurements["m"] for s in states), rtol=1e-6)


def test_a_measurement_that_differs_from_that_of_the_parameters():
    tx = gradtx.snapshot("all", lambda u: u)
    params = {"a": jnp.ones(2), "b": jnp.ones(3)}
    _, state = tx.update({"a": 1j * jnp.ones(2), "b": None}, tx.init(params))
    assert state.measurement["all"]["b"] is None
    tx = gradtx.snapshot("mean", jnp.mean)
    _, state = tx.update(1j * jnp.ones(2), tx.init(jnp.ones(2)))
    assert state.measurement["mean"] == 1j
    tx = gradtx.snapshot("constant", lambda u: jnp.sum(u) * 0 + 3.0)
    assert tx.update(jnp.ones(2), tx.init(jnp.ones(2)))[1].measurement["constant"] == 3.0


def test_a_measurement_stays_in_the_type_of_its_state():
    def measure(u):
        return u.mean()

    params, g = jnp.ones(2), jnp.ones(2, jnp.bfloat16)
    for tx in (
        gradtx.snapshot("m", measure),
        gradtx.monitor({"m": measure, "n": gradtx.measure_with_ema(measure, 0.5)}),
        gradtx.measure_with_ema(measure, 0.5),
    ):
        state = tx.init(params)
        _, after = tx.update(g, state, params)
        assert [x.dtype for x in jax.tree.leaves(after)] == [
            x.dtype for x in jax.tree.leaves(state)
        ]
