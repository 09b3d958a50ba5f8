"""Primitives of our own: mapped and differentiated like the functions that they run."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradtx.programs.opaque import is_on_one_device, opaque


def test_what_is_mapped_is_along_the_first_axis_of_each_result():
    pair = opaque("pair", lambda x, y: [x + y, x * y])
    x, y = np.arange(6.0, dtype=np.float32).reshape(3, 2), np.float32([1, 10])
    added, multiplied = jax.vmap(lambda x, y: pair.bind(x, y), in_axes=(1, 0))(x, y)
    np.testing.assert_array_equal(added, (x + y).T)
    np.testing.assert_array_equal(multiplied, (x * y).T)


def test_derivatives_are_those_of_the_function_beside_whole_numbers_that_have_none():
    counted = opaque("counted", lambda x, n: [x * n, n + 1])
    slope, count = jax.grad(lambda x: counted.bind(x, jnp.int32(3)), has_aux=True)(2.0)
    assert (slope, count) == (3.0, 4)


@pytest.mark.parametrize(
    ("context", "one"),
    [
        ({}, True),
        ({"num_devices": 1}, True),
        ({"num_devices": 2}, False),
        ({"mesh": ((), ("a", "b")), "manual_axes": ("a", "b")}, True),
        ({"mesh": (("b",), ("a", "b")), "manual_axes": ("a",)}, True),
        ({"mesh": ((), ("a", "b")), "manual_axes": ("a",)}, False),
    ],
)
def test_a_program_is_for_one_device_or_where_all_axes_are_manual(context, one):
    if "mesh" in context:
        manual, names = context["mesh"]
        mesh = SimpleNamespace(manual_axes=manual, axis_names=names)
        context = {**context, "mesh": mesh}
    lowered = SimpleNamespace(axis_context=SimpleNamespace(**context))
    assert is_on_one_device(SimpleNamespace(module_context=lowered)) is one
