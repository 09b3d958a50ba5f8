"""Gradients, slots, parameters and directions suit one another, whatever the scope of a rule."""

# Sees mutants of: leaves, lift, tree.

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


def pair(rule):
    return lambda g, s, t, p: ((rule(g[0], s, t, p[0])[0],), {})


def each(rule):
    return lambda g, s, t, p: ([rule(x, s, t, q)[0] for x, q in zip(g, p, strict=True)], {})


def kept(g, s, t):
    return g, {}


def no_matrices(tree):
    return jax.tree.map(lambda p: None, tree)


NOTHING = gradtx.EmptyState
NO_MATRICES = MatrixDimensions(no_matrices, gradtx.MuonDimensionNumbers)
# Each lifts a rule (g, s, t, p) of one leaf, which keeps nothing.
SCOPES = {
    "entry": lambda rule: gradtx.elementwise(NOTHING, None, rule),
    "row": lambda rule: gradtx.rowwise(NOTHING, None, rule),
    "leaf": lambda rule: gradtx.leafwise(NOTHING, None, rule),
    "chain": lambda rule: gradtx.chain(
        gradtx.trace(0.9), gradtx.elementwise(NOTHING, None, rule), gradtx.scale(-1.0)
    ),
    "matrix": lambda rule: gradtx.matrixwise(
        NOTHING, None, kept, ROWS_AND_COLUMNS, on_entries=rule
    ),
    "no matrix": lambda rule: gradtx.matrixwise(NOTHING, None, kept, NO_MATRICES, on_others=rule),
    "tree": lambda rule: gradtx.treewise(NOTHING, None, each(rule)),
    "tuple": lambda rule: gradtx.tuplewise(NOTHING, None, pair(rule), lambda tree: [("w",)]),
    "no tuple": lambda rule: gradtx.tuplewise(NOTHING, None, kept, lambda tree: [], on_others=rule),
}
every_scope = pytest.mark.parametrize("scope", SCOPES)


@every_scope
@pytest.mark.parametrize("shape", [(1, 2), (), (5, 2)], ids=str)
def test_a_parameter_of_another_shape_is_refused(scope, shape):
    """Also one that a rule would spread over the gradient, or of which it takes but a norm."""
    tx, w = SCOPES[scope](lambda g, s, t, p: (g + 0.1 * jnp.mean(p), {})), jnp.ones((3, 2))
    says = r"at 'w' the gradient has the shape \(3, 2\) and the parameter \("
    with pytest.raises(ValueError, match=says):
        jax.eval_shape(tx.update, {"w": w}, tx.init({"w": w}), {"w": jnp.ones(shape)})


@every_scope
def test_a_gradient_without_a_parameter_is_refused(scope):
    tx, w = SCOPES[scope](lambda g, s, t, p: (g + p, {})), jnp.ones((3, 2))
    with pytest.raises(ValueError, match=r"'w' (the gradient .* parameter None|is left out)"):
        jax.eval_shape(tx.update, {"w": w}, tx.init({"w": w}), {"w": None})


@every_scope
@pytest.mark.parametrize("direction", [jnp.sum, lambda g: g[..., :1]], ids=["sum", "column"])
def test_a_direction_of_another_shape_is_refused(scope, direction):
    tx, w = SCOPES[scope](lambda g, s, t, p: (direction(g), {})), jnp.ones((3, 2))
    with pytest.raises(ValueError, match=r"at 'w' a gradient of shape .*3, 2\) became an update"):
        jax.eval_shape(tx.update, {"w": w}, tx.init({"w": w}), {"w": w})


def test_a_direction_with_rows_and_columns_exchanged_is_refused():
    rule = lambda g, s, t: (jnp.swapaxes(g, 1, 2), {})  # noqa: E731
    tx = gradtx.matrixwise(NOTHING, None, rule, ROWS_AND_COLUMNS)
    with pytest.raises(ValueError, match=r"at 'w' .* \(1, 3, 2\) became .* \(1, 2, 3\)"):
        jax.eval_shape(tx.update, {"w": jnp.ones((3, 2))}, tx.init({"w": jnp.ones((3, 2))}))


def test_rows_beside_a_slot_or_a_parameter_of_another_table_are_refused():
    rows = {"t": gradtx.Rows(jnp.array([1]), jnp.ones((1, 2)), (5, 2))}
    tables = {"t": jnp.ones((3, 2))}
    for tx in (gradtx.scale_by_adam(), gradtx.add_row_decayed_weights(0.1)):
        with pytest.raises(ValueError, match=r"'t' the gradient .* \(5, 2\) .*\(3, [12]\)"):
            jax.eval_shape(tx.update, rows, tx.init(tables), tables)


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
