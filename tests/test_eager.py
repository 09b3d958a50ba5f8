"""Outside of jit: one program for many leaves, the same numbers and errors, and no user code."""

import functools
from collections import Counter

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gradtx
from gradtx import eager
from tests.catalogue import CATALOGUE
from tests.test_contracts import compilations, some

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def nothing_tried(monkeypatch):
    """Other tests have run optimizers once, which counts."""
    monkeypatch.setattr(eager, "_once", Counter())


def tree(count=18, shape=(2, 3)):
    return {f"{i:02}": jnp.asarray(RNG.normal(size=shape), jnp.float32) for i in range(count)}


def programs(function, *args):
    """How many programs named `run` or `_apply`, as those of steps are, a call compiles."""
    seen = compilations()
    seen.clear()
    jax.block_until_ready(function(*args))
    return sum("run" in str(name) or "_apply" in str(name) for name in seen)


def several(tx, params, steps):
    state = tx.init(params)
    for _ in range(steps):
        updates, state = tx.update(params, state, params)
        params = gradtx.apply_updates(params, updates)
    return params, state


def test_one_program_for_each_of_init_update_and_apply():
    params = tree(shape=(3, 5))
    tx = gradtx.chain(gradtx.clip_by_global_norm(0.7), gradtx.adamw(0.0123))
    assert programs(several, tx, params, 2) == 3
    again = gradtx.chain(gradtx.clip_by_global_norm(0.7), gradtx.adamw(0.0123))
    assert programs(several, again, params, 2) == 0


def mixed(shapes=18, large=(256, 257)):
    """Leaves of many shapes, and one that is not copied."""
    small = {f"{i:02}": RNG.normal(size=(1 + i % 8, 1 + i // 8)) for i in range(shapes)}
    leaves = {**small, "large": RNG.normal(size=large)}
    return {k: jnp.asarray(x, jnp.float32) for k, x in leaves.items()}


@pytest.mark.quick(1)
@pytest.mark.parametrize("steps", [1, 2], ids=["joined", "whole"])
def test_first_steps_on_joined_leaves_have_the_numbers_of_the_others(steps, monkeypatch):
    monkeypatch.setattr(eager, "FIRST_STEPS", 1)
    params, tx = mixed(), gradtx.adamw(0.0321, eps=0.3)
    state = tx.init(params)
    for _ in range(steps):
        want = jax.jit(tx.update)(params, state, params)
        got = tx.update(params, state, params)
        assert jax.tree.structure(got) == jax.tree.structure(want)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6), got, want)
        state = got[1]


def test_a_first_step_compiles_no_kernel_for_each_shape(monkeypatch):
    seen = []
    monkeypatch.setattr(eager, "_concatenated", lambda xs: seen.append(len(xs)) or joined(xs))
    joined = eager.Program(eager._concatenate)
    params, tx = mixed(), gradtx.adam(0.0322)
    updates, _ = tx.update(params, tx.init(params))
    gradtx.apply_updates(params, updates)
    assert seen == [18] * 6  # parameters; gradients and slots; parameters and updates


@pytest.mark.parametrize(
    "tx",
    [
        gradtx.store(gradtx.adam(0.1), "bf16", min_size=30),
        gradtx.masked(gradtx.scale(0.5), "*o*"),
        gradtx.chain(gradtx.add_decayed_weights(0.1, "*o*"), gradtx.scale(0.5)),
    ],
    ids=["stored", "masked", "decayed"],
)
def test_what_looks_at_paths_or_sizes_sees_the_leaves(tx):
    """``vector`` and ``others`` are not the user's names, and a vector has many entries."""
    params = {**mixed(), "odd": jnp.ones(40)}
    want = jax.jit(lambda p: tx.update(p, tx.init(p), p))(params)
    got = tx.update(params, tx.init(params), params)
    chex.assert_trees_all_equal_shapes_and_dtypes(got, want)
    chex.assert_trees_all_close(got, want, rtol=2e-6)


def test_array_hyperparameters_are_arguments():
    params = tree(shape=(4, 5))
    assert programs(several, gradtx.adam(jnp.float32(0.1)), params, 1) == 3
    assert programs(several, gradtx.adam(jnp.float32(0.2)), params, 1) == 0


@some("adam", "lamb", "muon", "sgd", "prodigy", of=[n for n in CATALOGUE if n != "noop"])
def test_the_numbers_are_those_of_one_operation_after_another(name, monkeypatch):
    monkeypatch.setattr(eager, "MANY_LEAVES", 3)
    tx = CATALOGUE[name].make()
    if CATALOGUE[name].examples:
        pytest.skip("it takes gradients of single examples")
    params, extra = tree(3), {"value": jnp.float32(1.0)}

    def run():
        state = tx.init(params)
        updates, state = tx.update(tree(3), state, params, **extra)
        return tx.update(updates, state, params, **extra)

    try:
        with gradtx.eager_programs(False):
            rng = RNG.bit_generator.state
            want = run()
    except (TypeError, ValueError) as error:
        RNG.bit_generator.state = rng
        with pytest.raises(type(error)) as raised:
            run()
        assert str(raised.value) == str(error)
        return
    RNG.bit_generator.state = rng
    got = run()
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert jax.typeof(a) == jax.typeof(b)
        if not jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_tree_of_few_leaves_must_take_several_steps():
    params = tree(count=4, shape=(5, 5))
    assert programs(several, gradtx.adam(0.0456), params, 2) == 0
    assert programs(several, gradtx.adam(0.0456), params, 6) == 1


def test_a_loop_of_new_optimizers_compiles_a_few_times_only():
    params = tree(shape=(6, 5))

    def loop():
        return [several(gradtx.nadam(0.1 + i / 100), params, 1) for i in range(12)]

    assert programs(loop) <= 2 * 4 + 1  # with apply_updates


def known(options):
    """Those options that this version of XLA has."""
    return {name: value for name, value in options.items() if eager.xla_has(name, value)}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["adam", "lamb", "lion"])
def test_a_program_compiled_quickly_gives_the_same_bits(name):
    """With the options that XLA has by itself; the suite sets others."""
    params = tree(shape=(33, 17))
    tx = getattr(gradtx, name)(0.0789)
    usual = {"xla_backend_optimization_level": 3, "xla_cpu_use_fusion_emitters": True}
    compiled = jax.jit(tx.update, compiler_options=known(usual))
    quick = jax.jit(tx.update, compiler_options=known(eager.QUICKLY))
    state = tx.init(params)
    for _ in range(2):
        want = compiled(params, state, params)
        jax.tree.map(np.testing.assert_array_equal, quick(params, state, params), want)
        state = want[1]


def test_quick_compilation_is_for_programs_that_run_now():
    """Options of the compiler are those of the outermost program; arrays may still be known."""
    params = tree(shape=(8, 5))
    tx = gradtx.adam(0.0654)
    state = tx.init(params)
    inside = jax.jit(lambda: tx.update(params, state, params)[0])()
    want = jax.jit(tx.update)(params, state)[0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), inside, want)


def test_an_option_that_xla_does_not_know_is_left_out(monkeypatch):
    monkeypatch.setattr(eager, "QUICKLY", {"xla_no_such_option": 1})
    doubled = eager.Program(lambda x: 2 * x)
    assert doubled(jnp.ones(2)).tolist() == [2.0, 2.0]


def test_functions_that_are_not_ours_run_at_every_step():
    params, seen = tree(), []

    def look(updates, params):
        seen.append(float(updates["00"][0, 0]))  # no tracer has one
        return updates

    def rate(count):
        seen.append(int(count))
        return 0.1

    def now():
        seen.append(None)
        return 0.1

    for tx in (
        gradtx.chain(gradtx.stateless(look), gradtx.adam(0.1)),
        gradtx.adam(rate),
        gradtx.adam(now),
        gradtx.chain(optax.stateless(look), gradtx.adam(0.1)),
    ):
        seen.clear()
        several(tx, params, 3)
        several(tx, params, 3)
        assert len(seen) >= 6


def test_errors_are_the_same():
    params = tree()
    for tx, wrong in (
        (gradtx.adam(0.1), {**params, "00": jnp.ones(7)}),
        (gradtx.adam(0.1), {**params, "00": jnp.ones((2, 3), jnp.int32)}),
        (gradtx.adamw(0.1), {k: v for k, v in params.items() if k != "00"}),
    ):
        state = tx.init(params)
        messages = []
        for enabled in (True, False):
            with (
                gradtx.eager_programs(enabled),
                pytest.raises((TypeError, ValueError)) as raised,
            ):
                tx.update(wrong, state, params)
            messages.append((raised.type, str(raised.value)))
        assert messages[0] == messages[1]


def test_rows_and_arrays_on_several_devices_are_left_alone():
    params = tree(shape=(8, 2))
    tx = gradtx.sgd(0.1, momentum=0.9)
    state = tx.init(params)
    rows = {k: gradtx.Rows(jnp.array([1]), jnp.ones((1, 2)), p.shape) for k, p in params.items()}
    assert programs(tx.update, rows, state) == 0
    place = NamedSharding(Mesh(np.array(jax.devices()[:2]), "d"), PartitionSpec("d"))
    sharded = jax.device_put(params, place)
    state = tx.init(sharded)
    assert all(x.sharding == place for x in jax.tree.leaves(state))
    assert programs(tx.update, sharded, state) == 0


def test_it_can_be_switched_off():
    params = tree(shape=(9, 2))
    tx = gradtx.adam(0.0789)
    with gradtx.eager_programs(False):
        assert programs(several, tx, params, 2) == 0
    with jax.disable_jit():
        assert programs(several, tx, params, 2) == 0
    assert programs(several, tx, params, 2) == 3


def test_minimize_runs_the_step_as_a_program():
    """The loss is the user's, and runs an operation at a time."""
    params, seen = tree(shape=(2, 7)), []

    def loss(params):
        seen.append(None)
        return sum(jnp.sum(p**2) for p in params.values())

    def run():
        return functools.reduce(
            lambda carry, _: gradtx.minimize(loss, tx, *carry)[:2], range(3), (params, state)
        )

    tx = gradtx.adam(0.0321)
    state = tx.init(params)
    assert programs(run) == 2
    assert len(seen) == 3


def test_donated_arrays_of_a_state_made_by_a_program_are_apart():
    params = tree()
    tx = gradtx.chain(gradtx.ema_params(0.9), gradtx.lookahead(gradtx.sgd(0.1), 2, 0.5))
    state = tx.init(params)
    own = {id(x) for x in jax.tree.leaves(params)}
    assert not own & {id(x) for x in jax.tree.leaves(state)}
