"""Sizes by name."""

import jax
import jax.numpy as jnp

import gradtx


def test_describe_counts_bytes_without_allocating():
    big = {"w": jax.ShapeDtypeStruct((10**6, 10**6), jnp.bfloat16)}
    described = gradtx.describe(gradtx.adamw(1e-3), big)
    assert {slot.name: slot.bytes for slot in described.slots} == {
        "mu": 2 * 10**12,
        "nu": 4 * 10**12,
    }
    assert described.state_bytes == 6 * 10**12 + 4
    assert "(1000000, 1000000)" in str(described)
