"""Paths of leaves: where trees differ, and masks."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradtx.leaves.paths import first_difference, mask_tree, spread


@pytest.mark.parametrize(
    ("tree", "other", "found"),
    [
        ({"a": 1.0, "b": 2.0}, {"b": 2.0}, "'a' is only in the first"),
        ({"b": 2.0}, {"a": 1.0, "b": 2.0}, "'a' is only in the second"),
        (
            {"a": 1.0, "b": {"c": (1.0, 2.0)}},
            {"a": 1.0, "b": {"c": [1.0, 2.0]}},
            "'b/c' is a tuple in the first and a list in the second",
        ),
        (
            {"a": 1.0, "b": (1.0,)},
            {"a": 1, "b": [1.0]},  # of leaves the types do not matter
            "'b' is a tuple in the first and a list in the second",
        ),
        (
            {"a": (1.0,), "b": jax.tree_util.Partial(min, 1.0)},
            {"a": (1.0,), "b": jax.tree_util.Partial(max, 1.0)},
            "'b' is a Partial of one form in the first and a Partial of another in the second",
        ),
    ],
)
def test_where_two_trees_first_differ(tree, other, found):
    assert first_difference(tree, other) == found


@pytest.mark.parametrize(
    ("prefix", "found"),
    [
        ({"c": 1}, "they have no 'c', their leaves are a, b/0"),
        ({"a": 1}, "it says nothing of 'b/0'"),
        ({"a": 1, "b": None}, "at 'b' it has a NoneType, and they a list; jax.tree.map over"),
    ],
)
def test_why_a_tree_is_no_prefix(prefix, found):
    with pytest.raises(ValueError, match=f"^the labels are not a tree like .*: {found}"):
        spread("the labels are", prefix, {"a": 1.0, "b": [2.0]})


def test_a_mask_may_hold_booleans_of_numpy_and_jax():
    tree = {"a": 1.0, "b": 2.0, "c": 3.0}
    mask = {"a": np.bool_(True), "b": jnp.array(False), "c": True}
    assert mask_tree(tree, mask) == {"a": True, "b": False, "c": True}
    for other in (1, np.float32(1), jnp.array([True])):
        with pytest.raises(ValueError, match="the leaves of a mask must be True or False"):
            mask_tree(tree, {**mask, "c": other})


@pytest.mark.parametrize(
    ("values", "spread_out"),
    [
        ({"a": 1, "b": (2, 3)}, {"a": 1, "b": [2, 3]}),
        ({"a": 1, "b": {"0": 2, "1": 3}}, {"a": 1, "b": [2, 3]}),
        (collections.OrderedDict(a=1, b=2), {"a": 1, "b": [2, 2]}),
    ],
)
def test_values_in_other_containers_go_by_path(values, spread_out):
    assert spread("the labels are", values, {"a": 1.0, "b": [2.0, 3.0]}) == spread_out


def test_a_name_with_brackets_is_its_own_pattern():
    tree = {"layers[0]": {"w": 1.0}, "b": 2.0}
    for pattern in ("layers[0]/w", "layers[0]"):
        assert mask_tree(tree, pattern) == {"layers[0]": {"w": True}, "b": False}
