"""Slots by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx

P = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}


def after(tx, steps):
    state = tx.init(P)
    for _ in range(steps):
        _, state = tx.update(P, state, P)
    return state


class TestSlots:
    tx = gradtx.chain(gradtx.trace(0.9), gradtx.adamw(0.1, mask="w"), gradtx.trace(0.5))
    state = after(tx, 1)

    def test_names(self):
        assert gradtx.slot_names(self.state) == ["0.trace", "mu", "nu", "2.trace"]

    def test_get(self):
        assert gradtx.get_slot(self.state, "mu") is self.state[1][0].mu
        assert gradtx.get_slot(self.state, "2.trace", "w").shape == (2, 3)
        assert gradtx.get_slot(self.state, "1.0.mu", "b") is self.state[1][0].mu["b"]

    def test_set(self):
        new = gradtx.set_slot(self.state, "nu", jnp.zeros(3), "b")
        assert float(jnp.sum(gradtx.get_slot(new, "nu", "b"))) == 0
        assert gradtx.get_slot(new, "nu", "w") is gradtx.get_slot(self.state, "nu", "w")
        assert gradtx.get_slot(new, "mu", "w") is gradtx.get_slot(self.state, "mu", "w")

    def test_by_the_path_that_the_tree_prints(self):
        model = gradtx.EmaParamsState(jnp.ones(2), [{"k": jnp.ones(3)}])
        state = gradtx.trace(0.9).init({"head": model})
        keyed = jax.tree_util.tree_flatten_with_path({"head": model})[0]
        for path, leaf in keyed:
            for said in (path, jax.tree_util.keystr(path)):
                assert gradtx.get_slot(state, "trace", said).shape == leaf.shape
        new = gradtx.set_slot(state, "trace", jnp.full(3, 2.0), ("head", "average", 0, "k"))
        assert gradtx.get_slot(new, "trace", "['head'].average[0]['k']")[0] == 2
        inside = gradtx.trace(0.9).init(model)
        assert gradtx.get_slot(inside, "trace", "average[0]['k']").shape == (3,)
        with pytest.raises(ValueError, match="its paths are count, average/0/k"):
            gradtx.get_slot(inside, "trace", "k")

    def test_refused(self):
        with pytest.raises(ValueError, match="several slots 'trace'.*0.trace, 2.trace"):
            gradtx.get_slot(self.state, "trace")
        with pytest.raises(ValueError, match="no slot 'velocity'.*mu, nu"):
            gradtx.get_slot(self.state, "velocity")
        with pytest.raises(ValueError, match="no 'c'.*b, w"):
            gradtx.get_slot(self.state, "mu", "c")
        with pytest.raises(ValueError, match=r"float32\[3\], not float32\[2\]"):
            gradtx.set_slot(self.state, "mu", jnp.zeros(2), "b")
        with pytest.raises(ValueError, match="is a tree"):
            gradtx.set_slot(self.state, "mu", {"b": jnp.zeros(3)})


class TestGroups:
    tx = gradtx.partition({"a": gradtx.adam(0.1), "z": gradtx.adam(0.2)}, [("w", "a"), ("b", "z")])
    state = tx.init(P)

    def test_the_name_of_a_group_finds_its_slot(self):
        assert gradtx.get_slot(self.state, "a.mu") is gradtx.get_slot(self.state, "a.0.mu")

    def test_a_parameter_finds_the_slot_of_its_group(self):
        assert gradtx.get_slot(self.state, "mu", "b") is gradtx.get_slot(self.state, "z.0.mu", "b")
        new = gradtx.set_slot(self.state, "mu", jnp.ones(3), "b")
        assert float(gradtx.get_slot(new, "z.mu", "b")[0]) == 1
        with pytest.raises(ValueError, match="several slots 'mu'; the slots are a.0.mu, z.0.mu"):
            gradtx.get_slot(self.state, "mu")

    def test_a_parameter_of_another_group_is_refused(self):
        for access in (gradtx.get_slot, lambda s, n, p: gradtx.set_slot(s, n, jnp.ones(3), p)):
            with pytest.raises(ValueError, match=r"'a.0.mu' has no entry for 'b'; z.0.mu has"):
                access(self.state, "a.mu", "b")
        frozen = gradtx.selective_transform(gradtx.adam(0.1), freeze_mask="b").init(P)
        with pytest.raises(ValueError, match="no entry for 'b', and no other of that name has"):
            gradtx.get_slot(frozen, "mu", "b")


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["int8", "int4_dithered"])
def test_a_slot_of_one_parameter_leaves_the_codes_of_the_others(codec):
    """Codes that are read and written again are others: a block in int8 has no -1."""
    p = {"w": jnp.zeros(64), "b": jnp.zeros(3)}
    tx = gradtx.store(gradtx.sgd(0.1, momentum=0.9), codec, min_size=64)
    g = {"w": -jnp.linspace(0.1, 1, 64), "b": jnp.ones(3)}
    _, state = tx.update(g, tx.init(p), p)
    new = gradtx.set_slot(state, "trace", jnp.zeros(3), "b")
    assert new[0].trace["w"] is state[0].trace["w"]
    assert gradtx.get_slot(new, "trace", "b").tolist() == [0.0] * 3
    changed = gradtx.set_slot(state, "trace", jnp.ones(64), "w")
    np.testing.assert_allclose(gradtx.get_slot(changed, "trace", "w"), 1, atol=0.1)


def test_slots_of_a_wrapper_within_one_of_its_kind_have_names_of_their_own():
    tx = gradtx.lookahead(gradtx.lookahead(gradtx.sgd(0.1), 2, 0.5), 3, 0.5)
    state = tx.init(jnp.zeros(2))
    assert gradtx.slot_names(state) == ["fast_state.slow", "slow"]
    inner = gradtx.set_slot(state, "fast_state.slow", jnp.ones(2))
    assert (inner.slow.tolist(), inner.fast_state.slow.tolist()) == ([0.0, 0.0], [1.0, 1.0])
    outer = gradtx.set_slot(state, "slow", jnp.ones(2))
    assert (outer.slow.tolist(), outer.fast_state.slow.tolist()) == ([1.0, 1.0], [0.0, 0.0])
    for name in gradtx.slot_names(state):
        assert gradtx.get_slot(inner, name)[0] == (name != "slow")


@pytest.mark.slow
def test_a_tree_of_which_one_leaf_changes():
    params = {"a": jnp.ones((64, 64)), "b": jnp.ones((64, 64))}
    tx = gradtx.store(gradtx.adam(0.1), "int4", min_size=0)
    grads = jax.tree.map(lambda p: jnp.linspace(-1, 1, p.size).reshape(p.shape), params)
    state = tx.update(grads, tx.init(params), params)[1]
    tree = gradtx.get_slot(state, "mu")
    for set_slot in (gradtx.set_slot, jax.jit(gradtx.set_slot, static_argnums=1)):
        new = set_slot(state, "mu", {**tree, "b": tree["b"] * 2})
        np.testing.assert_array_equal(gradtx.get_slot(new, "mu", "a"), tree["a"])
        np.testing.assert_allclose(gradtx.get_slot(new, "mu", "b"), tree["b"] * 2, atol=0.05)


def test_a_slot_has_memory_of_its_own():
    params = {"a": jnp.ones(3)}
    tx = gradtx.adam(0.1)
    state = tx.init(params)
    state = gradtx.set_slot(state, "nu", gradtx.get_slot(state, "mu"))
    step = gradtx.make_step(lambda p: jnp.sum(p["a"]), tx)
    step(params, gradtx.set_slot(state, "mu", params))
