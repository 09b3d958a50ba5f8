"""Sums over rows and over columns by a GPU's kernel, in interpret mode, against the plain path."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.kernels.both_sides import fits, in_tiles, written_and_summed
from gradtx.optimizers import came
from gradtx.programs.opaque import MOSAIC_GPU, TRITON, offers_mosaic_gpu
from tests.programs import an_h100, gpu_kernels, without


def make(slot, x, by_row, by_col, rate):
    return slot + rate * x * by_row * by_col


def terms(new, x, *_):
    return jnp.square(new - x)


def arrays(shape):
    rng = np.random.default_rng(0)
    sides = (*shape[:-1], 1), (*shape[:-2], 1, shape[-1])
    return [jnp.asarray(rng.normal(size=s), jnp.float32) for s in (shape, shape, *sides, ())]


needs_mosaic_gpu = pytest.mark.skipif(not offers_mosaic_gpu(), reason="JAX before 0.12")
COMPILERS = [TRITON, pytest.param(MOSAIC_GPU, marks=needs_mosaic_gpu)]


@pytest.mark.slow
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("shape", [(64, 128), (2, 1, 128, 64)])
def test_the_kernel_is_the_plain_path(shape, compiler):
    slot, *beside = arrays(shape)
    new = make(*(np.asarray(x, np.float64) for x in (slot, *beside)))
    square = (new - np.asarray(beside[0], np.float64)) ** 2
    want = new, square.sum(-1), square.sum(-2)
    run = functools.partial(in_tiles, make=make, terms=terms, compiler=compiler, interpret=True)
    got = jax.jit(run)(slot, *beside)
    plain = written_and_summed(make, terms, slot, *beside, after=(slot.min(), slot.max()))
    for found in (got, plain):
        chex.assert_trees_all_close(list(found), list(want), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("compiler", COMPILERS)
def test_matrices_share_what_is_one_for_all(compiler):
    """A row, a column and a whole matrix, each for both of two matrices."""
    rng = np.random.default_rng(2)
    shapes = ((2, 64, 64), (1, 1, 64), (2, 64, 1), (1, 64, 64), ())
    slot, *beside = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes)

    def formed(slot, row, column, matrix, rate):
        return slot * row + column * matrix + rate

    def summed(new, row, column, matrix, rate):
        return new * matrix

    new = formed(slot, *beside)
    products = new * beside[2]
    run = functools.partial(in_tiles, make=formed, terms=summed, compiler=compiler, interpret=True)
    found = jax.jit(run)(slot, *beside)
    want = [new, products.sum(-1), products.sum(-2)]
    chex.assert_trees_all_close(found, want, rtol=1e-5, atol=1e-4)


def test_the_kernel_writes_in_place_of_the_slot():
    run = functools.partial(in_tiles, make=make, terms=terms)
    (kernel,) = (
        eqn
        for eqn in jax.make_jaxpr(run)(*arrays((64, 128))).eqns
        if eqn.primitive.name == "pallas_call"
    )
    assert kernel.params["input_output_aliases"] == ((0, 0),)


@pytest.mark.parametrize(
    ("gradient", "count"),
    [
        (lambda x: x, 1),
        (lambda x: x @ jnp.ones((128, 128)), 1),
        (lambda x: 0.5 * x, 0),
        (lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), 0),
    ],
    ids=["an argument", "a product", "scaled", "converted"],
)
@pytest.mark.parametrize("triton", [True, False], ids=["with Triton", "without"])
def test_a_gpu_has_the_kernel_for_what_is_in_memory(gradient, count, triton, monkeypatch):
    """For a gradient that its reader could compute it would have to be stored."""
    compiler = TRITON if triton else MOSAIC_GPU
    if not triton:
        without(monkeypatch, "triton")
    slot, x, row, column, rate = arrays((64, 128))

    def run(slot, x, row, column, rate):
        given = 2 * row, gradient(x), column + 1, rate
        return written_and_summed(make, terms, slot, *given, after=(rate, rate))

    with an_h100():
        traced = jax.jit(run).trace(slot, x, row, column, rate)
        found = gpu_kernels(traced.lower(lowering_platforms=("cuda",)))
    there = count and (triton or offers_mosaic_gpu())
    assert found == ({compiler: count} if there else {})


@pytest.mark.slow
def test_came_with_the_kernel(monkeypatch):
    shapes = []

    def by_kernel(make, terms, slot, *given, after):
        del after
        shapes.append(slot.shape)
        run = functools.partial(in_tiles, make=make, terms=terms, interpret=True)
        return run(slot, *map(jnp.float32, given))

    def trained():
        p, rng = jnp.ones((2, 64, 128)), np.random.default_rng(1)
        tx = gradtx.came(0.1, b3=0.9)
        step, state = jax.jit(lambda *x: gradtx.apply_gradients(tx, *x)), tx.init(p)
        for _ in range(3):
            p, state = step(jnp.asarray(rng.normal(size=p.shape), jnp.float32), p, state)
        return p, state

    want = trained()
    monkeypatch.setattr(came, "written_and_summed", by_kernel)
    got = trained()
    assert shapes == [(2, 64, 128)]
    chex.assert_trees_all_close(got, want, rtol=1e-5, atol=1e-6)
