"""What is said of steps that rounding loses, and that they are lost."""

import jax.numpy as jnp
import pytest

import gradtx


def test_describe_says_it():
    narrow = {"a": jnp.ones(2), "v": jnp.ones(2, jnp.bfloat16), "w": jnp.ones(2, jnp.bfloat16)}
    told = gradtx.describe(gradtx.adam(1e-3), narrow)
    assert "'v' and 1 more in bfloat16" in told.warning
    assert told.warning in str(told)
    assert gradtx.describe(gradtx.compensated(gradtx.adam(1e-3)), narrow).warning is None
    assert "warning" not in str(gradtx.describe(gradtx.adam(1e-3), {"a": jnp.ones(2)}))


@pytest.mark.parametrize(("dtype", "share"), [("bfloat16", 256), ("float16", 2048)])
def test_the_share_below_which_updates_are_lost(dtype, share):
    """One of a share and less is lost by no number."""
    p = 1 + jnp.arange(share // 2, dtype=dtype) / (share // 2)
    said = gradtx.describe(gradtx.sgd(0.1), p).warning
    assert f"in {dtype} is" in said
    assert f"below 1/{2 * share} of it is lost, one below 1/{share} may be" in said

    def moved(part):
        return [bool(each) for step in (p, -p) for each in (p + step * part != p)]

    assert not any(moved(0.99 / (2 * share)))
    assert True in (below := moved(0.99 / share))
    assert False in below
    assert all(moved(1.01 / share))
