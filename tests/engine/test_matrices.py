"""Arrays as batches of matrices, and rules on matrices of one shape from several leaves."""

# Sees mutants of: places.

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gradtx
from gradtx import MuonDimensionNumbers
from gradtx.engine.matrices import MatrixDimensions, as_matrices, matrixwise
from gradtx.ownership.owned_slots import is_owned

LAYOUTS = [
    # shape, numbers, the axes that are batch, rows and columns, and by hand the matrices
    ((4, 6), (0, 1), ((), (0,), (1,)), lambda x: [x]),
    ((4, 6), (-1, 0), ((), (1,), (0,)), lambda x: [x.T]),
    ((2, 4, 6), (1, 2), ((0,), (1,), (2,)), list),
    ((5, 2, 3), (0, (1, 2)), ((), (0,), (1, 2)), lambda x: [x.reshape(len(x), 6)]),
    (
        (2, 3, 4, 5),
        (3, 1),
        ((0, 2), (3,), (1,)),
        lambda x: [y[:, i].T for y in x for i in range(4)],
    ),
    ((4, 6), (0, 1, (1, 3)), ((1,), (0,), (1,)), lambda x: [x[:, i : i + 2] for i in (0, 2, 4)]),
    ((6, 4), (0, 1, (0, 2)), ((0,), (0,), (1,)), lambda x: [x[:3], x[3:]]),
    ((6, 4), (0, 1, (0, 6)), ((0,), (0,), (1,)), lambda x: list(x[:, None])),  # of one row each
    ((3, 1, 4), (1, 2), ((0,), (1,), (2,)), list),
    (
        (2, 4, 6),
        (1, 2, (1, 2)),
        ((0, 1), (1,), (2,)),
        lambda x: [y[i : i + 2] for y in x for i in (0, 2)],
    ),
]


@pytest.mark.parametrize(("shape", "numbers", "axes", "by_hand"), LAYOUTS)
def test_an_array_is_a_batch_of_matrices_and_back(shape, numbers, axes, by_hand):
    how = as_matrices("test", (), shape, MuonDimensionNumbers(*numbers))
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    want = np.stack(by_hand(x))
    assert (how.sizes, how.rows, how.columns) == (want.shape, *want.shape[1:])
    np.testing.assert_array_equal(how.take(x), want)
    np.testing.assert_array_equal(how.put(how.take(x)), x)
    assert how.axes == axes
    many = how.stacked(3)
    np.testing.assert_array_equal(many.take(np.stack([x] * 3)), np.concatenate([want] * 3))
    assert how.of_shape(shape) is how
    if how.split == how.shape:  # as scales have, of which there are fewer than entries
        half = tuple(n // 2 if i in axes[1] else n for i, n in enumerate(shape))
        y = x[tuple(slice(n) for n in half)]
        np.testing.assert_array_equal(how.of_shape(half).take(y), np.stack(by_hand(y)))
        stack = many.of_shape((3, *half)).take(np.stack([y] * 3))
        np.testing.assert_array_equal(stack, np.concatenate([by_hand(y)] * 3))


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ((0, 2), r"the axes \(2,\) are not axes of an array with 2 dimensions"),
        ((-3, 1), r"the axes \(-3,\) are not axes"),
        ((0, (1, -2)), "an axis occurs twice"),
        ((0, 1, (1, 4)), "axis 1 is not rows or columns of 4 heads of equal size"),
        ((0, 1, (1, 0)), "axis 1 is not rows or columns of 0 heads"),
    ],
)
def test_numbers_that_an_array_does_not_have_are_refused(numbers, says):
    with pytest.raises(ValueError, match=f"test: at 'w', of shape .*{says}"):
        path = (jax.tree_util.DictKey("w"),)
        as_matrices("test", path, (4, 6), MuonDimensionNumbers(*numbers))


class SeenState(NamedTuple):
    count: gradtx.Counter
    total: gradtx.Slots
    last: gradtx.Slots


def numbers_of(tree):
    """The last two axes are rows and columns."""
    numbers = MuonDimensionNumbers(-2, -1)
    return jax.tree.map(lambda p: numbers if p.ndim > 1 else None, tree)


@gradtx.transformation
def sums():
    """The sum of each row over all steps, in place of its entries, and the last gradient kept."""

    def rule(g, s, t):
        total = s.total + jnp.sum(g, -1)
        return g + 10 * s.last + 100 * total[..., None], {"total": total, "last": g}

    return matrixwise(
        SeenState,
        lambda p: {"last": jnp.zeros_like(p)},
        rule,
        MatrixDimensions(numbers_of, MuonDimensionNumbers),
        factors={"total": lambda how, p: jnp.zeros(how.sizes[:2])},
    )


def by_hand(gs):
    """The updates and slots of one leaf after some steps."""
    total, last = np.zeros(gs[0].shape[:-1]), np.zeros(gs[0].shape)
    for g in gs:
        total = total + g.sum(-1)
        update, last = g + 10 * last + 100 * total[..., None], g
    return update, total.reshape(-1, total.shape[-1]), last


LEAVES = {
    "a": (2, 3, 4),
    "b": (3, 4),
    "c": (3, 3, 4),
    "d": (3, 4),
    "e": (2, 3),
    "f": (2, 2, 3),
    "v": (5,),
}


def gradients(seed):
    rng = np.random.default_rng(seed)
    return {n: rng.integers(-3, 4, shape).astype(np.float32) for n, shape in LEAVES.items()}


def check(updates, state, gs):
    for n in [n for n in LEAVES if n != "v"]:
        update, total, last = by_hand([g[n] for g in gs])
        np.testing.assert_array_equal(updates[n], update)
        np.testing.assert_array_equal(state.total[n], total)
        np.testing.assert_array_equal(state.last[n], last)


def test_matrices_of_one_shape_are_one_batch_whatever_leaves_they_are_in():
    tx, gs = sums(), [gradients(seed) for seed in range(3)]
    step, state = jax.jit(tx.update), tx.init(gs[0])
    for g in gs:
        updates, state = step(g, state)
    check(updates, state, gs)
    np.testing.assert_array_equal(updates["v"], gs[-1]["v"])
    assert state.total["v"] is None


@pytest.mark.quick(1)
@pytest.mark.parametrize("balance", [False, True])
def test_matrices_and_their_slots_may_have_owners(balance):
    """Columns lie on two devices. A step beside the mesh goes on with slots that lie there."""
    tx, gs = sums(), [gradients(seed) for seed in range(3)]
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2], axis_types=(AxisType.Auto,))
    where = {
        n: NamedSharding(mesh, PartitionSpec(*[None] * (len(shape) - 1), "x"))
        if shape[-1] == 4
        else NamedSharding(mesh, PartitionSpec())
        for n, shape in LEAVES.items()
    }
    sharding = gradtx.state_sharding(tx, gs[0], where, min_size=1, balance=balance)
    state = sharding.init(tx, jax.device_put(gs[0], where))
    owned = {n for n in LEAVES if is_owned(state.total[n]) and is_owned(state.last[n])}
    assert owned == {"a", "b", "c", "d"}
    assert state.total["b"].value.shape == (2, 3)
    assert state.total["d"].value is None
    step = jax.jit(sharding.placed(tx).update)
    for g in gs[:2]:
        updates, state = step(jax.device_put(g, where), state)
    check(updates, sharding.whole(state), gs[:2])
    updates, new = jax.jit(tx.update)(gs[2], state)
    check(updates, sharding.whole(new), gs)
    assert [x.shape for x in jax.tree.leaves(new)] == [x.shape for x in jax.tree.leaves(state)]
