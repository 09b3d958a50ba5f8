<<<<<<< HEAD
"""The forms in which a layer of a stack is read and written."""
=======
"""One layer of a stack: in which forms it is read and written where the stack is."""
>>>>>>> 3f8a96f (Rows of a stack on the host are known to be divided where their sharding names fewer axes than the stack has; the forms in which a layer is read have tests of their own)

import jax
import jax.numpy as jnp
import numpy as np
import pytest
<<<<<<< HEAD
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gradtx
from gradtx.storage import Encoded
from gradtx.training import layer_stacks
=======
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import gradtx
from gradtx.training.layer_stacks import (
    as_it_was,
    divides_rows,
    in_slices,
    is_one_stack,
    layer_of,
    with_layer,
)
>>>>>>> 3f8a96f (Rows of a stack on the host are known to be divided where their sharding names fewer axes than the stack has; the forms in which a layer is read have tests of their own)
from gradtx.tree.memory import HOST, is_on_host


@pytest.mark.parametrize(
<<<<<<< HEAD
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
=======
    ("spec", "divided"),
    [
        ((None, "d", None), True),
        ((None, "d"), True),
        (("d", None, None), False),
        (("d",), False),
        ((None, None, "d"), False),
        ((), False),
    ],
)
def test_rows_are_the_last_axis_but_one(spec, divided):
    mesh = AbstractMesh((2,), ("d",))
    assert divides_rows(NamedSharding(mesh, PartitionSpec(*spec)), 3) == divided


def test_rows_of_no_sharding_and_of_vectors_are_not_divided():
    mesh = AbstractMesh((2,), ("d",))
    assert not divides_rows(None, 3)
    assert divides_rows(NamedSharding(mesh, PartitionSpec(None, None, "d")), 4)
    assert not divides_rows(NamedSharding(mesh, PartitionSpec(None, "d")), 4)


def on_host(shape, dtype):
    x = jnp.arange(np.prod(shape)).reshape(shape).astype(dtype)
    there = jax.device_put(x, HOST)
    if not is_on_host(there):
        pytest.skip("this jaxlib knows no memory of the host's on a CPU")
    return there


@pytest.mark.parametrize(
    ("shape", "dtype", "rows_divided", "form"),
    [
        ((3, 16, 12), jnp.int8, False, "groups"),
        ((3, 16, 12), jnp.int8, True, "brought in"),
        ((3, 12, 16), jnp.int8, False, "brought in"),
        ((24, 16), jnp.int8, False, "brought in"),
        ((3, 16, 12), jnp.bfloat16, False, "as it is"),
        ((3, 16, 12), jnp.float32, False, "as it is"),
    ],
)
def test_the_form_in_which_a_stack_is_read(shape, dtype, rows_divided, form):
    x = on_host(shape, dtype)
    read = in_slices(x, rows_divided)
    assert is_one_stack(read) == (form == "groups")
    (array,) = jax.tree.leaves(read)
    assert is_on_host(array) == (form != "brought in")
    assert array.shape == ((3, 2, 8, 12) if form == "groups" else shape)
    layer = layer_of(read, jnp.int32(1), 3)
    rows = shape[0] // 3
    assert np.array_equal(layer, x[rows : 2 * rows])
    new = as_it_was(x, with_layer(read, layer + 1, jnp.int32(1)))
    assert is_on_host(new)
    assert np.array_equal(
        new,
        np.asarray(x) + np.repeat([0, 1, 0], rows).reshape(-1, *[1] * (x.ndim - 1)).astype(dtype),
    )


def test_a_stack_on_the_device_is_read_as_it_is():
    x = jnp.zeros((3, 16, 12), jnp.int8)
    assert in_slices(x, False) is x


def test_a_layer_of_codes_has_the_random_numbers_that_it_has_in_the_stack():
    codec = gradtx.Codec("int8", rounding="stochastic")
    tx = gradtx.store(gradtx.sgd(0.1, momentum=0.9), codec, min_size=0)
    slots = jax.tree.leaves(tx.init(jnp.zeros((6, 4))), is_leaf=is_one_stack)
    (stack,) = filter(is_one_stack, slots)
    layer = layer_of(stack, jnp.int32(1), 3)
    parts = {name: x[2:4] for name, x in stack.parts.items()}
    assert layer.shape == (2, 4)
    assert np.array_equal(layer.key, stack.of_rows(parts, 2, jnp.int32(2)).key)
    assert not np.array_equal(layer.key, stack.of_rows(parts, 2, jnp.int32(0)).key)
>>>>>>> 3f8a96f (Rows of a stack on the host are known to be divided where their sharding names fewer axes than the stack has; the forms in which a layer is read have tests of their own)
