"""Thin slices: one Adam rule on rows, in 8 bits, sharded, stacked, swept, and what it refuses."""

# Sees mutants of: step, types.

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gradtx
from gradtx.types import Key

pytestmark = pytest.mark.compiled

RNG = np.random.default_rng(0)
BLOCK = 8


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


@jax.tree_util.register_pytree_node_class
class Int8Blocks:
    """A slot as 8-bit codes with a scale for each block of a row."""

    def __init__(self, codes, scales):
        self.codes, self.scales = codes, scales

    @classmethod
    def of(cls, x):
        blocks = x.reshape(*x.shape[:-1], -1, BLOCK)
        scales = jnp.max(jnp.abs(blocks), axis=-1, keepdims=True) / 127
        codes = jnp.round(blocks / jnp.where(scales == 0, 1, scales)).astype(jnp.int8)
        return cls(codes, scales)

    @property
    def shape(self):
        *lead, blocks, block = self.codes.shape
        return (*lead, blocks * block)

    def load(self):
        return (self.codes * self.scales).reshape(self.shape)

    def store(self, value):
        return Int8Blocks.of(value)

    def take(self, indices):
        rows = jax.tree.map(lambda x: x.at[indices].get(mode="fill", fill_value=0), self)
        return rows.load()

    def put(self, indices, values):
        new = Int8Blocks.of(values)
        return jax.tree.map(lambda x, n: x.at[indices].set(n, mode="drop"), self, new)

    def tree_flatten(self):
        return (self.codes, self.scales), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def in_int8(state):
    return state._replace(mu=Int8Blocks.of(state.mu), nu=Int8Blocks.of(state.nu))


@pytest.mark.slow
def test_three_rows_of_a_table():
    tx, table = gradtx.scale_by_adam(), normal(10, 4)
    rows = gradtx.Rows(jnp.array([7, 2, 5]), normal(3, 4), table.shape)
    updates, state = tx.update(rows, tx.init(table))
    want, dense = tx.update(rows.to_dense(), tx.init(table))
    chex.assert_trees_all_close(updates.to_dense(), want, rtol=1e-6)
    chex.assert_trees_all_close(state, dense, rtol=1e-6)


@pytest.mark.slow
def test_slots_as_int8_blocks():
    tx, p = gradtx.scale_by_adam(), normal(4, 16)
    state = in_int8(tx.init(p))
    assert sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state)) < 0.4 * 2 * p.nbytes
    exact, step = tx.init(p), jax.jit(tx.update)
    for _ in range(20):
        g = normal(4, 16)
        updates, state = step(g, state)
        want, exact = step(g, exact)
    assert isinstance(state.mu, Int8Blocks)
    # First moments within a part in 127 of each block's largest.
    largest = jnp.max(jnp.abs(exact.mu))
    assert float(jnp.max(jnp.abs(state.mu.load() - exact.mu))) < 0.1 * float(largest)
    assert float(jnp.corrcoef(updates.ravel(), want.ravel())[0, 1]) > 0.98


@pytest.mark.slow
def test_rows_of_int8_blocks():
    tx, table = gradtx.scale_by_adam(), normal(10, 16)
    rows = gradtx.Rows(jnp.array([7, 2, 7]), normal(3, 16), table.shape)
    updates, state = jax.jit(tx.update)(rows, in_int8(tx.init(table)))
    want, _ = tx.update(rows.to_dense(), tx.init(table))
    chex.assert_trees_all_close(updates.to_dense(), want, rtol=1e-6)
    assert float(jnp.abs(state.mu.load()[jnp.array([0, 1, 3])]).max()) == 0


def test_state_sharded_over_eight_devices():
    tx, p, g = gradtx.scale_by_adam(), normal(16, 4), normal(16, 4)
    rows = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    sharded = jax.device_put(p, rows)
    state = jax.jit(tx.init)(sharded)
    state = state._replace(mu=jax.device_put(state.mu, rows), nu=jax.device_put(state.nu, rows))
    compiled = jax.jit(tx.update).lower(jax.device_put(g, rows), state).compile()
    assert "all-" not in compiled.as_text()
    updates, state = compiled(jax.device_put(g, rows), state)
    want, dense = tx.update(g, tx.init(p))
    chex.assert_trees_all_close((updates, state), (want, dense), rtol=1e-6)
    assert state.mu.sharding.is_equivalent_to(rows, 2)
    assert state.mu.addressable_shards[0].data.shape == (2, 4)


def test_slots_are_made_with_the_parameters_sharding():
    rows = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    state = gradtx.scale_by_adam().init(jax.device_put(normal(16, 4), rows))
    assert state.mu.sharding.is_equivalent_to(rows, 2)


def test_two_equal_leaves_stacked_into_one():
    tx, p, g = gradtx.scale_by_adam(), normal(2, 3, 4), normal(2, 3, 4)
    together, _ = tx.update(g, tx.init(p))
    apart, _ = tx.update([g[0], g[1]], tx.init([p[0], p[1]]))
    chex.assert_trees_all_close(together, jnp.stack(apart), rtol=1e-6)


def test_swept_over_learning_rates():
    """Twenty learning rates and decays: one compilation, and vmapped."""
    p, g, traces = normal(3), normal(3), []

    @jax.jit
    def step(tx):
        traces.append(None)
        return tx.update(g, tx.init(p), p)[0]

    rates, decays = np.logspace(-4, -1, 20), np.linspace(0.5, 0.99, 20)
    one_by_one = [
        step(gradtx.adam(jnp.float32(lr), b1=jnp.float32(b1)))
        for lr, b1 in zip(rates, decays, strict=True)
    ]
    assert len(traces) == 1
    many = gradtx.adam(jnp.asarray(rates, jnp.float32), b1=jnp.asarray(decays, jnp.float32))
    chex.assert_trees_all_close(jax.vmap(step)(many), jnp.stack(one_by_one), rtol=1e-5)
    again = gradtx.replace(gradtx.adam(jnp.float32(0.1), b1=jnp.float32(0.5)), b1=jnp.float32(0.9))
    step(again)
    assert len(traces) == 1


@pytest.mark.slow
def test_inside_a_foreign_chain():
    tx = optax.chain(optax.clip_by_global_norm(1.0), gradtx.scale_by_adam(), optax.scale(-0.1))
    want = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(), optax.scale(-0.1))
    p, g = normal(3), normal(3)
    got, _ = tx.update(g, tx.init(p), p)
    chex.assert_trees_all_close(got, want.update(g, want.init(p), p)[0], rtol=1e-5)


@pytest.mark.slow
def test_rows_in_front_of_leaves_that_are_traced_together():
    tx, tree = gradtx.scale(2.0), {"a": jnp.zeros((3, 2)), "b": jnp.zeros(2), "c": jnp.zeros(2)}
    rows = gradtx.Rows(jnp.array([2]), jnp.ones((1, 2)), (3, 2))
    g = {"a": rows, "b": jnp.full(2, 3.0), "c": jnp.full(2, 4.0)}
    updates, _ = tx.update(g, tx.init(tree))
    assert updates["a"].to_dense().tolist() == [[0, 0], [0, 0], [2, 2]]
    assert (updates["b"].tolist(), updates["c"].tolist()) == ([6, 6], [8, 8])


def test_a_slot_may_have_one_number_for_each_row():
    tx, p = gradtx.scale_by_rowwise_adam(), jnp.ones((3, 2))
    state = tx.init(p)
    assert state.nu.shape == (3, 1)
    assert tx.update(p, state)[0].shape == p.shape
    with pytest.raises(ValueError, match=r"shape \(2, 2\) and the slot \w+ \(3, \d\)"):
        tx.update(jnp.ones((2, 2)), state)


class MomentState(NamedTuple):
    moment: gradtx.Slots


def test_a_rule_that_reads_another_slot_is_told_which_there_are():
    @gradtx.transformation
    def misspelt():
        rule = lambda g, s, t: (g + s.mu, {"moment": g})  # noqa: E731
        return gradtx.elementwise(MomentState, lambda p: {"moment": jnp.zeros_like(p)}, rule)

    with pytest.raises(AttributeError, match="misspelt: .* no slot 'mu'; the slots are moment$"):
        misspelt().update(jnp.ones(2), misspelt().init(jnp.ones(2)))


class NoiseState(NamedTuple):
    key: Key


@gradtx.transformation
def noise(seed):
    """A random number in place of each entry."""

    def rule(g, s, t):
        return jax.random.normal(s.key, g.shape), {}

    return gradtx.elementwise(NoiseState, None, rule, start={"key": jax.random.key(seed)})


def test_a_key_is_split_at_every_step_and_each_leaf_draws_with_its_own():
    tx, tree = noise(3), {"a": jnp.zeros(4), "b": jnp.zeros(4), "none": None}
    key, state = jax.random.key(3), tx.init(tree)
    for _ in range(2):
        updates, state = tx.update(tree, state)
        key, used = jax.random.split(key)
        for n, own in zip("ab", jax.random.split(used), strict=True):
            np.testing.assert_array_equal(updates[n], jax.random.normal(own, (4,)))
        assert jax.random.key_data(state.key).tolist() == jax.random.key_data(key).tolist()
    assert tx.update({}, tx.init({}))[0] == {}


def test_a_rule_of_leaves_sees_the_rows_of_a_table_if_it_says_so():
    """Rows of zeros change no norm, so that those that are there are enough."""

    @gradtx.transformation
    def of_length_one(rows):
        rule = lambda g, s, t: (g / jnp.linalg.norm(g), {})  # noqa: E731
        return gradtx.leafwise(gradtx.EmptyState, None, rule, rows=rows)

    table = {"t": jnp.zeros((3, 2))}
    g = {"t": gradtx.Rows(jnp.array([2]), jnp.array([[3.0, 4.0]]), (3, 2))}
    updates, _ = of_length_one(True).update(g, of_length_one(True).init(table))
    np.testing.assert_allclose(updates["t"].to_dense(), [[0, 0], [0, 0], [0.6, 0.8]], rtol=1e-6)
    with pytest.raises(TypeError, match="of_length_one looks at whole leaves .* at 't'"):
        of_length_one(False).update(g, ())


def test_an_equal_transformation_is_the_same_static_argument():
    traces = []

    def step(tx, p):
        traces.append(None)
        return tx.init(p)

    jitted = jax.jit(step, static_argnums=0)
    jitted(gradtx.adam(1e-3), jnp.ones(2))
    jitted(gradtx.adam(1e-3), jnp.ones(2))
    assert len(traces) == 1
    jitted(gradtx.adam(1e-2), jnp.ones(2))
    assert len(traces) == 2


class Point(NamedTuple):
    x: jax.Array
    y: tuple


@chex.dataclass
class Layer:
    kernel: jax.Array
    bias: jax.Array


@pytest.mark.parametrize(
    "tree",
    [
        {"a": normal(2), "b": [normal(3), (normal(1),)]},
        Point(normal(2), (normal(1), None)),
        Layer(kernel=normal(2, 2), bias=normal(2)),
        normal(4),
        [],
        1.5,
    ],
    ids=["dict", "namedtuple", "dataclass", "array", "empty", "number"],
)
def test_any_pytree(tree):
    tx = gradtx.adam(0.1)
    state = tx.init(tree)
    grads = jax.tree.map(jnp.ones_like, tree)
    updates, state = tx.update(grads, state, tree)
    assert jax.tree.structure(updates) == jax.tree.structure(tree)
    new = gradtx.apply_updates(tree, updates)
    for before, after in zip(jax.tree.leaves(tree), jax.tree.leaves(new), strict=True):
        np.testing.assert_allclose(after, before - 0.1, rtol=1e-5)


def test_the_counter_saturates():
    tx = gradtx.scale_by_adam()
    state = tx.init(jnp.zeros(1))._replace(count=jnp.array(2**31 - 1, jnp.int32))
    updates, state = tx.update(jnp.ones(1), state)
    assert int(state.count) == 2**31 - 1
    assert bool(jnp.isfinite(updates[0]))


class TestRefused:
    tx = gradtx.scale_by_adam()
    state = tx.init({"a": jnp.zeros(2), "b": {"c": jnp.zeros(3)}})

    def test_another_tree(self):
        with pytest.raises(ValueError, match="'b/d' is only in the first"):
            self.tx.update({"a": jnp.zeros(2), "b": {"d": jnp.zeros(3)}}, self.state)

    def test_another_shape(self):
        with pytest.raises(ValueError, match="'b/c'.*\\(2,\\)"):
            self.tx.update({"a": jnp.zeros(2), "b": {"c": jnp.zeros(2)}}, self.state)

    def test_integers_among_the_parameters(self):
        with pytest.raises(TypeError, match="'step' is int32"):
            self.tx.init({"w": jnp.zeros(2), "step": jnp.zeros([], jnp.int32)})

    def test_booleans_among_the_gradients(self):
        with pytest.raises(TypeError, match="'a' is bool"):
            self.tx.update({"a": jnp.zeros(2, bool), "b": {"c": jnp.zeros(3)}}, self.state)

    def test_a_state_of_another_transformation(self):
        with pytest.raises(TypeError, match="scale_by_adam.*TraceState"):
            self.tx.update(jnp.zeros(2), gradtx.trace(0.9).init(jnp.zeros(2)))

    def test_no_parameters_where_they_are_needed(self):
        tx = gradtx.add_decayed_weights(0.1)
        with pytest.raises(ValueError, match="add_decayed_weights needs the parameters"):
            tx.update(jnp.zeros(2), tx.init(jnp.zeros(2)))

    def test_a_swept_transformation_without_vmap(self):
        tx = gradtx.scale_by_adam(b1=jnp.array([0.8, 0.9]))
        with pytest.raises(ValueError, match=r"b1 has the shape \(2,\), and must be one number"):
            tx.update(jnp.zeros(()), tx.init(jnp.zeros(())))

    def test_no_transformation(self):
        with pytest.raises(TypeError, match="expected a gradient transformation"):
            gradtx.chain(gradtx.clip(1.0), 0.1)
