"""Parts of a tree, against Optax."""

import chex
import jax.numpy as jnp
import optax
import pytest

import gradtx


def test_masks_like_optax():
    p = {"a": jnp.arange(3.0), "b": {"c": jnp.ones((2, 2)), "d": -jnp.ones(1)}}
    mask = {"a": True, "b": {"c": False, "d": True}}
    # With a b2 of 0.999 Optax's 1 - b2**t, taken in float32, moves its steps by up to 1e-5.
    ours = gradtx.masked(gradtx.adam(0.1, b2=0.9), mask)
    theirs = optax.masked(optax.adam(0.1, b2=0.9), mask)
    state, state_optax = ours.init(p), theirs.init(p)
    for _ in range(3):
        updates, state = ours.update(p, state, p)
        want, state_optax = theirs.update(p, state_optax, p)
        chex.assert_trees_all_close(updates, want, rtol=1e-5)
    assert state._fields == state_optax._fields


PARAMS = {"a": jnp.ones(3), "b": {"c": jnp.ones((2, 2)), "d": jnp.ones(1)}}


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ("z", "'z' matches no leaf; the leaves are a, b/c, b/d"),
        (["a", "b/z"], "'b/z' matches no leaf"),
        ({"a": True}, "not a tree like the parameters"),
        ({"a": True, "b": {"c": True}}, "not a tree like the parameters"),
        (lambda params: {"a": True}, "not a tree like the parameters"),
    ],
)
@pytest.mark.parametrize("build", [lambda m: gradtx.masked(gradtx.adam(0.1), m), gradtx.freeze])
def test_bad_masks(build, mask, message):
    with pytest.raises(ValueError, match=message):
        build(mask).init(PARAMS)
