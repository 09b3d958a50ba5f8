"""The arguments of the six scopes: one order, and kinds that are checked when a pair is built."""

import inspect
import re
from typing import NamedTuple

import jax.numpy as jnp
import pytest

import gradtx

NUMBERS = gradtx.MatrixDimensions(None, gradtx.MuonDimensionNumbers)
SCOPES = {
    "elementwise": (),
    "rowwise": (),
    "leafwise": (),
    "matrixwise": (NUMBERS,),
    "tuplewise": (("*/a", "*/b"),),
    "treewise": (),
}


def rule(g, s, t):
    return g, {}


def slots(p):
    return {}


@pytest.mark.parametrize("name", SCOPES)
def test_the_order_is_the_same(name):
    names = list(inspect.signature(getattr(gradtx, name)).parameters)
    assert names[:3] == ["state", "slots", "rule"]
    built = getattr(gradtx, name)(gradtx.EmptyState, None, rule, *SCOPES[name])
    assert built.traits.rule.function is rule


@pytest.mark.parametrize("name", SCOPES)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((gradtx.EmptyState, rule), "missing a required argument: '(rule|dimensions|related)'"),
        ((None, rule, gradtx.EmptyState), "state must be a NamedTuple class, not None"),
        ((rule, None, rule), "state must be a NamedTuple class, not <function rule"),
        ((dict, None, rule), "state must be a NamedTuple class, not <class 'dict'>"),
        ((gradtx.EmptyState, rule, slots), "slots must be a function of one argument"),
        ((gradtx.EmptyState, None, slots), r"rule must be a function \(g, s, t\) or .* takes 1$"),
        ((gradtx.EmptyState, None, None), r"rule must be a function .*, not None"),
        ((gradtx.EmptyState, None, rule, *"abc"), "too many positional arguments"),
    ],
)
def test_arguments_of_other_kinds_are_refused(name, arguments, said):
    more = SCOPES[name] if len(arguments) == 3 else ()
    with pytest.raises(TypeError, match=f"^{name}: ") as caught:
        getattr(gradtx, name)(*arguments, *more)
    text, takes = str(caught.value).rsplit("; it takes ", 1)
    assert takes.startswith("(state, slots, rule, ")
    assert re.search(said, text)


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("elementwise", {"advance": rule}, "advance must be a function of 2 arguments"),
        ("elementwise", {"of_tree": 1}, "of_tree must be a function of one argument, not 1"),
        ("elementwise", {"start": 0.0}, "start must be a dict, or a function .* not 0.0"),
        ("leafwise", {"rows": None}, "rows must be True or False, not None"),
        ("matrixwise", {"dimensions": None}, "dimensions must be MatrixDimensions, not None"),
        ("matrixwise", {"factors": rule}, "factors must be a dict by name"),
        ("matrixwise", {"on_leaf": slots}, "on_leaf must be a function of 3 arguments"),
        ("matrixwise", {"on_others": slots}, r"on_others must be a function \(g, s, t\)"),
        ("tuplewise", {"related": 3}, "what belongs together must be patterns .*, not 3"),
        ("treewise", {"beside": [1]}, "beside must be a dict by name"),
        ("treewise", {"learning_rate": 0.1}, "unexpected keyword argument 'learning_rate'"),
    ],
)
def test_so_are_those_of_one_scope(name, more, said):
    wanted = {"matrixwise": "dimensions", "tuplewise": "related"}
    given = {wanted[name]: SCOPES[name][0]} if name in wanted else {}
    with pytest.raises(TypeError, match=said):
        getattr(gradtx, name)(gradtx.EmptyState, None, rule, **{**given, **more})


def test_slots_of_matrices_begin_as_zeros_too():
    """Without a function that says otherwise, and beside the factors of the rule."""

    class Kept(NamedTuple):
        mu: gradtx.Slots
        total: gradtx.Slots

    def summed(g, s, t):
        return s.mu, {"mu": s.mu + g, "total": s.total + jnp.sum(g, (1, 2))}

    tx = gradtx.matrixwise(
        Kept,
        None,
        summed,
        NUMBERS,
        factors={"total": lambda matrices, p: jnp.zeros(matrices.sizes[0])},
    )
    state = tx.init({"w": jnp.ones((2, 3))})
    assert state.mu["w"].tolist() == [[0.0] * 3] * 2
    _, state = tx.update({"w": jnp.ones((2, 3))}, state)
    assert state.mu["w"].tolist() == [[1.0] * 3] * 2
    assert state.total["w"].tolist() == [6.0]
