"""What reads the loss decides alike on all devices and hosts, from the loss of all of them."""

import json
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests.distributed.meshes import (
    N,
    batch,
    loss,
    mesh,
    on,
    params,
    under_pmap,
    under_shard_map,
    under_vmap,
)
from tests.processes import ROOT, environment

STEPS = 6
# Both decide by the loss: the first after each step, the second in each step.
READERS = {
    "reduce_on_plateau": lambda: gradtx.chain(
        gradtx.sgd(1.0), gradtx.reduce_on_plateau(0.5, patience=1, rtol=0.1)
    ),
    "polyak_sgd": lambda: gradtx.polyak_sgd(1.0),
}
WAYS = {
    "pmap": under_pmap,
    "vmap": under_vmap,
    "shard_map": under_shard_map,
    "checked": lambda *given: under_shard_map(*given, check_vma=True),
}


def trained(tx, p, data):
    """The parameters after some steps, and the scale of each step if there is one."""
    state, scales = tx.init(p), []
    for _ in range(STEPS):
        p, state, _ = gradtx.minimize(loss, tx, p, state, *data)
        scales += [gradtx.tree.get(state, "scale", default=jnp.ones([]))]
    return p, jnp.stack(scales)


def close(got, want):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), got, want)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", READERS)
def test_devices_decide_by_the_loss_of_the_whole_batch(name, way):
    made = READERS[name]()
    want = jax.jit(lambda p, data: trained(made, p, data))(params(), batch())
    if name == "reduce_on_plateau":
        assert len(set(want[1].tolist())) > 2
    tx = gradtx.chain(gradtx.aggregate("data"), gradtx.share_value(made, "data"))
    close(WAYS[way](lambda p, data: trained(tx, p, data), params(), batch()), want)


@pytest.mark.slow
def test_without_it_each_device_goes_its_own_way():
    """Which JAX notices where it tracks what differs, and says nothing of elsewhere."""
    tx = gradtx.chain(gradtx.aggregate("data"), READERS["reduce_on_plateau"]())
    parts = jax.tree.map(lambda x: x.reshape(N, -1, *x.shape[1:]), batch())
    _, scales = jax.pmap(lambda d: trained(tx, params(), d), axis_name="data")(parts)
    assert len({tuple(s) for s in scales.tolist()}) > 1
    with pytest.raises(ValueError, match="out_specs"):
        WAYS["checked"](lambda p, data: trained(tx, p, data), params(), batch())


@pytest.mark.slow
def test_under_jit_the_loss_of_a_sharded_batch_is_that_of_all_devices():
    """With and without it, which does nothing here."""
    m, made = mesh(data=N), READERS["reduce_on_plateau"]()
    placed = jax.device_put((params(), batch()), (on(m), on(m, "data")))
    want = jax.jit(lambda p, data: trained(made, p, data))(params(), batch())
    for tx in (made, gradtx.share_value(made, "data")):
        close(jax.jit(lambda p, data, tx=tx: trained(tx, p, data))(*placed), want)


def test_weights_are_those_of_aggregate():
    """A device that has no examples says nothing, not even by a loss that is NaN."""

    def told(updates, state, params=None, *, value, **extra_args):
        return value, state

    reader = gradtx.GradientTransformationExtraArgs(lambda params: (), told)
    tx = gradtx.share_value(reader, "data")

    def seen(value, weight):
        return tx.update(jnp.ones(2), (), value=value, weight=weight)[0]

    values, weights = jnp.array([1.0, 4.0, jnp.nan]), jnp.array([2.0, 1.0, 0.0])
    got = jax.vmap(seen, axis_name="data")(values, weights)
    np.testing.assert_allclose(got, [2.0, 2.0, 2.0])


def test_other_axes_are_refused():
    tx = gradtx.share_value(gradtx.polyak_sgd(), "model")
    with pytest.raises(ValueError, match="share_value: there is no axis 'model' here"):
        WAYS["shard_map"](lambda p, data: trained(tx, p, data), params(), batch())


PROGRAM = """
import json, sys
import jax, numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]), initialization_timeout=120)
import gradtx
from tests.distributed.meshes import batch, params
from tests.distributed.test_shared_value import READERS, trained
mesh = Mesh(np.array(jax.devices()), ("data",), axis_types=(AxisType.Auto,))
rows, made = NamedSharding(mesh, P("data")), READERS["reduce_on_plateau"]()
def put(x):
    x = np.asarray(x)
    return jax.make_array_from_callback(x.shape, rows, lambda index: x[index])
data, p = jax.tree.map(put, batch()), jax.tree.map(np.asarray, params())
tx = gradtx.chain(gradtx.aggregate("data"), gradtx.share_value(made, "data"))
own = jax.shard_map(
    lambda p, d: trained(tx, p, d), mesh=mesh, in_specs=(P(), P("data")), out_specs=P()
)
ways = own, lambda p, d: trained(made, p, d)
print(json.dumps([jax.jit(f)(p, data)[1].addressable_data(0).tolist() for f in ways]))
"""


@pytest.mark.slow
@pytest.mark.xdist_group("hosts")
def test_two_processes_lower_the_rate_at_the_same_steps():
    """In a `shard_map` over the devices of both, and under plain `jit`."""
    made = READERS["reduce_on_plateau"]()
    _, want = jax.jit(lambda p, data: trained(made, p, data))(params(), batch())
    with socket.socket() as free:
        free.bind(("localhost", 0))
        coordinator = f"localhost:{free.getsockname()[1]}"
    hosts = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, coordinator, str(i)],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    try:
        told = [host.communicate(timeout=300)[0] for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert [json.loads(one.splitlines()[-1]) for one in told] == [[want.tolist()] * 2] * 2
