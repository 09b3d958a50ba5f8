"""A state in the host's memory: the same bits, in the memory that it says, wherever it is used."""

import pickle

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gradtx
from gradtx.leaves.shardings import committed
from gradtx.wrappers import offload as module

P = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(8, 64)), jnp.float32), "b": jnp.ones(8)}


def loss(p, x):
    return jnp.mean(jnp.square(p["w"].T @ p["b"] - x))


def places(state, name):
    return {
        k: x.sharding.memory_kind for k, x in gradtx.get_slot(state, name).items() if x is not None
    }


def run(tx, steps=3, sharding=None):
    step = gradtx.make_step(loss, tx, sharding=sharding)
    p = jax.tree.map(jnp.copy, P)
    p = p if sharding is None else jax.device_put(p, sharding.params)
    state = step.init(p)
    for i in range(steps):
        p, state, _ = step(p, state, i)
    return p, state


ADAMW = gradtx.adamw(1e-2)


def small(inner=ADAMW):
    return gradtx.offload(inner, min_size=64)


def clipped(inner):
    return gradtx.chain(gradtx.clip_by_global_norm(0.1), inner)


SHORT = gradtx.store(ADAMW, "bf16", min_size=64)

NESTED = {
    "of slots in bfloat16": lambda: (small(SHORT), SHORT),
    "alone": lambda: (small(), ADAMW),
    "in a chain": lambda: (clipped(small()), clipped(ADAMW)),
    "in a window": lambda: (gradtx.accumulate(small(), 2), gradtx.accumulate(ADAMW, 2)),
    "around a window": lambda: (small(gradtx.accumulate(ADAMW, 2)), gradtx.accumulate(ADAMW, 2)),
    "in a guard": lambda: (gradtx.apply_if_finite(small(), 3), gradtx.apply_if_finite(ADAMW, 3)),
}


@pytest.mark.slow
@pytest.mark.usefixtures("host_memory")
@pytest.mark.parametrize(
    "name", [n if n == "alone" else pytest.param(n, marks=pytest.mark.slow) for n in NESTED]
)
def test_the_same_bits_and_large_slots_on_the_host(name):
    ours, plain = NESTED[name]()
    (p, state), (q, other) = run(ours), run(plain)
    chex.assert_trees_all_equal((p, jax.tree.leaves(state)), (q, jax.tree.leaves(other)))
    for slot in ("mu", "nu"):
        assert places(state, slot) == {"w": "pinned_host", "b": "device"}
    assert p["w"].sharding.memory_kind == "device"


@pytest.mark.slow
def test_eagerly_too_and_back_from_a_checkpoint(tmp_path):
    tx = small()
    p, state = gradtx.apply_gradients(tx, P, P, tx.init(P))
    assert places(state, "nu") == {"w": "pinned_host", "b": "device"}
    gradtx.save_checkpoint(tmp_path / "run.npz", p, state, tx)
    back = gradtx.load_checkpoint(tmp_path / "run.npz")
    want = gradtx.apply_gradients(tx, P, p, state)
    got = gradtx.apply_gradients(back.tx, P, back.params, back.state)
    chex.assert_trees_all_equal(got, want)
    assert places(got[1], "nu") == {"w": "pinned_host", "b": "device"}


@pytest.mark.slow
@pytest.mark.usefixtures("host_memory")
@pytest.mark.parametrize("how", ["eagerly", "under jit"])
def test_a_step_compiles_once_for_a_new_and_a_loaded_state(how, tmp_path):
    tx = small()
    step = gradtx.make_step(loss, tx)
    p = jax.tree.map(jnp.copy, P)
    state = tx.init(p) if how == "eagerly" else jax.jit(tx.init)(p)
    for i in range(2):
        p, state, _ = step(p, state, i)
    gradtx.save_checkpoint(tmp_path / "run.npz", p, state, tx)
    back = gradtx.load_checkpoint(tmp_path / "run.npz")
    assert places(back.state, "nu") == {"w": "pinned_host", "b": "device"}
    again = gradtx.make_step(loss, tx)
    for each in (step, again):
        q, other = jax.tree.map(jnp.copy, (back.params, back.state))
        for i in range(2, 4):
            q, other, _ = each(q, other, i)
        assert each._compiled._cache_size() == 1
    for i in range(2, 4):
        p, state, _ = step(p, state, i)
    chex.assert_trees_all_equal((q, other), (p, state))
    assert step._compiled._cache_size() == 1


@pytest.mark.usefixtures("host_memory")
def test_a_jit_of_ones_own_is_not_compiled_anew_for_a_loaded_state(tmp_path):
    """All arrays are bound to the device, as after a step; JAX compiles anew where some are not."""
    tx = small()
    step = jax.jit(lambda p, state: gradtx.apply_gradients(tx, P, p, state))
    p = jax.device_put(jax.tree.map(jnp.copy, P), jax.devices()[0])
    p, state = step(p, tx.init(p))
    gradtx.save_checkpoint(tmp_path / "run.npz", p, state, tx)
    back = gradtx.load_checkpoint(tmp_path / "run.npz", params=p)
    arrays = jax.tree.map(np.asarray, gradtx.state_dict(state))
    for loaded in (back.params, back.state), (p, gradtx.load_state_dict(tx, p, arrays)):
        chex.assert_trees_all_equal(step(*loaded), step(p, state))
    assert step._cache_size() == 1


def test_a_pickled_state_is_loaded_into_the_memory_of_the_host():
    """JAX unpickles arrays onto the device."""
    tx = small()
    state = pickle.loads(pickle.dumps(tx.init(P)))
    assert places(state, "nu") == {"w": "device", "b": "device"}
    back = gradtx.load_state_dict(tx, P, gradtx.state_dict(state))
    assert places(back, "nu") == {"w": "pinned_host", "b": "device"}


@pytest.mark.slow
@pytest.mark.usefixtures("host_memory")
def test_a_state_on_the_device_goes_to_the_host_inside_a_loop_too():
    """`accumulate` takes the inner step in a loop, whose state must start where it ends."""
    tx = gradtx.accumulate(small(), 2)
    step = jax.jit(lambda p, state: gradtx.apply_gradients(tx, P, p, state))
    runs = []
    for state in (tx.init(P), pickle.loads(pickle.dumps(tx.init(P)))):
        p = P
        for _ in range(2):
            p, state = step(p, state)
        assert places(state, "nu") == {"w": "pinned_host", "b": "device"}
        runs.append((p, state))
    chex.assert_trees_all_equal(*runs)


def test_what_is_bound_to_a_device():
    """All arrays, without a copy, once one is; none is moved from its device."""
    loose = {"a": jnp.ones(3), "b": np.ones(2), "c": 1.0}
    assert committed(loose) == (loose, False)
    place = jax.devices()[3]
    tree, bound = committed({**loose, "d": jax.device_put(jnp.ones(1), place)})
    assert bound
    assert {x.sharding.device_set.pop() for x in (tree["a"], tree["d"])} == {place}
    assert tree["a"].committed
    assert tree["b"] is loose["b"]
    here = {"a": loose["a"], "d": jax.device_put(jnp.ones(1), jax.devices()[0])}
    assert committed(here)[0]["a"].unsafe_buffer_pointer() == here["a"].unsafe_buffer_pointer()
    several = {**here, "e": jax.device_put(jnp.ones(1), place)}
    assert committed(several) == (several, False)


def test_large_vectors_lie_there_too():
    state = small().init({"large": jnp.ones(64), "small": jnp.ones(63)})
    assert places(state, "nu") == {"large": "pinned_host", "small": "device"}


@pytest.mark.usefixtures("host_memory")
def test_init_under_jit_makes_it_there():
    assert places(jax.jit(small().init)(P), "mu") == {"w": "pinned_host", "b": "device"}


@pytest.mark.slow
@pytest.mark.usefixtures("host_memory")
def test_a_divided_state_lies_on_the_hosts():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    place = {
        k: NamedSharding(mesh, s) for k, s in [("w", PartitionSpec("x")), ("b", PartitionSpec())]
    }
    sharding = gradtx.state_sharding(small(), P, place)
    p, state = run(small(), sharding=sharding)
    assert places(state, "mu") == {"w": "pinned_host", "b": "device"}
    assert gradtx.get_slot(state, "mu", "w").sharding.spec == PartitionSpec("x")
    chex.assert_trees_all_close(p, run(ADAMW)[0], rtol=1e-6)


def test_where_there_is_no_such_memory_it_says_so_or_stays(monkeypatch):
    monkeypatch.setattr(module, "HOST", "elsewhere")
    with pytest.raises(ValueError, match=r"offload: cpu devices have no elsewhere memory, only .*"):
        small().init(P)
    state = gradtx.offload(ADAMW, min_size=0, strict=False).init(P)
    assert places(state, "mu") == {"w": "device", "b": "device"}


@pytest.mark.parametrize("size", [-1, 0.5, jnp.array(4), lambda count: 4])
def test_the_smallest_size_is_a_known_integer(size):
    """It decides where an array lies, which no step can change."""
    with pytest.raises(ValueError, match="offload: min_size must be an integer of at least 0"):
        gradtx.offload(gradtx.adam(0.1), min_size=size)
