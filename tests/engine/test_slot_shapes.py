"""A rule returns its slots in the shapes in which they are kept, whatever its scope."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

import gradtx
from gradtx.engine.matrices import MatrixDimensions


class MomentState(NamedTuple):
    moment: gradtx.Slots


def of_lists(rule):
    def on_lists(g, s, t):
        u, new = rule(g[0], s, t)
        return [u], {n: [x] for n, x in new.items()}

    return on_lists


def test_a_slot_read_like_an_item_is_named():
    rule = lambda g, s, t: (g + s["moment"], {"moment": g})  # noqa: E731
    tx = gradtx.elementwise(MomentState, None, rule)
    with pytest.raises(TypeError, match=r"a slot is an attribute: write s\.moment"):
        tx.update(jnp.ones(2), tx.init(jnp.ones(2)))


ROWS_AND_COLUMNS = MatrixDimensions(None, gradtx.MuonDimensionNumbers)


@pytest.mark.parametrize(
    "moment", [jnp.sum, lambda g: 1.0, lambda g: g[..., :1]], ids=["sum", "1", "column"]
)
@pytest.mark.parametrize(
    "lifted",
    [
        lambda rule: gradtx.elementwise(MomentState, None, rule),
        lambda rule: gradtx.rowwise(MomentState, None, rule),
        lambda rule: gradtx.leafwise(MomentState, None, rule),
        lambda rule: gradtx.chain(gradtx.trace(0.9), gradtx.elementwise(MomentState, None, rule)),
        lambda rule: gradtx.matrixwise(MomentState, None, rule, ROWS_AND_COLUMNS),
        lambda rule: gradtx.treewise(MomentState, None, of_lists(rule)),
        lambda rule: gradtx.tuplewise(
            MomentState,
            lambda ps: {"moment": jax.tree.map(jnp.zeros_like, ps)},
            of_lists(rule),
            lambda tree: [("w",)],
        ),
    ],
    ids=["entry", "row", "leaf", "chain", "matrix", "tree", "tuple"],
)
def test_a_slot_that_a_rule_returns_in_another_shape_is_refused(lifted, moment):
    tx = lifted(lambda g, s, t: (g, {"moment": moment(g)}))
    params = {"w": jnp.ones((3, 2))}
    state = tx.init(params)
    says = r"at 'w' the rule returned the slot moment in the shape .* kept in the shape .*3, 2\)"
    with pytest.raises(ValueError, match=says):
        jax.eval_shape(tx.update, params, state)


def test_rows_of_a_slot_in_another_shape_are_refused():
    tx = gradtx.elementwise(MomentState, None, lambda g, s, t: (g, {"moment": g.sum()}))
    rows = gradtx.Rows(jnp.array([1]), jnp.ones((1, 2)), (3, 2))
    with pytest.raises(ValueError, match="slot moment in the shape"):
        jax.eval_shape(tx.update, rows, tx.init(jnp.ones((3, 2))))


class NumberState(NamedTuple):
    size: gradtx.TreeScalar


def test_a_number_of_the_tree_in_another_shape_is_refused():
    tx = gradtx.treewise(
        NumberState, None, lambda g, s, t: (g, {"size": g[0]}), start={"size": 0.0}
    )
    with pytest.raises(ValueError, match=r"returned size in the shape \(2,\)"):
        jax.eval_shape(tx.update, jnp.ones(2), tx.init(jnp.ones(2)))
