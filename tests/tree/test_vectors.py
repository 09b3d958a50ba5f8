"""Leaves in vectors, one for each of their types, and back."""

import chex
import jax.numpy as jnp

from gradtx.tree.vectors import Vectors


def test_leaves_of_one_type_are_one_vector():
    tree = {"a": jnp.array([[1.0, 2.0], [3.0, 4.0]]), "b": jnp.array(5.0), "c": jnp.array([6.0])}
    vectors = Vectors(tree)
    packed = vectors.pack(tree)
    assert packed.tolist() == [1, 2, 3, 4, 5, 6]
    chex.assert_trees_all_equal(vectors.unpack(packed, tree), tree)


def test_leaves_of_two_types_are_two_vectors():
    tree = {"a": jnp.ones(2), "b": jnp.arange(4.0, dtype="bfloat16"), "c": jnp.zeros((1, 3))}
    vectors = Vectors(tree)
    packed = vectors.pack(tree)
    assert {kind: x.tolist() for kind, x in packed.items()} == {
        "bfloat16": [0, 1, 2, 3],
        "float32": [1, 1, 0, 0, 0],
    }
    chex.assert_trees_all_equal(vectors.unpack(packed, tree), tree)
