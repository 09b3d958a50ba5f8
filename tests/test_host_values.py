"""Hyperparameters that are functions without arguments."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests.quick import quick


class Dial:
    """A function without arguments that can be set, and counts its calls."""

    def __init__(self, value):
        self.value, self.calls = value, 0

    def __call__(self):
        self.calls += 1
        return self.value


def rate():
    return 0.25


def loss(params):
    return jnp.sum(params["w"])


PARAMS = {"w": jnp.zeros(2)}
RATES = [0.5, 0.25, 0.125]
CHAINS = {
    "sgd": lambda dial: gradtx.sgd(dial),
    "chain": lambda dial: gradtx.chain(gradtx.sgd(dial), gradtx.clip(10.0)),
    "product": lambda dial: gradtx.sgd(gradtx.multiply_schedules(0.5, dial, 2.0)),
    "groups": lambda dial: gradtx.partition({"a": gradtx.sgd(dial)}, "a"),
    "beside Optax": lambda dial: gradtx.chain(optax.clip(10.0), gradtx.sgd(dial)),
    "scale": lambda dial: gradtx.chain(gradtx.scale(-1.0), gradtx.scale(dial)),
    "injected": lambda dial: gradtx.inject_hyperparams(gradtx.sgd)(learning_rate=dial),
    "window": lambda dial: gradtx.accumulate(gradtx.sgd(dial), 1),
}


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", quick(CHAINS, "chain", "groups", "injected"))
@pytest.mark.parametrize("by", ["make_step", "minimize", "compiled"])
def test_called_at_each_step(name, by):
    dial = Dial(1.0)
    tx = CHAINS[name](dial)
    traces = 0

    def traced(params):
        nonlocal traces
        traces += 1
        return loss(params)

    if by == "make_step":
        step = gradtx.make_step(traced, tx, donate=False)
    else:
        step = functools.partial(gradtx.minimize, traced, tx)
        step = jax.jit(step) if by == "compiled" else step
    params, state = PARAMS, tx.init(PARAMS)
    for dial.value in RATES:
        before = dial.calls
        new, state, _ = step(params, state)
        np.testing.assert_array_equal(new["w"] - params["w"], -dial.value)
        assert dial.calls > before
        params = new
    if by != "minimize":
        assert traces == 1


def test_called_at_each_turn_of_a_loop():
    dial = Dial(0.0)

    def ask():
        dial.value += 1.0
        return dial.value

    tx = gradtx.sgd(ask)

    def turn(carry, _):
        return gradtx.minimize(loss, tx, *carry)[:2], None

    start = PARAMS, tx.init(PARAMS)
    dial.value = 0.0
    (params, _), _ = jax.jit(lambda c: jax.lax.scan(turn, c, length=3))(start)
    np.testing.assert_array_equal(params["w"], -(1.0 + 2 + 3))


@pytest.mark.parametrize("name", ["sgd", "product"])
def test_evaluated_is_an_argument(name):
    dial = Dial(0.5)
    tx = gradtx.chain(gradtx.trace(0.0), CHAINS[name](dial))
    step = jax.jit(lambda tx, params, state: gradtx.minimize(loss, tx, params, state)[0])
    for dial.value in RATES:
        moved = step(gradtx.evaluated(tx), PARAMS, tx.init(PARAMS))
        np.testing.assert_array_equal(moved["w"], -dial.value)
    assert step._cache_size() == 1
    assert "callback" not in step.lower(gradtx.evaluated(tx), PARAMS, tx.init(PARAMS)).as_text()
    assert gradtx.evaluated(gradtx.adam(0.1)) == gradtx.adam(0.1)
    foreign = optax.adam(0.1)
    assert gradtx.evaluated(foreign) is foreign


def test_over_devices():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    params = jax.device_put({"w": jnp.zeros(16)}, spread)
    dial = Dial(1.0)
    tx = gradtx.adam(dial)
    step = jax.jit(lambda params, state: gradtx.minimize(loss, tx, params, state))
    new, _, _ = step(params, tx.init(params))
    np.testing.assert_allclose(new["w"], -1.0, rtol=1e-6)


def test_it_is_data():
    tx = gradtx.adam(rate)
    assert repr(tx).startswith("adam(learning_rate=rate,")
    assert tx == gradtx.adam(rate) != gradtx.adam(lambda: 0.25)
    assert float(gradtx.hyperparams(tx)["learning_rate"]) == 0.25
    assert gradtx.hyperparams(gradtx.replace(tx, learning_rate=0.5))["learning_rate"] == 0.5
    text = json.dumps(gradtx.to_config(tx))
    assert gradtx.from_config(json.loads(text), custom_objects={"rate": rate}) == tx
    with pytest.raises(ValueError, match="pass it in custom_objects"):
        gradtx.from_config(json.loads(text))


def test_any_hyperparameter():
    dial = Dial(0.0)
    tx = gradtx.trace(dial)
    state = tx.init(PARAMS)
    for dial.value, want in ((0.0, 1.0), (0.5, 1.5), (2.0, 4.0)):
        updates, state = tx.update({"w": jnp.ones(2)}, state)
        np.testing.assert_array_equal(updates["w"], want)


@pytest.mark.parametrize("value", [np.ones(3), "fast", None])
def test_a_value_that_is_no_number(value):
    def given():
        return value

    tx = gradtx.sgd(given)
    with pytest.raises(TypeError, match="given must return one number, not"):
        gradtx.evaluated(tx)
