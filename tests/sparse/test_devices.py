"""Rows over several devices: tables sharded by row, and gradients gathered from all devices."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gradtx
from gradtx.programs.tracing import vary
from gradtx.sparse import take
from tests.quick import quick

SHAPE = (4096, 8)
RNG = np.random.default_rng(0)
TABLE = jnp.asarray(RNG.normal(size=SHAPE), jnp.float32)
IDS = jnp.asarray(RNG.zipf(1.3, size=(3, 64)) % SHAPE[0])


def loss(table, ids):
    return jnp.mean(jnp.sin(take(table, ids)) ** 2)


def train(step, table, ids):
    state = step.init(table)
    for i in ids:
        table, state, _ = step(table, state, i)
    return table, state


WRAPS = {"lazy": lambda tx: tx, "exact": gradtx.exact_rows}


@pytest.mark.slow
@pytest.mark.parametrize("by", [None, "data"], ids=["same ids everywhere", "ids sharded"])
@pytest.mark.parametrize("wrap", quick(WRAPS, "exact"))
def test_a_table_sharded_by_row(wrap, by):
    """Each device updates the rows that it owns; what is sent is as large as what is looked up."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    table = jax.device_put(TABLE, NamedSharding(mesh, PartitionSpec("data")))
    ids = jax.device_put(IDS, NamedSharding(mesh, PartitionSpec(None, by)))
    step = gradtx.make_step(loss, WRAPS[wrap](gradtx.adamw(0.1)), donate=False)
    compiled = step.lower(table, step.init(table), ids[0]).compile()
    sent = re.findall(r"= (.*) (?:all-\w+|reduce-scatter|collective-permute)\(", compiled.as_text())
    sizes = [np.prod(list(map(int, s.split(",")))) for s in re.findall(r"\[([\d,]+)\]", str(sent))]
    assert sizes
    assert max(sizes) <= ids.shape[1] * SHAPE[1]
    got, state = train(step, table, ids)
    want, reference = train(step, TABLE, IDS)
    chex.assert_trees_all_close((got, state), (want, reference), rtol=1e-6, atol=1e-7)
    assert got.sharding.is_equivalent_to(table.sharding, 2)
    for slot in ("mu", "nu"):
        assert gradtx.get_slot(state, slot).sharding.is_equivalent_to(table.sharding, 2)


@pytest.mark.slow
@pytest.mark.parametrize("account", [False, True], ids=["unchecked", "check_vma"])
def test_gradients_of_all_devices(account):
    """Data-parallel with whole tables everywhere: indices and values are gathered."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    whole, split = PartitionSpec(), PartitionSpec("data")
    tx = gradtx.chain(gradtx.aggregate("data"), gradtx.clip_by_global_norm(0.1), gradtx.adam(0.1))

    def run(table, state, ids):
        # As `aggregate` asks: else JAX would sum the gradients before it.
        seen = vary(table, {"data"}) if account else table
        _, grads = gradtx.compute_gradients(loss, seen, ids)
        assert isinstance(grads, gradtx.Rows)
        return gradtx.apply_gradients(tx, grads, table, state)

    spread = jax.jit(
        jax.shard_map(
            run,
            mesh=mesh,
            in_specs=(whole, whole, split),
            out_specs=(whole, whole),
            check_vma=account,
        )
    )
    alone = gradtx.make_step(loss, tx, donate=False)
    table, state = TABLE, tx.init(TABLE)
    for ids in IDS:
        table, state = spread(table, state, ids)
    want, reference = train(alone, TABLE, IDS)
    chex.assert_trees_all_close((table, state), (want, reference), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_rows_that_differ_between_devices_are_not_summed_unasked():
    """With check_vma JAX sums the cotangents of what is the same on all devices."""
    mesh = Mesh(np.array(jax.devices()), ("data",))

    def run(table, ids):
        _, grads = gradtx.compute_gradients(loss, table, ids)
        return grads.values

    values = jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec("data")),
        out_specs=PartitionSpec("data"),
    )(TABLE, IDS[0])
    _, want = gradtx.compute_gradients(loss, TABLE, IDS[0])
    chex.assert_trees_all_close(values, want.values * len(jax.devices()), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [400, pytest.param(403, marks=pytest.mark.slow)])
def test_rows_catch_up_where_the_state_is_divided(rows):
    table = TABLE[:rows]
    tx = gradtx.exact_rows(gradtx.adam(0.1))
    mesh = Mesh(np.array(jax.devices()), ("data",))
    whole = jax.device_put(table, NamedSharding(mesh, PartitionSpec()))
    sharding = gradtx.state_sharding(tx, whole, zero="data", min_size=1)
    ends = []
    for at, how in ((table, None), (whole, sharding)):
        step = gradtx.make_step(loss, tx, donate=False, sharding=how)
        at, state = train(step, at, IDS % rows)
        ends.append(gradtx.sparse.catch_up(tx, at, state)[0])
    chex.assert_trees_all_close(*ends, rtol=1e-6, atol=1e-7)
