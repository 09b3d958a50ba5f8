"""First steps outside of jit on leaves that are joined: the bits of jit, and few programs."""

# Sees mutants of: blocks.

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.core import blocks
from gradtx.core.expansion import Expansion
from tests.catalogue import CATALOGUE
from tests.test_contracts import WHOLE, some
from tests.test_eager import bits, programs, several

pytestmark = pytest.mark.compiled

SHAPES = (
    *((), (1,), (1, 1), (2,), (3,), (4,), (7,), (8,), (9,), (16,), (17,), (33,), (64,), (65,)),
    *((0, 3), (2, 2), (3, 3), (9, 5), (8, 16), (7, 33), (1, 70), (2, 3, 4), (129,), (500,)),
    *((1, 16), (2, 8), (2, 32), (48,), (5, 16), (80,), (3, 32), (112,), (9, 16), (160,)),
    *((7, 16), (496,), (528,), (2, 3, 8), (2, 3, 16), (5, 48), (272,)),
)


def drawn(seed, shapes=SHAPES, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return {
        f"{i:02}": jax.device_put(rng.normal(size=shape).astype(dtype))
        for i, shape in enumerate(shapes)
    }


def joins(monkeypatch):
    """How many trees are joined, from now on."""
    seen = []
    joined = blocks._Joint.joined

    def count(self, part):
        seen.append(part)
        return joined(self, part)

    monkeypatch.setattr(blocks._Joint, "joined", count)
    return seen


APPLY = jax.jit(gradtx.apply_updates)


@pytest.mark.slow
@some("adam", "adamw", of=[n for n in WHOLE if n not in ("noop", "set_to_zero")])
def test_blocks_have_the_bits_of_jit(name, monkeypatch):
    """Of every transformation that reads entries."""
    tx = CATALOGUE[name].make()
    if not Expansion(tx.declaration).reads_entries:
        pytest.skip("it reads more than entries")
    params, update, seen = drawn(0), jax.jit(tx.update), joins(monkeypatch)
    state = tx.init(params)
    for step in range(1, 4):
        gradients = drawn(step)
        want = update(gradients, state, params)
        got = tx.update(gradients, state, params)
        assert seen
        assert jax.tree.structure(got) == jax.tree.structure(want)
        assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, want)
        assert bits(got) == bits(want)
        updates, state = got
        added = APPLY(params, updates)
        params = gradtx.apply_updates(params, updates)
        assert bits(params) == bits(added)


@pytest.mark.slow
def test_a_run_goes_from_blocks_to_leaves(monkeypatch):
    monkeypatch.setattr(blocks, "FIRST_STEPS", 2)
    params, seen, tx = drawn(0), joins(monkeypatch), gradtx.adamw(0.0365)
    state, update = tx.init(params), jax.jit(tx.update)
    for step in range(1, 5):
        seen.clear()
        gradients = drawn(step)
        got = tx.update(gradients, state, params)
        assert bool(seen) == (step <= 2)
        assert bits(got) == bits(update(gradients, state, params))
        state = got[1]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: gradtx.adamw(jnp.float32(0.0123)),
        lambda: gradtx.adamw(gradtx.cosine_decay_schedule(0.0321, 100)),
        lambda: gradtx.chain(gradtx.add_decayed_weights(0.0123), gradtx.lion(0.0123)),
    ],
    ids=["array", "schedule", "chain"],
)
def test_narrow_types_and_hyperparameters(make, dtype, monkeypatch):
    params, tx = drawn(0, dtype=dtype), make()
    state, update, seen = tx.init(params), jax.jit(tx.update), joins(monkeypatch)
    for step in range(1, 4):
        gradients = drawn(step, dtype=dtype)
        want = update(gradients, state, params)
        got = tx.update(gradients, state, params)
        assert seen
        assert bits(got) == bits(want)
        params, state = gradtx.apply_updates(params, got[0]), got[1]


@pytest.mark.slow
def test_one_program_for_leaves_of_any_shapes():
    tx = gradtx.adagrad(0.0357)
    programs(several, tx, drawn(0, [(5, 16 * i) for i in range(1, 20)]), 1)
    assert programs(several, tx, drawn(0, [(4, 16 * i) for i in range(1, 21)]), 1) == 0
    # So many steps later there is one for the leaves, which others have no use for.
    params = drawn(0, [(6, 16 * i) for i in range(1, 18)])
    assert programs(several, tx, params, blocks.FIRST_STEPS) == 0
    assert programs(several, tx, params, 1) == 2


MANY = [(i, 16) for i in range(1, 18)]


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree | {"00": jnp.zeros((1, 16), jnp.bfloat16)},
        lambda tree: tree | {"00": 2.0 * np.ones((1, 16), np.float32)},
        lambda tree: tree | {"large": jnp.zeros(blocks.MOST)},
        lambda tree: dict(list(tree.items())[:15]),
    ],
    ids=["types", "numpy", "large", "few"],
)
def test_other_trees_are_left_alone(change, monkeypatch):
    params, seen = change(drawn(0, MANY)), joins(monkeypatch)
    tx = gradtx.sgd(0.0358)
    tx.update(drawn(0, MANY), tx.init(drawn(0, MANY)))
    assert seen
    seen.clear()
    got = tx.update(params, tx.init(params), params)[0]
    assert not seen
    assert bits(got) == bits(jax.jit(lambda p: tx.update(p, tx.init(p), p)[0])(params))


@pytest.mark.slow
def test_hyperparameters_have_derivatives_and_sweeps():
    """Outside of jit, where only they are traced."""
    params, tx = drawn(0, MANY), gradtx.trace(0.5)
    state = tx.update(params, tx.init(params))[1]  # not zero, so that the decay matters

    def total(decay):
        return gradtx.tree.sum(gradtx.trace(decay).update(params, state)[0])

    with gradtx.eager_programs(False):
        want = total(0.5), total(0.25), jax.grad(total)(0.5)
    got = (*jax.vmap(total)(jnp.array([0.5, 0.25])), jax.grad(total)(0.5))
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_the_optimizers_that_read_entries_are_known():
    known = {"adam", "adamw", "lion", "sgd", "rmsprop", "adagrad", "chain"}
    assert all(Expansion(CATALOGUE[name].made.declaration).reads_entries for name in known)


@pytest.mark.parametrize(
    "tx",
    [
        gradtx.clip_by_global_norm(1.0),
        gradtx.add_noise(0.1, 0.5, 0),
        gradtx.store(gradtx.adam(0.1), "int8"),
        gradtx.chain(gradtx.scale(0.1), gradtx.centralize()),
        gradtx.scale_by_trust_ratio(),
    ],
    ids=["tree", "draws", "codes", "chain", "leaf"],
)
def test_what_reads_more_than_entries_is_left_alone(tx):
    assert not Expansion(tx.declaration).reads_entries


@pytest.mark.slow
def test_a_random_key_rounds_each_leaf(monkeypatch):
    params, seen = drawn(0, [(16,)] * 17, "bfloat16"), joins(monkeypatch)
    updates = drawn(1, [(16,)] * 17)
    key = jax.random.key(0)
    got = gradtx.apply_updates(params, updates, rounding_key=key)
    assert not seen
    want = APPLY(params, updates, rounding_key=key)
    assert bits(got) == bits(want)


@pytest.mark.parametrize("bound", [False, True])
def test_results_are_bound_to_a_device_as_those_of_jit(bound):
    device = jax.devices()[1]
    params = jax.device_put(drawn(0, MANY), device) if bound else drawn(0, MANY)
    tx = gradtx.trace(0.0359)
    state = tx.init(params)
    got, want = tx.update(params, state), jax.jit(tx.update)(params, state)
    kinds = [[(x.committed, x.sharding) for x in jax.tree.leaves(each)] for each in (got, want)]
    assert kinds[0] == kinds[1]


@pytest.mark.slow
def test_weak_types_stay(monkeypatch):
    params = {f"{i:02}": jnp.broadcast_to(jnp.asarray(0.5), (16 * i,)) for i in range(2, 19)}
    tx, seen = gradtx.scale(0.0361), joins(monkeypatch)
    got, want = tx.update(params, ()), jax.jit(tx.update)(params, ())
    assert not seen
    assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, want)


@pytest.mark.parametrize("name", ["self", "trees", "named", "joint"])
def test_extra_arguments_may_have_any_names(name):
    params, tx = drawn(0, MANY), gradtx.scale(0.0367)
    got = tx.update(params, (), **{name: 1.0})
    assert bits(got) == bits(tx.update(params, ()))


@pytest.mark.slow
def test_errors_name_leaves():
    params = drawn(0, MANY)
    state = gradtx.adam(0.0362).init(params)
    numbers = jax.tree.map(lambda x: x.astype(jnp.int32), params)
    messages = []
    for enabled in (True, False):
        with pytest.raises(TypeError) as raised, gradtx.eager_programs(enabled):
            gradtx.adam(0.0362).update(numbers, state, params)
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
    assert "'00'" in messages[0]


@pytest.mark.slow
def test_inside_of_jit_and_without_it_leaves_are_not_joined(monkeypatch):
    params, seen = drawn(0, MANY), joins(monkeypatch)
    tx = gradtx.scale(0.0363)
    jax.jit(lambda: tx.update(params, ())[0])()
    with jax.disable_jit():
        tx.update(params, ())
    assert not seen
    tx.update(params, ())
    assert seen


def test_entries_that_fill_blocks_are_no_new_values():
    """With zeros there, 0 / 0 would be an error."""
    params = drawn(0, MANY)
    tx = gradtx.scale_by_rms(eps=0.0)
    with jax.debug_nans(True):
        tx.update(params, tx.init(params))
