"""One layer of a stack: in which forms it is read and written where the stack is."""

# Sees mutants of: encoded.

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import gradtx
from gradtx.backward.layer_stacks import (
    as_it_was,
    divides_rows,
    in_slices,
    is_one_stack,
    layer_of,
    with_layer,
)
from gradtx.leaves.memory import HOST, is_on_host


@pytest.mark.parametrize(
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


@pytest.mark.quick(1)
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


@pytest.mark.slow
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
