"""Slots of equal leaves as one stack, and each by itself again, to the bit."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.engine.matrices import as_matrices
from gradtx.ownership.owned_slots import OwnBatches, Share, apart, in_stacks, is_owned, stacked
from gradtx.storage import Encoded

SHAPE = (6, 2, 5)
HOW = as_matrices("test", (), SHAPE, gradtx.MuonDimensionNumbers(0, 2))
"""Two matrices of 6 x 5 in each leaf, along its second axis."""


def shares(count, matrices=HOW, shape=SHAPE, begin=None):
    return [Share(0, k, count, shape, matrices, ("x",), begin) for k in range(count)]


def numbers(count, shape=SHAPE):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(count)]


def alike(found, want):
    assert jax.tree.structure(found) == jax.tree.structure(want)
    jax.tree.map(np.testing.assert_array_equal, found, want)


@pytest.mark.parametrize(("count", "begin"), [(1, None), (3, None), (3, 5)])
def test_a_stack_has_the_matrices_of_all_leaves(count, begin):
    slots = numbers(count)
    owned = stacked(slots, shares(count, begin=begin), 4)
    assert [each.shape for each in owned] == [SHAPE] * count
    assert [each.value is None for each in owned] == [False] + [True] * (count - 1)
    matrices = np.concatenate([np.moveaxis(np.asarray(x), 1, 0) for x in slots])
    whole = np.zeros((4 if count == 1 else 8, 6, 5), np.float32)
    whole[: len(matrices)] = matrices
    np.testing.assert_array_equal(owned[0].value, np.roll(whole, begin or 0, axis=0))
    alike(apart({"a": owned, "b": slots[0]}), {"a": slots, "b": slots[0]})
    alike(in_stacks([*slots, slots[0]], [*owned, slots[0]]), [*owned, slots[0]])


def test_stacks_are_made_and_taken_apart_in_one_program():
    """Simulated devices wait for ever where several programs that communicate run at a time."""
    slots = numbers(3)
    owned = stacked(slots, shares(3), 4)
    made = jax.make_jaxpr(lambda x: in_stacks(x, [*owned, *owned]))([*slots, *slots])
    assert len(made.eqns) == len(jax.make_jaxpr(apart)([owned, owned]).eqns) == 1


def test_a_stack_has_the_factors_of_all_leaves():
    slots = numbers(3, (2, 6, 6))
    owned = stacked(slots, shares(3, None, (2, 6, 6)), 4)
    np.testing.assert_array_equal(owned[0].value[:6], jnp.concatenate(slots))
    assert owned[0].value.shape == (8, 6, 6)
    alike(apart(owned), slots)
    alike(in_stacks(slots, owned), owned)


OWN = [
    # The leaves and the batch axes of each, into how many these are divided, and the sharers.
    ((2, 3, 4), (1, 1, 2), 1),
    ((1, 3, 4), (1, 1, 2), 4),
    ((2, 4, 3, 6), (1, 2, 1, 3), 2),
    ((2, 3, 4), (1, 1, 3), 5),
]


@pytest.mark.quick(2)
@pytest.mark.parametrize(("sizes", "shards", "sharers"), OWN)
def test_each_device_has_its_own_matrices_next_to_one_another(sizes, shards, sharers):
    """By counting for each device which matrices are its own; the last case does not divide."""
    slots = np.arange(1, 6 * np.prod(sizes) + 1, dtype=np.float32).reshape(*sizes, 2, 3)
    own = OwnBatches(sizes, shards, sharers, ())
    assert own.devices == math.prod(shards) * sharers
    assert isinstance(own.devices, int)
    factors = [jnp.asarray(x.reshape(-1, 2, 3)) for x in slots]
    share = [
        Share(0, k, len(slots), factors[k].shape, None, ("x",), None, own)
        for k in range(len(slots))
    ]
    owned = stacked(factors, share, own.devices)
    each = [-(-n // d) for n, d in zip(sizes, shards, strict=True)]
    want = []
    for device in itertools.product(*map(range, shards)):
        starts = [i * n for i, n in zip(device, each, strict=True)]
        mine = np.zeros((*each, 2, 3), np.float32)
        there = slots[tuple(slice(a, a + n) for a, n in zip(starts, each, strict=True))]
        mine[tuple(map(slice, there.shape))] = there
        mine = mine.reshape(-1, 2, 3)
        want += [*mine, *np.zeros((-len(mine) % sharers, 2, 3), np.float32)]
    np.testing.assert_array_equal(owned[0].value, want)
    assert len(want) % own.devices == 0
    alike(apart(owned), factors)


@pytest.mark.parametrize(
    ("codec", "matrices", "begin"),
    [
        (gradtx.Codec("bf16"), HOW, 2),
        (gradtx.Codec("int8", axis=0, block=3), HOW, None),
        (gradtx.Codec("int8", axis=1, block=3), None, 2),
    ],
)
def test_codes_are_moved_and_not_coded_again(codec, matrices, begin):
    """Blocks of three rows stay whole, with a scale for each of the two in a column."""
    shape = SHAPE if matrices else (2, 6, 5)

    @jax.jit
    def run(values):
        slots = [Encoded.of(x, codec) for x in values]
        owned = stacked(slots, shares(3, matrices, shape, begin), 4)
        loaded = owned[0].value.load(), [x.load() for x in slots]
        return slots, owned, apart(owned), in_stacks(slots, owned), loaded

    slots, owned, back, again, (whole, each) = run(numbers(3, shape))
    assert owned[0].value.shape == whole.shape == (8, 6, 5)
    assert owned[0].value.codec.axis == (None if codec.axis is None else 1)
    want = np.concatenate([np.moveaxis(x, 1, 0) if matrices else x for x in each])
    np.testing.assert_array_equal(np.roll(whole, -(begin or 0), axis=0)[:6], want)
    alike(back, slots)
    alike(again, owned)


@pytest.mark.parametrize(
    ("shape", "numbers", "axis", "fits"),
    [
        ((6, 2, 5), (0, 2), 0, True),
        ((6, 2, 5), (0, 2), 2, True),
        ((6, 2, 5), (0, 2), 1, False),  # blocks of several matrices
        (
            (6, 2, 5),
            ((0, 1), 2),
            0,
            False,
        ),  # blocks of some of a matrix's rows, not next to another
        ((6, 2, 5), ((0, 1), 2), 2, True),
        ((6, 4), (0, 1, (1, 2)), 0, False),  # heads have one axis in two
    ],
)
def test_a_stack_divides_no_block(shape, numbers, axis, fits):
    how = as_matrices("test", (), shape, gradtx.MuonDimensionNumbers(*numbers))
    (share,) = shares(1, how, shape)
    x = jax.ShapeDtypeStruct(shape, jnp.float32)

    def in_codec(*given, **options):
        return jax.eval_shape(lambda x: Encoded.of(x, gradtx.Codec(*given, **options)), x)

    assert share.fits(x)
    assert share.fits(in_codec("bf16"))
    assert share.fits(in_codec("int8", axis=axis)) == fits
    assert not share.fits(in_codec("int8", axis=axis, rounding="stochastic"))


def test_codecs_that_differ_stay_apart():
    slots = numbers(2)
    owned = stacked(slots, shares(2), 4)
    mixed = [jax.jit(lambda x: Encoded.of(x, gradtx.Codec("bf16")))(slots[0]), slots[1]]
    kept = in_stacks(mixed, owned)
    assert not any(map(is_owned, kept))
    alike(kept, mixed)
