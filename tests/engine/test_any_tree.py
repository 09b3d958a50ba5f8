"""Random trees, shapes and types through the engine."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx

LEAVES = st.one_of(
    st.none(),
    st.tuples(
        st.lists(st.integers(0, 3), max_size=3), st.sampled_from(["float32", "bfloat16", "float16"])
    ).map(lambda made: jnp.ones(tuple(made[0]), made[1])),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=6,
)
TXS = st.sampled_from(
    [
        gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.adamw(0.1)),
        gradtx.sgd(0.1, momentum=0.9, nesterov=True),
        gradtx.chain(gradtx.zero_nans(), gradtx.centralize(), gradtx.lion(0.1)),
    ]
)


@pytest.mark.slow
@hypothesis.given(TREES, TXS)
def test_any_tree_keeps_its_form(tree, tx):
    state = tx.init(tree)
    updates, new = tx.update(tree, state, tree)
    moved = gradtx.apply_updates(tree, updates)
    for before, after in ((tree, updates), (tree, moved), (state, new)):
        assert jax.tree.structure(before) == jax.tree.structure(after)
        for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
    assert all(np.all(np.isfinite(np.asarray(x, np.float32))) for x in jax.tree.leaves(moved))


@pytest.mark.slow
@hypothesis.given(TREES, st.data())
def test_a_different_tree_is_refused_and_nothing_else(tree, data):
    other = data.draw(TREES)
    tx = gradtx.adam(0.1)
    same = jax.tree.structure(tree) == jax.tree.structure(other) and all(
        a.shape == b.shape
        for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    )
    try:
        gradtx.apply_gradients(tx, other, tree, tx.init(tree))
    except (ValueError, TypeError) as error:
        assert not same, error
    else:
        # A gradient may be missing (None) for any leaf, never be there for none.
        missing = jax.tree.structure(
            jax.tree.map(
                lambda p, g: None if g is None else p, tree, other, is_leaf=lambda x: x is None
            )
        )
        assert same or missing == jax.tree.structure(other)
