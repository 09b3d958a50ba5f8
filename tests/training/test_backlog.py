"""Steps that pile up on simulated devices are warned of, once."""

import warnings

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import gradtx
from gradtx.training.backlog import MOST, Backlog


class Later:
    """A result that is there once it is told so."""

    def __init__(self, sharding):
        self.sharding, self.there = sharding, False

    def is_ready(self):
        return self.there


@pytest.fixture
def over_two():
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])
    return NamedSharding(mesh, PartitionSpec())


def test_too_many_results_that_are_not_there(over_two):
    backlog = Backlog()
    for _ in range(MOST):
        backlog.add(Later(over_two))
    with pytest.warns(UserWarning, match="steps wait on simulated devices.*block_until_ready"):
        backlog.add(Later(over_two))
    for _ in range(2 * MOST):
        backlog.add(Later(over_two))  # it was said


def test_results_that_come_are_no_backlog(over_two):
    backlog = Backlog()
    results = [Later(over_two) for _ in range(3 * MOST)]
    for i, result in enumerate(results):
        backlog.add((result, None))
        if i % 5 == 4:
            for earlier in results[: i - 2]:
                earlier.there = True


def test_one_device_and_real_devices_are_left_alone(over_two, monkeypatch):
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    backlog = Backlog()
    for _ in range(2 * MOST):
        backlog.add(Later(one))
        backlog.add(None)
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    backlog = Backlog()
    for _ in range(2 * MOST):
        backlog.add(Later(over_two))


@pytest.mark.slow
@pytest.mark.parametrize("waits", [True, False])
def test_a_step_that_is_not_waited_for(over_two, waits):
    """A loss that takes some time, on two devices."""

    def loss(params, x):
        return jnp.sum(jax.lax.fori_loop(0, 30, lambda _, y: jnp.tanh(y @ x), params["w"]))

    params = jax.device_put({"w": jnp.ones((100, 100))}, over_two)
    x = jax.device_put(jnp.eye(100), over_two)
    step = gradtx.make_step(loss, gradtx.sgd(0.1), donate=False)
    state = step.init(params)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2 * MOST):
            _, _, value = step(params, state, x)
            if waits:
                jax.block_until_ready(value)
        jax.block_until_ready(value)
    assert ["steps wait on simulated devices" in str(each.message) for each in caught] == (
        [] if waits else [True]
    )
