"""What moves in a state."""

import jax.numpy as jnp
import pytest

import gradtx


@pytest.mark.quick(1)
@pytest.mark.parametrize("codec", [None, "bf16+8"])
def test_an_entry_moves_where_one_of_its_numbers_does(codec):
    """In a codec of two numbers an entry, a step of 2^-10 is in the second alone."""
    tx, p = gradtx.ema(0.9), jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    if codec is not None:
        tx = gradtx.store(tx, codec, min_size=1)
    before = gradtx.set_slot(tx.init(p), "ema", p)
    after = gradtx.set_slot(before, "ema", p.at[0, 1].add(1).at[1, 2].mul(1 + 2**-10))
    assert gradtx.unmoved(before, after) == {"ema": 4 / 6}


def test_states_of_two_transformations_are_refused():
    p = jnp.zeros(2)
    with pytest.raises(ValueError, match="different trees"):
        gradtx.unmoved(gradtx.ema(0.9).init(p), gradtx.adam(0.1).init(p))
