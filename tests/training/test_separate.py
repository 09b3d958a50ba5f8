"""Which layers a program computes apart: what the analysis says, and an oracle by numbers."""

import itertools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from gradtx.programs.separate import (
    NOBODY,
    Free,
    Layered,
    Mixed,
    free,
    in_layers,
    owned_by,
    owners_after,
)


def layers(axis, *owners):
    return Layered(axis, np.array(owners))


def alike(*axes):
    """The kind of an array without an owner, with equal entries along `axes`."""
    return Free(frozenset(axes))


def drawn(*axes):
    """The kind of random numbers that are drawn by themselves along `axes`."""
    return Free(frozenset(), frozenset(axes))


MIXED = "layers are combined, or computed unlike each other"
LOST = "layers are computed apart, which the analysis cannot tell"

# Arrays of three layers, and two of them with padding. Owners 0 to 2 are layers of one stack.
X = (3, 4), layers(0, 0, 1, 2)
Y = (4, 3), layers(1, 0, 1, 2)
ROWS = (6, 4), layers(0, 0, 0, 1, 1, 2, 2)
TWICE = (6, 4), layers(0, 0, 1, 2, 0, 1, 2)
CUBE = (3, 4, 4), layers(0, 0, 1, 2)
LAST = (4, 5, 3), layers(2, 0, 1, 2)
FILLED = (4, 4), layers(0, 0, 1, 2, NOBODY)
ONE = (3, 4), owned_by(0)
OTHER = (3, 4), owned_by(8)
SINGLE = (1, 4), layers(0, 5)
KEY = (), free((), is_random=True)
COUNT = (), free(())
NUMBER = (), alike()


def steps(x, axis=0):
    """Numbers that differ between indices along an axis, as an array of the shape of `x`."""
    return lax.broadcast_in_dim(lax.iota(jnp.float32, x.shape[axis]), x.shape, (axis,))


def dot(a, b, contracted, batched=((), ())):
    return lax.dot_general(a, b, (contracted, batched))


def noise(key, shape):
    return jax.random.uniform(key, shape)


@jax.custom_jvp
def doubled(x):
    return 2.0 * x


doubled.defjvp(lambda xs, ts: (doubled(*xs), doubled(*ts)))


@jax.custom_vjp
def summed(x):
    return x + jnp.sum(x, axis=0)


summed.defvjp(lambda x: (summed(x), None), lambda _, g: (g,))

ELEMENTWISE = {
    "one array": (lambda x: jnp.sin(-x), [X], X[1]),
    "two arrays": (lambda x, y: x * y, [X, X], X[1]),
    "of two axes": (lambda x, y: x * y, [((3, 3), X[1]), ((3, 3), Y[1])], MIXED),
    "of two axes, where one array has one owner": (
        lambda x, y: x * y,
        [((3, 3), layers(0, 5, 5, 5)), ((3, 3), layers(1, 5, 5, 5))],
        layers(0, 5, 5, 5),
    ),
    "the layers in another order": (
        lambda x, y: x * y,
        [X, ((3, 4), layers(0, 1, 0, 2))],
        MIXED,
    ),
    "with one owner": (lambda x, y: x * y, [ONE, ONE], owned_by(0)),
    "with two owners": (lambda x, y: x * y, [ONE, OTHER], MIXED),
    "of a layer with all": (lambda x, y: x * y, [X, ONE], MIXED),
    "with a number": (lambda x, n: n * x + 3.0, [X, COUNT], X[1]),
    "with a number of a layer": (lambda x, n: n * x, [X, ((), owned_by(0))], MIXED),
    "with a number of its layer": (
        lambda x, n: n * x,
        [((3, 4), owned_by(2)), ((), owned_by(2))],
        owned_by(2),
    ),
    "with numbers along the layers": (lambda x: x * steps(x), [X], MIXED),
    "with numbers along another axis": (lambda x: x * steps(x, 1), [X], X[1]),
    "with a column of numbers": (lambda x: x * steps(x[:, :1]), [X], MIXED),
    "with a column of numbers along another axis": (
        lambda x, y: x * y,
        [Y, ((4, 1), free((4, 1)))],
        Y[1],
    ),
    "with a row of numbers": (lambda x, y: x * y, [X, ((1, 4), free((1, 4)))], X[1]),
    "with a column of layers": (lambda x, y: x * y, [((3, 1), X[1]), X], X[1]),
    "with a row of one owner": (lambda x, y: x * y, [X, ((1, 4), layers(0, 0))], MIXED),
    "with a row of its owner": (
        lambda x, y: x * y,
        [((1, 4), layers(0, 5)), ((3, 4), free((3, 4)))],
        MIXED,
    ),
    "a row with equal rows": (
        lambda x, y: x * y,
        [((1, 4), layers(0, 5)), ((3, 4), alike(0))],
        layers(0, 5, 5, 5),
    ),
    "select by layers": (lambda x, y: jnp.where(x > 0, y, 0.0), [X, X], X[1]),
    "select by one layer": (lambda p, x: jnp.where(p > 0, x, 0.0), [((), owned_by(0)), X], MIXED),
    "select by what differs": (lambda x: jnp.where(steps(x) > 0, x, 0.0), [X], MIXED),
    "integers": (lambda x: lax.shift_left(x.astype(jnp.int32), 1) & 3, [X], X[1]),
    "bits of the same size": (lambda x: lax.bitcast_convert_type(x, jnp.int32), [X], X[1]),
    "bits of another size": (lambda x: lax.bitcast_convert_type(x, jnp.int16), [X], LOST),
    "filled in with filled in": (lambda x: x + x, [FILLED], FILLED[1]),
    "filled in with layers": (lambda x, y: x + y, [FILLED, ((4, 4), layers(0, *[7] * 4))], MIXED),
    "filled in with several layers": (
        lambda x, y: x * y,
        [((6, 4), layers(0, NOBODY, NOBODY, NOBODY, 0, 1, 2)), TWICE],
        MIXED,
    ),
    "filled in with one owner": (
        lambda x, y: x * y,
        [((3, 4), layers(0, NOBODY, NOBODY, -2)), ((3, 4), owned_by(-2))],
        layers(0, -2, -2, -2),
    ),
    "filled in with one layer": (
        lambda x, y: x * y,
        [((2, 4), layers(0, NOBODY, 5)), ((2, 4), layers(0, 5, 5))],
        layers(0, 5, 5),
    ),
    "equal along axes": (
        lambda x, y: x * y,
        [((2, 3, 4), alike(0, 1)), ((2, 3, 4), alike(1, 2))],
        alike(1),
    ),
    "a row of numbers with a column": (
        lambda x, y: x * y,
        [((1, 4), free((1, 4))), ((3, 1), free((3, 1)))],
        alike(),
    ),
    "a row of numbers with equal rows": (
        lambda x, y: x * y,
        [((1, 4), free((1, 4))), ((3, 4), alike(0))],
        alike(0),
    ),
}

SHAPES = {
    "broadcast: new axes": (lambda x: jnp.broadcast_to(x, (2, 3, 4)), [X], layers(1, 0, 1, 2)),
    "broadcast: to other places": (
        lambda x: lax.broadcast_in_dim(x, (5, 3, 2, 4), (1, 3)),
        [X],
        layers(1, 0, 1, 2),
    ),
    "broadcast: an axis of size 1": (
        lambda x: lax.broadcast_in_dim(x, (3, 4), (0, 1)),
        [SINGLE],
        owned_by(5),
    ),
    "broadcast: another axis of size 1": (
        lambda x: lax.broadcast_in_dim(x, (3, 4), (0, 1)),
        [((3, 1), X[1])],
        X[1],
    ),
    "broadcast: of one owner": (lambda x: jnp.broadcast_to(x, (2, 3, 4)), [ONE], owned_by(0)),
    "broadcast: a layer over layers": (lambda x, y: x + y, [X, ((4,), owned_by(0))], MIXED),
    "broadcast: numbers": (
        lambda n: lax.broadcast_in_dim(n, (5, 3, 4, 2), (1, 2)),
        [((3, 4), alike(1))],
        alike(0, 2, 3),
    ),
    "broadcast: numbers along an axis of size 1": (
        lambda n: lax.broadcast_in_dim(n, (3, 4), (0, 1)),
        [((1, 4), alike())],
        alike(0),
    ),
    "reshape: joins layers and rows": (
        lambda x: x.reshape(12),
        [X],
        layers(0, *np.repeat([0, 1, 2], 4)),
    ),
    "reshape: joins rows and layers": (
        lambda x: x.reshape(12),
        [Y],
        layers(0, *np.tile([0, 1, 2], 4)),
    ),
    "reshape: splits rows": (lambda x: x.reshape(3, 2, 2), [X], X[1]),
    "reshape: splits rows before layers": (
        lambda x: x.reshape(2, 2, 3),
        [Y],
        layers(2, 0, 1, 2),
    ),
    "reshape: splits the axis of layers": (
        lambda x: x.reshape(3, 2, 4),
        [ROWS],
        layers(0, 0, 1, 2),
    ),
    "reshape: splits the axis of layers, which repeats": (
        lambda x: x.reshape(2, 3, 4),
        [TWICE],
        LOST,
    ),
    "reshape: splits the axis of layers across them": (lambda x: x.reshape(2, 3, 4), [ROWS], LOST),
    "reshape: splits layers that repeat across them": (lambda x: x.reshape(3, 2, 4), [TWICE], LOST),
    "reshape: joins and splits": (
        lambda x: x.reshape(6, 2),
        [X],
        layers(0, 0, 0, 1, 1, 2, 2),
    ),
    "reshape: joins groups of rows": (
        lambda x: x.reshape(3, 8),
        [ROWS],
        layers(0, 0, 1, 2),
    ),
    "reshape: joins pairs of layers": (
        lambda x: x.reshape(2, 8),
        [((4, 4), layers(0, 0, 0, 2, 2))],
        layers(0, 0, 2),
    ),
    "reshape: of layers within two axes": (
        lambda x: x.reshape(4, 3),
        [((2, 6), layers(1, 0, 1, 2, 0, 1, 2))],
        LOST,
    ),
    "reshape: groups within two axes": (
        lambda x: x.reshape(6, 2),
        [((2, 6), layers(1, 0, 0, 1, 1, 2, 2))],
        layers(0, 0, 1, 2, 0, 1, 2),
    ),
    "reshape: rows of several layers": (lambda x: x.reshape(2, 6), [X], LOST),
    "reshape: of one owner": (lambda x: x.reshape(2, 6), [ONE], owned_by(0)),
    "reshape: where all layers are one": (
        lambda x: x.reshape(3, 4),
        [((2, 6), layers(0, 5, 5))],
        owned_by(5),
    ),
    "reshape: of one layer across all axes": (
        lambda x: x.reshape(3, 4),
        [((2, 6), layers(0, 5, NOBODY))],
        owned_by(5),
    ),
    "reshape: of nothing": (lambda x: x.reshape(4, 0), [((3, 0), X[1])], owned_by(NOBODY)),
    "squeeze: another axis": (
        lambda x: lax.squeeze(x, (0, 2)),
        [((1, 3, 1, 2), layers(1, 0, 1, 2))],
        X[1],
    ),
    "squeeze: the axis of layers": (lambda x: lax.squeeze(x, (0,)), [SINGLE], owned_by(5)),
    "transpose": (
        lambda x: lax.transpose(x, (1, 2, 0)),
        [((3, 2, 4), X[1])],
        layers(2, 0, 1, 2),
    ),
    "transpose: back": (
        lambda x: lax.transpose(x, (2, 0, 1)),
        [((3, 2, 4), layers(1, 8, 9))],
        layers(2, 8, 9),
    ),
    "transpose: of one owner": (lambda x: x.T, [ONE], owned_by(0)),
}

REDUCTIONS = {
    "sum of rows": (lambda x: jnp.sum(x, axis=1), [X], X[1]),
    "sum before layers": (lambda x: jnp.sum(x, axis=0), [Y], X[1]),
    "sum on both sides": (
        lambda x: jnp.sum(x, axis=(0, 2)),
        [((4, 3, 2), layers(1, 0, 1, 2))],
        X[1],
    ),
    "sum of layers": (lambda x: jnp.sum(x, axis=0), [X], MIXED),
    "sum of all": (lambda x: jnp.sum(x), [X], MIXED),
    "sum of one owner": (lambda x: jnp.sum(x), [ONE], owned_by(0)),
    "sum of a layer that is filled up": (
        lambda x: jnp.sum(x, axis=0),
        [((2, 4), layers(0, 5, NOBODY))],
        owned_by(5),
    ),
    "sum of what is filled in": (
        lambda x: jnp.sum(x, axis=0),
        [((2, 4), layers(0, NOBODY, NOBODY))],
        owned_by(NOBODY),
    ),
    "mean and maximum": (lambda x: x - jnp.max(x, axis=1, keepdims=True), [X], X[1]),
    "maximum of layers": (lambda x: x - jnp.max(x, axis=0), [X], MIXED),
    "argmax of rows": (lambda x: jnp.argmax(x, axis=1), [X], X[1]),
    "argmax of layers": (lambda x: jnp.argmax(x, axis=0), [X], MIXED),
    "a function that reduces": (
        lambda x: lax.reduce(x, 0.0, lax.add, (1,)),
        [X],
        X[1],
    ),
    "a function that reduces two arrays": (
        lambda x: lax.reduce((x, x), (0.0, 1.0), lambda a, b: (a[0] + b[0], a[1] * b[1]), (1,)),
        [X],
        [X[1], X[1]],
    ),
    "a function that reduces numbers too": (
        lambda x: lax.reduce(
            (x, steps(x)), (0.0, 0.0), lambda a, b: (a[0] + b[0], a[1] + b[1]), (1,)
        ),
        [X],
        MIXED,
    ),
}

ALONG = {
    "cumsum of rows": (lambda x: jnp.cumsum(x, axis=1), [X], X[1]),
    "cumsum of layers": (lambda x: jnp.cumsum(x, axis=0), [X], MIXED),
    "cumsum in reverse": (lambda x: lax.cumsum(x, axis=0, reverse=True), [X], MIXED),
    "cumsum of vectors": (
        lambda x: lax.cumsum(x, axis=0),
        [((3,), layers(0, 5, 5, 5))],
        owned_by(5),
    ),
    "cummax of rows": (lambda x: lax.cummax(x, axis=0), [Y], Y[1]),
    "sort of rows": (lambda x: jnp.sort(x, axis=1), [X], X[1]),
    "sort of layers": (lambda x: jnp.sort(x, axis=0), [X], MIXED),
    "sort of two arrays": (
        lambda x, y: lax.sort((x, y), dimension=1),
        [X, X],
        [X[1], X[1]],
    ),
    "sort of numbers by layers": (lambda x: lax.sort((x, steps(x)), dimension=1), [X], MIXED),
    "argsort of rows": (lambda x: jnp.argsort(x, axis=1), [X], LOST),
    "argsort of layers": (lambda x: jnp.argsort(x, axis=0), [X], MIXED),
    "rev of rows": (lambda x: lax.rev(x, (1,)), [X], X[1]),
    "rev of layers": (lambda x: lax.rev(x, (1, 0)), [X], MIXED),
    "rev of one owner": (lambda x: lax.rev(x, (1, 0)), [ONE], owned_by(0)),
}

CUTS = {
    "slice: rows": (lambda x: x[:, 1:3], [X], X[1]),
    "slice: rows with strides": (lambda x: lax.slice(x, (0, 1), (3, 4), (1, 2)), [X], X[1]),
    "slice: layers alike": (lambda x: x[3:], [TWICE], X[1]),
    "slice: layers with strides": (lambda x: lax.slice(x, (1, 0), (6, 4), (2, 1)), [ROWS], X[1]),
    "slice: padding away": (lambda x: x[:3], [FILLED], X[1]),
    "slice: the layers of one stack": (
        lambda x: x[1:],
        [((3, 4), layers(0, 2, 8, 9))],
        layers(0, 8, 9),
    ),
    "slice: of one owner": (lambda x: x[1:], [ONE], owned_by(0)),
    "slice: one layer": (lambda x: x[1], [X], MIXED),
    "slice: all but one layer": (lambda x: x[1:], [X], MIXED),
    "slice: other rows in each layer": (lambda x: x[1:5], [ROWS], MIXED),
    "slice: rows of some layers": (lambda x: x[1:], [ROWS], MIXED),
    "slice: of outside and inside": (
        lambda x: x[1:],
        [((4, 4), layers(0, -2, -2, 8, 9))],
        layers(0, -2, 8, 9),
    ),
    "dynamic slice: rows": (lambda x, i: lax.dynamic_slice(x, (0, i), (3, 2)), [X, COUNT], X[1]),
    "dynamic slice: layers": (lambda x, i: lax.dynamic_slice(x, (i, 0), (2, 4)), [X, COUNT], MIXED),
    "dynamic slice: of one owner": (
        lambda x, i: lax.dynamic_slice(x, (i, 0), (2, 4)),
        [ONE, COUNT],
        owned_by(0),
    ),
    "dynamic slice: of one layer that is filled up": (
        lambda x, i: lax.dynamic_slice(x, (i, 0), (1, 4)),
        [((2, 4), layers(0, 5, NOBODY)), COUNT],
        owned_by(5),
    ),
    "dynamic slice: where a layer says": (
        lambda x, i: lax.dynamic_slice(x, (0, i.astype(int)), (3, 2)),
        [X, ((), owned_by(0))],
        MIXED,
    ),
    "dynamic slice: of numbers where a layer says": (
        lambda x, i: lax.dynamic_slice(x, (0, i.astype(int)), (3, 2)),
        [((3, 4), free((3, 4))), ((), owned_by(0))],
        LOST,
    ),
    "dynamic update": (
        lambda x, i: lax.dynamic_update_slice(x, x[:, :1], (0, i)),
        [X, COUNT],
        LOST,
    ),
    "pad: rows": (lambda x: jnp.pad(x, ((0, 0), (1, 2))), [X], X[1]),
    "pad: rows within": (lambda x: lax.pad(x, 0.0, ((0, 0, 0), (0, 0, 1))), [X], X[1]),
    "pad: before": (
        lambda x: jnp.pad(x, ((2, 0), (0, 0))),
        [X],
        layers(0, NOBODY, NOBODY, 0, 1, 2),
    ),
    "pad: after": (lambda x: jnp.pad(x, ((0, 1), (0, 0))), [X], FILLED[1]),
    "pad: with a number": (
        lambda x, n: lax.pad(x, n, ((1, 1, 0), (0, 0, 0))),
        [X, NUMBER],
        layers(0, NOBODY, 0, 1, 2, NOBODY),
    ),
    "pad: with a number of a layer": (
        lambda x, n: lax.pad(x, n, ((1, 1, 0), (0, 0, 0))),
        [X, ((), owned_by(0))],
        MIXED,
    ),
    "pad: of numbers with that of a layer": (
        lambda x, n: lax.pad(x, n, ((1, 1, 0), (0, 0, 0))),
        [((3, 4), free((3, 4))), ((), owned_by(0))],
        LOST,
    ),
    "pad: of one owner": (lambda x: jnp.pad(x, 1), [ONE], owned_by(0)),
    "pad: layers within": (lambda x: lax.pad(x, 0.0, ((0, 0, 1), (0, 0, 0))), [X], LOST),
    "pad: layers away": (lambda x: lax.pad(x, 0.0, ((-1, 1, 0), (0, 0, 0))), [X], MIXED),
    "pad: layers away at the end": (
        lambda x: lax.pad(x, 0.0, ((1, -1, 0), (0, 0, 0))),
        [X],
        MIXED,
    ),
    "pad: a layer that is cut": (
        lambda x: lax.pad(x, 0.0, ((-1, 1, 0), (0, 0, 0))),
        [((3, 4), layers(0, 5, 5, NOBODY))],
        owned_by(5),
    ),
    "gather: of one owner": (lambda x, i: x[i], [ONE, COUNT], owned_by(0)),
    "gather: layers": (lambda x, i: x[jnp.full(2, i)], [X, COUNT], MIXED),
    "gather: of one owner by what differs": (
        lambda x, i: x[i.astype(int)],
        [ONE, ((2,), free((2,)))],
        LOST,
    ),
    "gather: by equal numbers": (
        lambda x, i: x[i.astype(int)],
        [ONE, ((2,), alike(0))],
        owned_by(0),
    ),
    "scatter: of two owners": (lambda x, y: x.at[0].set(y[0]), [ONE, OTHER], MIXED),
    "scatter: of an owner and what is filled in": (
        lambda x, y: x.at[:2].set(y),
        [ONE, ((2, 4), owned_by(NOBODY))],
        owned_by(0),
    ),
    "two results of an operation that is not known": (
        lambda x: tuple(lax.top_k(x, 2)),
        [ONE],
        [owned_by(0), owned_by(0)],
    ),
    "split: rows": (lambda x: tuple(lax.split(x, (1, 3), axis=1)), [X], [X[1]] * 2),
}

JOINS = {
    "concatenate: rows": (
        lambda x, y: lax.concatenate((x, y), 1),
        [X, X],
        X[1],
    ),
    "concatenate: rows and numbers": (
        lambda x, y: lax.concatenate((x, y), 1),
        [X, ((3, 2), alike(0))],
        X[1],
    ),
    "concatenate: rows and numbers that differ": (
        lambda x, y: lax.concatenate((x, y), 1),
        [X, ((3, 2), free((3, 2)))],
        MIXED,
    ),
    "concatenate: rows in another order": (
        lambda x, y: lax.concatenate((x, y), 1),
        [X, ((3, 2), layers(0, 1, 0, 2))],
        MIXED,
    ),
    "concatenate: layers": (lambda x, y: lax.concatenate((x, y), 0), [X, X], TWICE[1]),
    "concatenate: layers, numbers and one owner": (
        lambda x, y, z: lax.concatenate((x, y, z), 0),
        [X, ((2, 4), free((2, 4))), ((2, 4), owned_by(8))],
        layers(0, 0, 1, 2, NOBODY, NOBODY, 8, 8),
    ),
    "concatenate: owners": (
        lambda x, y: lax.concatenate((x, y), 1),
        [ONE, OTHER],
        layers(1, *[0] * 4, *[8] * 4),
    ),
    "concatenate: layers along two axes": (
        lambda x, y: lax.concatenate((x, y), 0),
        [X, ((2, 4), layers(1, 0, 1, 2, 3))],
        MIXED,
    ),
    "concatenate: numbers that differ, and then without layers": (
        lambda x: lax.concatenate((steps(x), x), 0)[:3] + x,
        [X],
        MIXED,
    ),
    "concatenate: one layer that is twice as long": (
        lambda x: jnp.concatenate([2 * x[:1], x[1:]]),
        [X],
        MIXED,
    ),
    "roll: rows": (lambda x: jnp.roll(x, 1, axis=1), [X], X[1]),
    "roll: layers": (lambda x: jnp.roll(x, 1, axis=0), [X], MIXED),
    "stack: one": (lambda x: jnp.stack([x]), [X], layers(1, 0, 1, 2)),
    "stack: before": (lambda x: jnp.stack([x, x]), [X], layers(1, 0, 1, 2)),
    "stack: at the layers": (
        lambda x: jnp.stack([x, x], axis=1),
        [Y],
        layers(2, 0, 1, 2),
    ),
    "stack: after": (lambda x: jnp.stack([x, x], axis=1), [X], X[1]),
    "stack: with equal numbers": (
        lambda x, y: jnp.stack([x, y]),
        [X, ((3, 4), alike(0))],
        layers(1, 0, 1, 2),
    ),
    "stack: with numbers that differ": (
        lambda x, y: jnp.stack([x, y]),
        [X, ((3, 4), alike(1))],
        MIXED,
    ),
    "stack: with an owner": (lambda x, y: jnp.stack([x, y]), [X, OTHER], MIXED),
    "stack: owners": (
        lambda x, y, z: jnp.stack([x, y, z], axis=1),
        [OTHER, ((3, 4), free((3, 4))), ONE],
        layers(1, 8, NOBODY, 0),
    ),
    "unstack: rows": (lambda x: tuple(jnp.unstack(x)), [Y], [X[1]] * 4),
    "unstack: layers": (lambda x: tuple(jnp.unstack(x)), [X], MIXED),
    "unstack: one layer": (lambda x: tuple(jnp.unstack(x)), [SINGLE], [owned_by(5)]),
    "unstack: layers and stack them": (
        lambda x: jnp.stack([2 * x[0], *x[1:]]) if x.ndim else x,
        [X],
        MIXED,
    ),
}

PRODUCTS = {
    "dot: batches": (
        lambda x, y: dot(x, y, ((2,), (1,)), ((0,), (0,))),
        [CUBE, ((3, 4, 5), X[1])],
        X[1],
    ),
    "dot: batches at other places": (
        lambda x, y: dot(x, y, ((0,), (1,)), ((2, 1), (2, 0))),
        [LAST, ((5, 4, 3), layers(2, 0, 1, 2))],
        layers(0, 0, 1, 2),
    ),
    "dot: the second batch": (
        lambda x, y: dot(x, y, ((0,), (1,)), ((1, 2), (0, 2))),
        [LAST, ((5, 4, 3), free((5, 4, 3)))],
        MIXED,
    ),
    "dot: with equal matrices in a batch": (
        lambda x, y: dot(x, y, ((0,), (1,)), ((1, 2), (0, 2))),
        [LAST, ((5, 4, 3), alike(2))],
        layers(1, 0, 1, 2),
    ),
    "dot: batches in another order": (
        lambda x, y: dot(x, y, ((2,), (1,)), ((0,), (0,))),
        [CUBE, ((3, 4, 5), layers(0, 1, 0, 2))],
        MIXED,
    ),
    "dot: rows of the left": (
        lambda x, w: x @ w,
        [X, ((4, 5), free((4, 5)))],
        X[1],
    ),
    "dot: the second axis of the left": (
        lambda x, w: dot(x, w, ((2,), (0,))),
        [((2, 3, 4), layers(1, 0, 1, 2)), ((4, 5), free((4, 5)))],
        layers(1, 0, 1, 2),
    ),
    "dot: columns of the right": (
        lambda w, x: dot(w, x, ((2,), (0,))),
        [((2, 5, 4), free((2, 5, 4))), Y],
        layers(2, 0, 1, 2),
    ),
    "dot: the first other axis of the right": (
        lambda w, x: dot(w, x, ((2,), (1,))),
        [((2, 5, 4), free((2, 5, 4))), ((3, 4, 7), X[1])],
        layers(2, 0, 1, 2),
    ),
    "dot: the second other axis of the right with a batch": (
        lambda w, x: dot(w, x, ((2,), (1,)), ((0,), (0,))),
        [((6, 2, 4), free((6, 2, 4))), ((6, 4, 7, 3), layers(3, 0, 1, 2))],
        layers(3, 0, 1, 2),
    ),
    "dot: the second other axis of the left with a batch": (
        lambda x, w: dot(x, w, ((1,), (1,)), ((0,), (0,))),
        [((6, 4, 7, 3), layers(3, 0, 1, 2)), ((6, 4), free((6, 4)))],
        layers(2, 0, 1, 2),
    ),
    "dot: over layers": (lambda x, w: x.T @ w, [X, ((3, 5), free((3, 5)))], MIXED),
    "dot: over layers of both": (lambda x, y: x.T @ y, [X, X], MIXED),
    "dot: each layer with each": (lambda x: x @ x.T, [X], MIXED),
    "dot: over one owner": (lambda x, w: x @ w, [ONE, ((4, 5), free((4, 5)))], owned_by(0)),
    "dot: over a layer that is filled up": (
        lambda x, w: w @ x,
        [((2, 4), layers(0, 5, NOBODY)), ((3, 2), free((3, 2)))],
        owned_by(5),
    ),
    "dot: of two owners": (lambda x, y: x @ y.T, [ONE, OTHER], MIXED),
    "convolution": (
        lambda x, w: lax.conv(x, w, (1,), "SAME"),
        [((3, 1, 4), X[1]), ((1, 1, 3), alike(0, 1, 2))],
        LOST,
    ),
    "cholesky: batches": (lambda x: lax.linalg.cholesky(x + 9 * jnp.eye(4)), [CUBE], X[1]),
    "cholesky: of the second axis of a batch": (
        lambda x: lax.linalg.cholesky(x + 9 * jnp.eye(4)),
        [((2, 3, 4, 4), layers(1, 0, 1, 2))],
        layers(1, 0, 1, 2),
    ),
    "cholesky: of rows": (
        lambda x: lax.linalg.cholesky(x, symmetrize_input=False),
        [((3, 3), X[1])],
        MIXED,
    ),
    "cholesky: of columns": (
        lambda x: lax.linalg.cholesky(x, symmetrize_input=False),
        [((2, 3, 3), layers(2, 0, 1, 2))],
        MIXED,
    ),
    "cholesky: of one owner": (
        lambda x: lax.linalg.cholesky(x),
        [((3, 3), owned_by(5))],
        owned_by(5),
    ),
    "cholesky: of one owner by rows": (
        lambda x: lax.linalg.cholesky(x),
        [((3, 3), layers(0, 5, 5, 5))],
        owned_by(5),
    ),
    "lu: batches": (lambda x: tuple(lax.linalg.lu(x)), [CUBE], [X[1]] * 3),
    "qr: of rows": (lambda x: tuple(jnp.linalg.qr(x)), [X], MIXED),
    "triangular solve: batches": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True),
        [CUBE, ((3, 4, 2), X[1])],
        X[1],
    ),
    "triangular solve: matrices that differ": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True),
        [((3, 4, 4), free((3, 4, 4))), ((3, 4, 2), X[1])],
        MIXED,
    ),
    "triangular solve: equal matrices": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True),
        [((3, 4, 4), alike(0)), ((3, 4, 2), X[1])],
        X[1],
    ),
    "triangular solve: columns": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True),
        [((4, 4), free((4, 4))), Y],
        LOST,
    ),
    "tridiagonal solve: batches": (
        lambda d, b: lax.linalg.tridiagonal_solve(0 * d, d, 0 * d, b),
        [X, ((3, 4, 2), X[1])],
        X[1],
    ),
    "tridiagonal solve: the second axis of a batch": (
        lambda d, b: lax.linalg.tridiagonal_solve(0 * d, d, 0 * d, b),
        [((2, 3, 4), layers(1, 0, 1, 2)), ((2, 3, 4, 2), layers(1, 0, 1, 2))],
        layers(1, 0, 1, 2),
    ),
    "tridiagonal solve: columns": (
        lambda d, b: lax.linalg.tridiagonal_solve(0 * d, d, 0 * d, b),
        [((4,), free((4,))), Y],
        LOST,
    ),
    "tridiagonal solve: over layers": (
        lambda d, b: lax.linalg.tridiagonal_solve(0 * d + 0.1, d, 0 * d + 0.1, b),
        [((3,), X[1]), ((3, 2), free((3, 2)))],
        MIXED,
    ),
    "householder product: batches": (
        lambda a, t: lax.linalg.householder_product(a, t),
        [CUBE, ((3, 2), X[1])],
        X[1],
    ),
    "householder product: over layers": (
        lambda a, t: lax.linalg.householder_product(a, t),
        [((4, 4), free((4, 4))), ((3,), X[1])],
        MIXED,
    ),
}


def carried(body, start, xs):
    return lax.scan(body, start, xs)


def repeated(x, going, body):
    return lax.while_loop(going, body, (jnp.float32(0), x))[1]


CONTROL = {
    "nested": (jax.jit(lambda x: jax.jit(jnp.exp)(x) * 2), [X], X[1]),
    "nested mix": (jax.jit(lambda x: jax.jit(jnp.sum)(x) * x), [X], MIXED),
    "checkpoint": (jax.checkpoint(lambda x: 2 * x), [X], X[1]),
    "checkpoint mix": (jax.checkpoint(lambda x: x + jnp.sum(x, 0)), [X], MIXED),
    "custom_jvp": (lambda x: doubled(x), [X], X[1]),
    "custom_vjp": (lambda x: summed(x), [X], MIXED),
    "custom_vjp of rows": (lambda x: summed(x), [Y], Y[1]),
    "barrier": (
        lambda x, y: tuple(lax.optimization_barrier((x, y))),
        [X, ((5,), alike(0))],
        [X[1], alike(0)],
    ),
    "device put": (
        lambda x, n: tuple(jax.device_put((x, n))),
        [X, ((3,), free((3,)))],
        [X[1], alike()],
    ),
    "cond: layers in both": (
        lambda n, x: lax.cond(n > 0, lambda x: 2 * x, lambda x: -x, x),
        [COUNT, X],
        X[1],
    ),
    "cond: layers in the first": (
        lambda n, x: lax.switch(
            n.astype(int), [lambda x: 2 * x, lambda x: jnp.ones_like(x), jnp.zeros_like], x
        ),
        [COUNT, X],
        X[1],
    ),
    "cond: layers in the second": (
        lambda n, x: lax.cond(n > 0, lambda x: 2 * x, jnp.zeros_like, x),
        [COUNT, X],
        X[1],
    ),
    "cond: what differs in the second": (
        lambda n, x: lax.cond(n > 0, lambda x: steps(x), lambda x: 2 * x, x),
        [COUNT, X],
        MIXED,
    ),
    "cond: other layers in each": (
        lambda n, x, y: lax.cond(n > 0, lambda x, y: x, lambda x, y: y, x, y),
        [COUNT, X, ((3, 4), layers(0, 1, 0, 2))],
        MIXED,
    ),
    "cond: a mix in the second": (
        lambda n, x: lax.cond(n > 0, lambda x: x + jnp.sum(x, 0), lambda x: x, x),
        [COUNT, X],
        MIXED,
    ),
    "cond: a mix in the third": (
        lambda n, x: lax.switch(
            n.astype(int), [lambda x: x, lambda x: 2 * x, lambda x: x + jnp.sum(x, 0)], x
        ),
        [((), alike()), X],
        MIXED,
    ),
    "cond: decided by a layer": (
        lambda n, x: lax.cond(n > 0, lambda x: 2 * x, lambda x: x, x),
        [((), owned_by(0)), X],
        MIXED,
    ),
    "cond: numbers": (
        lambda n, x: lax.cond(n > 0, lambda x: 2 * x, jnp.zeros_like, x),
        [COUNT, ((2, 3), alike(1))],
        alike(1),
    ),
    "while: each layer": (
        lambda x: repeated(x, lambda c: c[0] < 2, lambda c: (c[0] + 1, 2 * c[1])),
        [X],
        X[1],
    ),
    "while: with numbers of the function": (
        lambda x, n, y: repeated(x, lambda c: c[0] < n, lambda c: (c[0] + n + 1, y * c[1])),
        [X, COUNT, X],
        X[1],
    ),
    "while: a mix": (
        lambda x: repeated(x, lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] + jnp.sum(c[1], 0))),
        [X],
        MIXED,
    ),
    "while: until a layer says": (
        lambda x: repeated(
            x, lambda c: (c[0] < 2) & (c[1][0, 0] > 0), lambda c: (c[0] + 1, 2 * c[1])
        ),
        [X],
        MIXED,
    ),
    "while: until all say": (
        lambda x: repeated(
            x, lambda c: (c[0] < 2) & (jnp.max(c[1]) < 9), lambda c: (c[0] + 1, 2 * c[1])
        ),
        [X],
        MIXED,
    ),
    "while: layers that come in late": (
        lambda x: lax.fori_loop(0, 4, lambda i, c: (x, c[0], c[1], c[2]), (jnp.zeros((3, 4)),) * 4),
        [X],
        [X[1]] * 4,
    ),
    "while: numbers that differ late": (
        lambda x: lax.fori_loop(
            0, 4, lambda i, c: (steps(x), c[0], c[1] * x), (jnp.zeros((3, 4)),) * 3
        ),
        [X],
        MIXED,
    ),
    "while: numbers": (
        lambda n: lax.fori_loop(0, 2, lambda i, c: 2 * c, n),
        [((2, 3), alike(1))],
        alike(1),
    ),
    "scan: over rows": (
        lambda x: carried(lambda c, x: (c + x, 2 * c), jnp.zeros(3), x),
        [Y],
        [X[1], Y[1]],
    ),
    "scan: over layers": (
        lambda x: carried(lambda c, x: (c, 2 * x), 0.0, x)[1],
        [X],
        LOST,
    ),
    "scan: over layers with a sum": (
        lambda x: carried(lambda c, x: (c + x, c), jnp.zeros(4), x),
        [X],
        MIXED,
    ),
    "scan: over one owner": (
        lambda x: carried(lambda c, x: (c + x, c), jnp.zeros(4), x),
        [ONE],
        [owned_by(0), owned_by(0)],
    ),
    "scan: layers in all places": (
        lambda w, c, x: carried(lambda c, x: (c + w, x * w), c, x),
        [
            ((2, 3), layers(1, 0, 1, 2)),
            ((2, 3), layers(1, 0, 1, 2)),
            ((4, 2, 3), layers(2, 0, 1, 2)),
        ],
        [layers(1, 0, 1, 2), layers(2, 0, 1, 2)],
    ),
    "scan: two carries and a constant": (
        lambda w, x, y: carried(
            lambda c, y: ((c[0] * w, c[1] + 1), y * c[0]), (x, jnp.zeros((2,))), y
        ),
        [X, X, ((5, 3, 4), layers(1, 0, 1, 2))],
        [X[1], alike(0), layers(1, 0, 1, 2)],
    ),
    "scan: a carry that mixes": (
        lambda x, y: carried(lambda c, y: (c + jnp.sum(c, 0), y), x, y),
        [X, Y],
        MIXED,
    ),
    "scan: with equal numbers": (
        lambda x, n: carried(lambda c, n: (c * n, c), x, n)[0],
        [X, ((5, 3, 4), alike(1))],
        X[1],
    ),
    "scan: with numbers that differ": (
        lambda x, n: carried(lambda c, n: (c * n, c), x, n)[0],
        [X, ((5, 3, 4), alike(0, 2))],
        MIXED,
    ),
    "scan: with numbers that are equal along the last axis": (
        lambda x, n: carried(lambda c, n: (c * n, c), x, n)[0],
        [((4, 3, 2), layers(1, 0, 1, 2)), ((5, 4, 3, 2), alike(2))],
        layers(1, 0, 1, 2),
    ),
    "scan: numbers": (
        lambda n: carried(lambda c, n: (c, 2 * n), 0.0, n),
        [((5, 2, 3), alike(0, 2))],
        [alike(), alike(2)],
    ),
    "scan: numbers of each turn": (
        lambda n: carried(lambda c, m: (c + 1, n), 0.0, jnp.zeros(5)),
        [((2, 3), alike(0, 1))],
        [alike(), alike(1, 2)],
    ),
}

RANDOM = {
    "noise": (lambda k, x: x * noise(k, (3, 4)), [KEY, X], X[1]),
    "noise for rows": (lambda k, x: x * noise(k, (4,)), [KEY, X], MIXED),
    "a random number": (lambda k, x: x * noise(k, ()), [KEY, X], MIXED),
    "noise in a row": (lambda k, x: x * noise(k, (1, 4)), [KEY, X], MIXED),
    "noise in a column": (lambda k, x: x * noise(k, (3, 1)), [KEY, X], X[1]),
    "noise times numbers that differ": (
        lambda k, x: x * (steps(x) * noise(k, (3, 4))),
        [KEY, X],
        MIXED,
    ),
    "noise times numbers along rows": (
        lambda k, x: x * (steps(x, 1) * noise(k, (3, 4))),
        [KEY, X],
        X[1],
    ),
    "noise times a random number": (
        lambda k, x: x * (noise(k, (3, 4)) * noise(k, ())),
        [KEY, X],
        MIXED,
    ),
    "noise times noise": (
        lambda k, x: x * (noise(k, (3, 4)) * noise(k, (3, 4))),
        [KEY, X],
        X[1],
    ),
    "noise times noise for rows": (
        lambda k, x: x * (noise(k, (3, 4)) * noise(k, (4,))),
        [KEY, X],
        MIXED,
    ),
    "noise that is sorted": (
        lambda k, x: x * jnp.sort(noise(k, (3, 4)), axis=0),
        [KEY, X],
        MIXED,
    ),
    "noise within layers of one owner": (lambda k, x: x * noise(k, (3, 4)), [KEY, ONE], MIXED),
    "noise of what is outside": (
        lambda k, x: x * noise(k, (3, 4)),
        [KEY, ((3, 4), owned_by(-2))],
        owned_by(-2),
    ),
    "noise of many keys": (
        lambda k, x: x * jax.vmap(lambda k: noise(k, (4,)))(jax.random.split(k, 3)),
        [KEY, X],
        MIXED,
    ),
    "noise of many keys along rows": (
        lambda k, x: x * jax.vmap(lambda k: noise(k, (3,)))(jax.random.split(k, 4)),
        [KEY, Y],
        Y[1],
    ),
    "noise of a constant key": (
        lambda x: x * noise(jax.random.key(1), (3, 4)),
        [X],
        MIXED,
    ),
    "noise in a product": (lambda k, x: x @ noise(k, (4, 4)), [KEY, X], MIXED),
    "bits": (lambda k: jax.random.bits(k, (3, 4)), [KEY], drawn(0, 1)),
    "bits in more axes": (
        lambda k: jnp.broadcast_to(jax.random.bits(k, (3, 1)), (2, 3, 4)),
        [KEY],
        Free(frozenset([0, 2]), frozenset([1])),
    ),
    "bits in a choice": (
        lambda k, n: lax.cond(
            n > 0, lambda k: jax.random.bits(k, (3,)), lambda k: jnp.zeros(3, jnp.uint32), k
        ),
        [KEY, COUNT],
        drawn(),
    ),
    "bits in both branches": (
        lambda k, n: lax.cond(
            n > 0,
            lambda k: jax.random.bits(k, (3, 4)),
            lambda k: jnp.broadcast_to(jax.random.bits(k, (4,)), (3, 4)),
            k,
        ),
        [KEY, COUNT],
        drawn(1),
    ),
    "a random choice": (
        lambda k, x: lax.cond(noise(k, ()) > 0.5, lambda x: 2 * x, lambda x: x, x),
        [KEY, X],
        MIXED,
    ),
    "a random choice of numbers": (
        lambda k, n: lax.cond(noise(k, ()) > 0.5, lambda n: 2 * n, lambda n: n, n),
        [KEY, ((2, 3), alike(0))],
        Free(frozenset([0]), frozenset()),
    ),
    "a random number of turns": (
        lambda k, x: repeated(x, lambda c: c[0] < noise(k, ()), lambda c: (c[0] + 1, 2 * c[1])),
        [KEY, X],
        MIXED,
    ),
    "noise of each turn": (
        lambda k: carried(lambda c, i: (c, jax.random.bits(k, (3, 4))), 0.0, jnp.zeros(5))[1],
        [KEY],
        drawn(1, 2),
    ),
    "noise that a loop reads": (
        lambda k, x: carried(lambda c, n: (c * n, None), x, noise(k, (5, 3, 4)))[0],
        [KEY, X],
        X[1],
    ),
    "noise that a loop keeps": (
        lambda k, x: repeated(x, lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] * noise(k, (4,)))),
        [KEY, X],
        MIXED,
    ),
}

CASES = {
    f"{kind}: {name}": case
    for kind, cases in {
        "elementwise": ELEMENTWISE,
        "shapes": SHAPES,
        "reductions": REDUCTIONS,
        "along": ALONG,
        "cuts": CUTS,
        "joins": JOINS,
        "products": PRODUCTS,
        "control": CONTROL,
        "random": RANDOM,
    }.items()
    for name, case in cases.items()
}


def form(kind):
    """A kind as what can be compared."""
    if isinstance(kind, Free):
        return kind
    return kind.axis if kind.axis is None else int(kind.axis), np.asarray(kind.owners).tolist()


def struct(given):
    shape = given[0]
    if given is KEY:
        return jax.ShapeDtypeStruct(shape, jax.random.key(0).dtype)
    return jax.ShapeDtypeStruct(shape, jnp.int32 if given is COUNT else jnp.float32)


def analysed(f, given):
    """The kinds of the results, as the analysis says; None if it says that layers are mixed."""
    closed = jax.make_jaxpr(f)(*map(struct, given))
    try:
        return owners_after(closed, [kind for _, kind in given])
    except Mixed:
        return None


def test_kinds_of_inputs():
    assert form(in_layers(4, 3, 6)) == (0, [4, 4, 5, 5, 6, 6])
    assert form(owned_by(7)) == (None, [7])
    assert free((1, 2, 1, 3)) == Free(frozenset([0, 2]))
    assert free((1, 2), is_random=True) == Free(frozenset([0]), frozenset())


@pytest.mark.parametrize("name", CASES)
def test_owners_of_the_results(name):
    f, given, expected = CASES[name]
    found = analysed(f, given)
    if expected in (MIXED, LOST):
        assert found is None
    else:
        kinds = expected if isinstance(expected, list) else [expected]
        assert list(map(form, found)) == list(map(form, kinds))


def entries(shape, kind, rng):
    """Numbers of a kind, all positive."""
    x = rng.uniform(0.5, 2.0, shape).astype(np.float32)
    for axis in kind.flat if isinstance(kind, Free) else ():
        x = np.broadcast_to(np.take(x, [0], axis), shape).copy()
    return x


def owners_of(shape, kind):
    """The owner of each entry."""
    if isinstance(kind, Free):
        return np.full(shape, NOBODY)
    like = np.ones(len(shape), int)
    if kind.axis is not None:
        like[kind.axis] = -1
    return np.broadcast_to(np.reshape(kind.owners, like), shape)


def exchanged(x, owners, a, b):
    """The array in which two owners' entries have changed places."""
    x, mine, theirs = x.copy(), owners == a, owners == b
    x[mine], x[theirs] = x[theirs], x[mine]
    return x


def contradiction(f, given, kinds):
    """How the numbers that `f` computes contradict the kinds of its results; None if they do not.

    The entries of one owner are changed, and only its own may change in the results. The entries of
    two layers of a stack change places, and those of the results change places.
    """
    rng = np.random.default_rng(0)
    rows = [(entries(shape, kind, rng), owners_of(shape, kind)) for shape, kind in given]
    cast = [struct(each).dtype for each in given]

    def run(xs):
        with np.errstate(all="ignore"):
            found = f(*(jnp.asarray(x, dtype) for x, dtype in zip(xs, cast, strict=True)))
        return [np.asarray(x) for x in jax.tree.leaves(found)]

    xs, places = [x for x, _ in rows], [owners for _, owners in rows]
    results = run(xs)
    expected = [owners_of(x.shape, kind) for x, kind in zip(results, kinds, strict=True)]
    present = np.unique(np.concatenate([x.ravel() for x in [*places, *expected]])).tolist()
    for x, kind in zip(results, kinds, strict=True):
        for axis in kind.flat if isinstance(kind, Free) else ():
            if np.any(x != np.take(x, [0], axis)):
                return f"entries differ along axis {axis}"
    for owner in present:
        if owner == NOBODY:
            continue
        others = [np.where(at == owner, x + 0.5, x) for x, at in zip(xs, places, strict=True)]
        for x, new, at in zip(results, run(others), expected, strict=True):
            if np.any((x != new) & (at != owner)):
                return f"what is not of owner {owner} depends on it"
    for a, b in itertools.pairwise(present):
        if a < 0 or b != a + 1:
            continue
        others = [exchanged(x, at, a, b) for x, at in zip(xs, places, strict=True)]
        for x, new, at in zip(results, run(others), expected, strict=True):
            if np.sum(at == a) != np.sum(at == b):
                return f"owners {a} and {b} have unlike parts of a result"
            if not np.allclose(exchanged(x, at, a, b), new, rtol=1e-5, equal_nan=True):
                return f"owners {a} and {b} are computed unlike each other"
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case[2] not in (MIXED, LOST)])
def test_no_numbers_contradict_the_owners(name):
    f, given, expected = CASES[name]
    if KEY not in given:
        kinds = expected if isinstance(expected, list) else [expected]
        assert contradiction(f, given, kinds) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("f", "kind", "what"),
    [
        (lambda x: jnp.cumsum(x, axis=0), X[1], "what is not of owner 0 depends on it"),
        (lambda x: x * steps(x), X[1], "owners 0 and 1 are computed unlike each other"),
        (lambda x: x.at[2].set(0.0), X[1], "owners 1 and 2 are computed unlike each other"),
        (lambda x: x[:2], layers(0, 0, 1), "owners 1 and 2 have unlike parts of a result"),
        (lambda x: steps(x), alike(0, 1), "entries differ along axis 0"),
    ],
)
def test_numbers_contradict_wrong_owners(f, kind, what):
    assert contradiction(f, [X], [kind]) == what


def reshaped(x, n):
    return x.reshape(n, -1) if n else x.reshape(-1)


UNARY = [
    lambda x, n: jnp.sin(x),
    lambda x, n: x.T,
    lambda x, n: jnp.sum(x, axis=n % x.ndim),
    lambda x, n: jnp.max(x, axis=n % x.ndim, keepdims=True),
    lambda x, n: jnp.cumsum(x, axis=n % x.ndim),
    lambda x, n: jnp.sort(x, axis=n % x.ndim),
    lambda x, n: lax.rev(x, (n % x.ndim,)),
    lambda x, n: jnp.roll(x, 1, axis=n % x.ndim),
    lambda x, n: reshaped(x, n % 7),
    lambda x, n: x[n % 3 :],
    lambda x, n: x[:, n % 3 :],
    lambda x, n: x[n % 2 :: 2],
    lambda x, n: lax.slice_in_dim(x, 0, 3, axis=n % x.ndim),
    lambda x, n: lax.dynamic_slice_in_dim(x, n % 2, 2, axis=n // 2 % x.ndim),
    lambda x, n: jnp.broadcast_to(x, (2, *x.shape)),
    lambda x, n: jnp.expand_dims(x, n % (x.ndim + 1)),
    lambda x, n: jnp.squeeze(x),
    lambda x, n: jnp.pad(x, [(n % 2, n // 2 % 2)] + [(0, 0)] * (x.ndim - 1)),
    lambda x, n: lax.pad(x, 0.5, [(0, 0, 0)] * (x.ndim - 1) + [(n % 3 - 1, 1, n % 2)]),
    lambda x, n: x * steps(x, n % x.ndim),
    lambda x, n: lax.scan(lambda c, x: (c + x, c * 2), jnp.zeros(x.shape[1:]), x)[n % 2],
    lambda x, n: lax.cond(n % 2 > 0, lambda x: 2 * x, lambda x: x - 1, x),
    lambda x, n: jnp.unstack(x, axis=n % x.ndim)[n % 2],
    lambda x, n: lax.fori_loop(0, n % 3, lambda i, x: x * i, x),
]
BINARY = [
    lambda x, y, n: x * y,
    lambda x, y, n: x + y,
    lambda x, y, n: jnp.where(x > 1, y, 0.5),
    lambda x, y, n: lax.concatenate((x, y), n % x.ndim),
    lambda x, y, n: jnp.stack([x, y], axis=n % (x.ndim + 1)),
    lambda x, y, n: jnp.tensordot(x, y, 1),
    lambda x, y, n: jnp.tensordot(x, y, ((n % x.ndim,), (n // 2 % y.ndim,))),
    lambda x, y, n: jnp.einsum("bi,bj->bij", x, y),
    lambda x, y, n: lax.scan(lambda c, y: (c * y, c), x, y)[n % 2],
    lambda x, y, n: jax.device_put((x, y))[n % 2],
]
GIVEN = [
    X,
    Y,
    ROWS,
    TWICE,
    OTHER,
    ((3, 4), alike(0)),
    ((3, 1), free((3, 1))),
    ((3,), layers(0, 0, 1, 2)),
]
STEP = st.tuples(st.integers(0, len(UNARY) + len(BINARY) - 1), *[st.integers(0, 99)] * 3)


@pytest.mark.slow
@hypothesis.given(st.lists(STEP, min_size=2, max_size=8))
@hypothesis.settings(max_examples=100)
def test_no_numbers_contradict_the_owners_in_any_program(program):
    def f(*arrays):
        made = list(arrays)
        for which, i, j, n in program:
            x, y = made[-1 - i % min(len(made), 3)], made[-1 - j % len(made)]
            try:
                if which < len(UNARY):
                    made.append(UNARY[which](x, n))
                else:
                    made.append(BINARY[which - len(UNARY)](x, y, n))
            except (TypeError, ValueError, IndexError, ZeroDivisionError):
                continue  # it is not for arrays of these shapes
        return tuple(made[len(arrays) :])

    def made_at(i):
        return lambda *arrays: f(*arrays)[i]

    for i in range(len(jax.eval_shape(f, *map(struct, GIVEN)))):
        kinds = analysed(made_at(i), GIVEN)
        if kinds is not None:
            assert contradiction(made_at(i), GIVEN, kinds) is None
