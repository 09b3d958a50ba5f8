"""The catalogue on eight devices, in three ways: each the run on one device."""

import functools

import chex
import jax
import jax.numpy as jnp
import pytest

import gradtx
from tests.catalogue import CATALOGUE
from tests.distributed.meshes import (
    THIRDS,
    batch,
    loss,
    params,
    under_jit,
    under_pmap,
    under_shard_map,
    under_vmap,
)
from tests.distributed.test_meshes import FINITE_ONLY

# These round what each device sends, to float32 or less: one device does the same for all of them.
ROUNDED = {n for n in CATALOGUE if n.startswith("aggregate_")} | {"demo", "sparse_loco"}
# These add noise to a device's own sum: it is that of the whole batch only where there is one.
NOISY = {"differentially_private", "differentially_private_aggregate", "dpsgd"}
# To JAX `pmap` is a `shard_map` of the same program, so that some show what holds for all.
BY_PMAP = {n for n in THIRDS[0][::5] if n not in NOISY}
# Other steps that `jit` divides are compared in test_meshes.py.
BY_JIT = {n for n in THIRDS[0] if CATALOGUE[n].examples} | FINITE_ONLY | set(THIRDS[0][::5])


def gradients(p, *data, examples):
    """Of the batch, or of each of its examples."""
    if not examples:
        return jax.grad(loss)(p, *data)
    return jax.vmap(lambda *one: jax.grad(loss)(p, *(x[None] for x in one)))(*data)


def over_devices(axis, *data):
    """The loss on all devices' data, with a gradient that is the mean over them too.

    JAX gives each device the gradient of its own loss. A line search then decides on each for
    itself, and the devices wait for each other forever.
    """

    @jax.custom_jvp
    def value(p):
        return jax.lax.pmean(loss(p, *data), axis)

    @value.defjvp
    def _(primals, tangents):
        g = jax.lax.pmean(jax.grad(loss)(*primals, *data), axis)
        along = jax.tree.map(jnp.vdot, g, *tangents)
        return value(*primals), sum(jax.tree.leaves(along))

    return value


def run(name, axis, p, data):
    """Two steps on one device's data, aggregated over `axis` if there is one."""
    tx, examples = CATALOGUE[name].make(), CATALOGUE[name].examples
    value_fn = functools.partial(loss, x=data[0], y=data[1])
    if axis is not None:
        value_fn = over_devices(axis, *data)
        links = [tx] if name in ROUNDED else [gradtx.aggregate(axis), tx]
        tx = gradtx.chain(*(reversed(links) if examples else links))

    def step(carry, _):
        p, state = carry
        g = gradients(p, *data, examples=examples)
        extra = {"value": value_fn(p), "grad": jax.grad(value_fn)(p), "value_fn": value_fn}
        updates, state = tx.update(g, state, p, **extra)
        return (gradtx.apply_updates(p, updates), state), None

    return jax.lax.scan(step, (p, tx.init(p)), length=2)[0][0]


@pytest.mark.slow
@pytest.mark.parametrize("name", THIRDS[0])
def test_equals_the_run_on_one_device(name):
    """In float64, where no difference is due to rounding; float32 is in test_sharding.py."""
    alone, shared = functools.partial(run, name, None), functools.partial(run, name, "data")
    with jax.enable_x64(True):
        p, data = params(jnp.float64), batch(jnp.float64)
        if name in ROUNDED:
            tolerance, want = 1e-5, jax.jit(functools.partial(under_vmap, shared))(p, data)
        else:
            tolerance, want = 1e-12, jax.jit(alone)(p, data)
        found = {}
        if name in BY_JIT - ROUNDED:
            found["jit"] = under_jit(alone, p, data)
        if name not in NOISY:
            found["shard_map"] = under_shard_map(shared, p, data)
        if name in BY_PMAP:
            found["pmap"] = under_pmap(shared, p, data)
        for way, got in found.items():
            chex.assert_trees_all_close(
                got, want, rtol=tolerance, atol=tolerance, custom_message=way
            )
