"""Every transformation goes through `load` and `store`: slots may be kept in any form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests.catalogue import CATALOGUE
from tests.test_contracts import WHOLE, grads, params, some, stepper, take


@jax.tree_util.register_pytree_node_class
class Half:
    """A slot kept in float16."""

    def __init__(self, kept):
        self.kept = kept

    @property
    def shape(self):
        return self.kept.shape

    def load(self):
        return self.kept.astype(jnp.float32)

    def store(self, value):
        return Half(value.astype(jnp.float16))

    def take(self, indices):
        return self.load().at[indices].get(mode="fill", fill_value=0)

    def put(self, indices, values):
        return Half(self.kept.at[indices].set(values.astype(jnp.float16), mode="drop"))

    def tree_flatten(self):
        return (self.kept,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def is_half(x):
    return isinstance(x, Half)


def in_half(tx, state):
    """`state` with every slot of floating point in `Half`."""

    def stored(x):
        return Half(x.astype(jnp.float16)) if x.dtype == jnp.float32 else x

    return gradtx.tree.map_params(tx, stored, state)


def rounded(tx, state):
    """`state` with the numbers that slots in `Half` have."""

    def short(x):
        return x.astype(jnp.float16).astype(x.dtype) if x.dtype == jnp.float32 else x

    return gradtx.tree.map_params(tx, short, state)


@pytest.mark.slow
@some("adafactor", "adam", "galore", "nadam", of=WHOLE)
def test_slots_in_half_precision(name):
    """Steps are those from slots of single precision that are rounded after each of them."""
    if name == "store":
        pytest.skip("its slots are in another form already")
    tx = CATALOGUE[name].make()
    p, state, g = params(name), tx.init(params(name)), grads(2, name)
    plain, carry = (p, rounded(tx, state)), (p, in_half(tx, state))
    slots = [gradtx.get_slot(state, n) for n in gradtx.slot_names(state)]
    floats = [x for x in jax.tree.leaves(slots) if x.dtype == jnp.float32]
    halves = [x for x in jax.tree.leaves(carry[1], is_leaf=is_half) if is_half(x)]
    assert len(halves) == len(floats)
    structure = jax.tree.structure(carry[1])
    for k in range(2):
        g_k = take(g, k)
        (plain, _), (carry, _) = stepper(name)(plain, g_k), stepper(name)(carry, g_k)
        plain = plain[0], rounded(tx, plain[1])
        assert jax.tree.structure(carry[1]) == structure
    # Between its two updates this one rounds slots too.
    limits = (2e-2, 2e-2) if name == "extragradient" else (1e-5, 1e-6)
    for got, want in zip(jax.tree.leaves(carry[0]), jax.tree.leaves(plain[0]), strict=True):
        np.testing.assert_allclose(got, want, *limits)
