"""Tables that lie row after row: the same numbers, and on a TPU no copy of a narrow one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout

import gradtx
from tests.test_aot import chips, printed


def loss(params, ids):
    return jnp.sum((gradtx.sparse.take(params["table"], ids) @ params["w"] - 1) ** 2)


@pytest.mark.slow
def test_steps_keep_the_format_and_the_numbers():
    rng = np.random.default_rng(0)
    params = {"table": jnp.asarray(rng.normal(size=(32, 4)), jnp.float32), "w": jnp.ones(4)}
    columns = Format(Layout((1, 0)), params["table"].sharding)  # as a TPU keeps it
    tx, ids = gradtx.adam(0.1), jnp.array([3, 5, 3])

    def step(params, state, ids):
        return gradtx.minimize(loss, tx, params, state, ids)

    want = jax.jit(step)(params, tx.init(params), ids)
    params["table"] = jax.device_put(params["table"], columns)
    formats = gradtx.sparse.row_major((params, tx.init(params)))
    assert formats[1][0].mu["w"] == params["w"].sharding
    placed = jax.device_put((params, tx.init(params)), formats)
    outputs = {"out_shardings": (*formats, None), "donate_argnums": (0, 1)}
    got = jax.jit(step, in_shardings=(*formats, None), **outputs)(*placed, ids)
    assert got[0]["table"].format.layout.major_to_minor == (0, 1)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_arrays_of_two_dimensions_or_more_have_a_format():
    x = [jnp.ones((2,) * n) for n in (1, 2, 3)]
    first, *others = gradtx.sparse.row_major(x)
    assert first == x[0].sharding
    assert [found.layout.major_to_minor for found in others] == [(0, 1), (0, 1, 2)]


def test_without_a_sharding():
    with pytest.raises(ValueError, match="row_major: 'a' has no sharding"):
        gradtx.sparse.row_major({"a": jax.ShapeDtypeStruct((2, 2), jnp.float32)})


NARROW = """
import json, re
from benchmarks import aot
import jax, jax.numpy as jnp
from jax.sharding import SingleDeviceSharding
import gradtx

where = SingleDeviceSharding(aot.tpu_v5e())
tx, rows = gradtx.adam(1e-3), 1_000_000

def on_chip(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)

def loss(table, ids):
    return jnp.sum((gradtx.sparse.take(table, ids) - 1) ** 2)

def step(table, state, ids):
    return gradtx.minimize(loss, tx, table, state, ids)

table = jax.ShapeDtypeStruct((rows, 64), jnp.float32, sharding=where)
state = jax.tree.map(on_chip, jax.eval_shape(tx.init, table))
formats = gradtx.sparse.row_major((table, state))
given = {"in_shardings": (*formats, where), "out_shardings": (*formats, where)}
for options, touched in (({}, 1024), (given, 1024), (given, 4096)):
    ids = on_chip(jnp.zeros(touched, jnp.int32))
    program = jax.jit(step, donate_argnums=(0, 1), **options).lower(table, state, ids).compile()
    copies = re.findall(rf"f32\\[{rows},64\\]\\S* copy\\(", program.as_text())
    print(json.dumps([len(copies), program.memory_analysis().temp_size_in_bytes]))
"""


@pytest.mark.slow
def test_a_narrow_table_is_not_copied_on_a_tpu():
    if "TPU v5e" not in chips():
        pytest.skip("no compiler for this chip: see CONTRIBUTING.md")
    (copies, temporary), *kept = printed(NARROW)
    assert copies == 6  # table and two slots, there and back: what the format is for
    assert temporary > 4 * 64 * 1_000_000
    for (copies, temporary), touched in zip(kept, (1024, 4096), strict=True):
        assert copies == 0
        assert temporary <= 4 * 128 * 4 * touched  # a few rows of 128 for each that is touched
