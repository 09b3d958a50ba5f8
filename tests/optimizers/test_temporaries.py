"""What a donated step allocates besides its arguments."""

import jax
import jax.numpy as jnp
import pytest

import gradtx
from tests.programs import temporary_bytes

pytestmark = pytest.mark.compiled


@pytest.mark.parametrize("make", [gradtx.adabelief, gradtx.adadelta, gradtx.adopt, gradtx.rprop])
def test_no_copy_of_a_slot(make):
    """Optax's step copies one slot, Adadelta's two."""
    n = 1 << 16
    p = jax.ShapeDtypeStruct((n,), jnp.float32)
    tx = make(0.01)

    def step(p, state, g):
        updates, state = tx.update(g, state, p)
        return gradtx.apply_updates(p, updates), state

    state = jax.eval_shape(tx.init, p)
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(p, state, p).compile()
    assert temporary_bytes(compiled) < n


COUNT = 2**22


@pytest.mark.parametrize(
    ("name", "copies"),
    [("lamb", 1), ("lars", 1), ("fromage", 0), ("novograd", 0), ("adafactor", 1)],
)
def test_temporaries(name, copies):
    """What one donated step of a large leaf allocates besides its arguments."""
    tx = getattr(gradtx, name)(1e-3)
    p = jax.ShapeDtypeStruct((2048, COUNT // 2048), jnp.float32)

    def step(p, state, g):
        updates, state = tx.update(g, state, p)
        return gradtx.apply_updates(p, updates), state

    lowered = jax.jit(step, donate_argnums=(0, 1)).lower(p, jax.eval_shape(tx.init, p), p)
    assert temporary_bytes(lowered.compile()) <= (copies + 0.01) * 4 * COUNT
