"""The types in which numbers are kept and computed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradtx.numerics import as_arrays, cast, compute_dtype, full_like, is_narrow, zeros_like


def test_arithmetic_is_done_in_single_precision_or_wider():
    kept = ["bfloat16", "float16", "float8_e4m3fn", "float32", "float64", "complex64", "int8"]
    computed = [*["float32"] * 4, "float64", "complex64", "int8"]
    assert [compute_dtype(kind) for kind in kept] == computed
    assert [is_narrow(kind) for kind in kept] == [True] * 3 + [False] * 4


def test_a_number_becomes_a_strong_one_and_an_array_of_the_type_is_left_alone():
    x = jnp.float32(1)
    assert cast(x, jnp.float32) is x
    assert not cast(jnp.asarray(1.0), jnp.float32).weak_type
    assert cast(x, jnp.bfloat16).dtype == jnp.bfloat16


@pytest.mark.parametrize("module", ["torch", "torch.nn.parameter", "tensorflow.python"])
def test_tensors_of_others_are_refused_with_their_path(module):
    tensor = type("Tensor", (), {"__module__": module})()
    with pytest.raises(TypeError, match=f"at 'a/0' there is a {module}.Tensor"):
        as_arrays({"a": [tensor], "b": np.ones(2)})


@pytest.mark.parametrize("like", [zeros_like, lambda x, dtype=None: full_like(x, 3, dtype)])
def test_a_weak_type_stays_weak(like):
    """Or the step after the first would be compiled again."""
    x = jnp.asarray(2.0)
    assert x.weak_type
    assert like(x).weak_type
    assert jax.jit(like)(x).weak_type
    assert not like(x, jnp.float32).weak_type
