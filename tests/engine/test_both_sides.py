"""Sums over rows and over columns by a GPU's kernel, in interpret mode, against the plain path."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.engine.both_sides import fits, in_tiles, written_and_summed
from gradtx.optimizers import came


def make(slot, x, by_row, by_col, rate):
    return slot + rate * x * by_row * by_col


def terms(new, x, *_):
    return jnp.square(new - x)


def arrays(shape):
    rng = np.random.default_rng(0)
    sides = (*shape[:-1], 1), (*shape[:-2], 1, shape[-1])
    return [jnp.asarray(rng.normal(size=s), jnp.float32) for s in (shape, shape, *sides, ())]


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(64, 128), (2, 3, 128, 64)])
def test_the_kernel_is_the_plain_path(shape):
    slot, *beside = arrays(shape)
    new = make(*(np.asarray(x, np.float64) for x in (slot, *beside)))
    square = (new - np.asarray(beside[0], np.float64)) ** 2
    want = new, square.sum(-1), square.sum(-2)
    got = in_tiles(slot, *beside, make=make, terms=terms, interpret=True)
    plain = written_and_summed(make, terms, slot, *beside, after=(slot.min(), slot.max()))
    for found in (got, plain):
        chex.assert_trees_all_close(list(found), list(want), rtol=1e-5, atol=1e-5)


def test_which_arrays_it_takes():
    assert fits(*arrays((64, 128)))
    assert fits(*arrays((2, 64, 64)))
    assert not fits(*arrays((64, 100)))
    assert not fits(*arrays((32, 64)))
    assert not fits(*arrays((0, 64, 64)))
    slot, *beside = arrays((64, 64))
    assert not fits(slot.astype(jnp.complex64), *beside)
    with jax.enable_x64(True):
        assert not fits(slot.astype(jnp.float64), *beside)


def test_came_with_the_kernel(monkeypatch):
    def by_kernel(make, terms, slot, *given, after):
        del after
        if not fits(slot, given[0]):
            pytest.fail("the leaf does not fit the kernel")
        run = functools.partial(in_tiles, make=make, terms=terms, interpret=True)
        return run(slot, *map(jnp.float32, given))

    def trained():
        p, rng = jnp.ones((2, 64, 128)), np.random.default_rng(1)
        tx = gradtx.came(0.1, b3=0.9)
        state = tx.init(p)
        for _ in range(3):
            g = jnp.asarray(rng.normal(size=p.shape), jnp.float32)
            p, state = gradtx.apply_gradients(tx, g, p, state)
        return p, state

    want = trained()
    monkeypatch.setattr(came, "written_and_summed", by_kernel)
    chex.assert_trees_all_close(trained(), want, rtol=1e-5, atol=1e-6)
