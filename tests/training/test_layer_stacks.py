"""The forms in which a layer of a stack is read and written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gradtx
from gradtx.storage import Encoded
from gradtx.training import layer_stacks
from gradtx.tree.memory import HOST, is_on_host


@pytest.mark.parametrize(
    ("shape", "dtype", "rows_divided", "wanted"),
    [
        ((4, 16, 5), jnp.int8, False, (4, 2, 8, 5)),
        ((4, 16, 5), jnp.int8, True, "device"),
        ((4, 12, 8), jnp.int8, False, "device"),
        ((8, 16), jnp.int8, False, "device"),
        ((4, 16, 5), jnp.bfloat16, False, "host"),
    ],
)
def test_a_stack_of_bytes_on_the_host_is_read_in_groups_of_rows(shape, dtype, rows_divided, wanted):
    """Of eight, where they are whole ones on one device; larger numbers are read where they are."""
    found = []

    def read(x):
        made = layer_stacks.in_slices(jax.device_put(x, HOST), rows_divided)
        if layer_stacks.is_one_stack(made):
            found.append(made.array.shape)
            return made.whole()
        found.append("host" if is_on_host(made) else "device")
        return made

    made = jax.eval_shape(read, jax.ShapeDtypeStruct(shape, dtype))
    assert (made.shape, made.dtype, found) == (shape, dtype, [wanted])


def test_rows_are_divided_by_the_last_axis_but_one():
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))
    for axis, wanted in ((0, False), (1, True), (2, False)):
        spec = [None] * 3
        spec[axis] = "d"
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        assert layer_stacks.divides_rows(sharding) == wanted
    assert not layer_stacks.divides_rows(None)


@pytest.mark.slow
def test_a_layer_of_several_rows_has_the_random_numbers_of_the_stack():
    codec = gradtx.Codec("bf16", rounding="stochastic")
    slot = Encoded.of(jnp.linspace(0.1, 1.0, 48).reshape(6, 8), codec, jax.random.key(3))
    one, other = layer_stacks.layer_of(slot, jnp.int32(1), 3), slot.load()[2:4]
    np.testing.assert_array_equal(one.load(), other)
    np.testing.assert_array_equal(
        one.store(3 * other).load(), slot.store(3 * slot.load()).load()[2:4]
    )
