"""Outside of jit: one program for many leaves, the same numbers and errors, and no user code."""

# Sees mutants of: apply.

import functools
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gradtx
from gradtx.core import eager
from tests.catalogue import CATALOGUE
from tests.processes import environment
from tests.test_contracts import WHOLE, compilations, some

pytestmark = pytest.mark.compiled

RNG = np.random.default_rng(0)


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


@pytest.mark.slow
def test_one_program_for_update_and_one_for_apply():
    params = tree(shape=(3, 5))
    tx = gradtx.chain(gradtx.clip_by_global_norm(0.7), gradtx.adamw(0.0123))
    assert 1 <= programs(several, tx, params, 2) <= 2  # that of apply may be there
    again = gradtx.chain(gradtx.clip_by_global_norm(0.7), gradtx.adamw(0.0123))
    assert programs(several, again, params, 2) == 0


@pytest.mark.parametrize("name", ["adam", "kl_shampoo", "lamb", "muon", "shampoo", "soap"])
def test_init_compiles_no_program_for_each_shape(name):
    """JAX compiles one for zeros of each shape and type, in each of its contexts."""
    params = {f"{i:02}": jax.device_put(np.zeros((i, 3), np.float32)) for i in range(1, 40)}
    seen = compilations()
    seen.clear()
    tx = CATALOGUE[name].make()
    state = tx.init(params)
    assert len(seen) <= 4, seen
    traced = jax.eval_shape(tx.init, params)
    assert jax.tree.map(jax.typeof, state) == jax.tree.map(jax.typeof, traced)


def bits(x):
    """The numbers of every leaf, in which a NaN equals itself, and 0 does not equal -0."""
    keys = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    leaves = jax.tree.leaves(x)
    return [np.asarray(jax.random.key_data(x) if keys(x) else x).tobytes() for x in leaves]


@pytest.mark.slow
@some("adam", "adamw", "lamb", "muon", of=[n for n in WHOLE if n != "noop"])
def test_steps_have_the_bits_of_jit(name):
    """From the first step on, wherever no function of a user's is called."""
    if CATALOGUE[name].examples:
        pytest.skip("it takes gradients of single examples")
    if not eager.is_ours(CATALOGUE[name].make().declaration):
        pytest.skip("it calls a function that is not gradtx's")
    rng = np.random.default_rng(1)

    def drawn():
        shapes = {"a": (3, 3), "b": (7,), "c": (9, 5)}
        return {k: jnp.asarray(rng.normal(size=s), jnp.float32) for k, s in shapes.items()}

    tx, params, extra = CATALOGUE[name].make(), drawn(), {"value": jnp.float32(1.0)}
    state, update = tx.init(params), jax.jit(tx.update)
    try:
        update(params, state, params, **extra)
    except (TypeError, ValueError):
        pytest.skip("it takes a loss")
    for _ in range(3):
        gradients = drawn()
        want = update(gradients, state, params, **extra)
        got = tx.update(gradients, state, params, **extra)
        assert jax.tree.structure(got) == jax.tree.structure(want)
        assert bits(got) == bits(want)
        params, state = gradtx.apply_updates(params, got[0]), got[1]


@pytest.mark.quick(2)
@pytest.mark.parametrize("count", [1, 3, 18])
@pytest.mark.parametrize(
    "make",
    [
        lambda: gradtx.adamw(0.0317),
        lambda: gradtx.adamw(lambda count: 0.03 / (1 + count)),
        lambda: gradtx.inject_hyperparams(gradtx.adamw)(0.0318),
    ],
    ids=["number", "function", "injected"],
)
def test_a_run_goes_on_at_any_step_as_if_it_had_not_stopped(make, count):
    params, tx = tree(count, (3, 3)), make()
    runs = [(params, tx.init(params))]
    for step in range(1, 20):
        runs.append(took(tx, *runs[-1], step))
    for stop in (1, 2, 3, 5, 8, 16, 18):
        assert bits(took(make(), *runs[stop], stop + 1)) == bits(runs[stop + 1])


def took(tx, params, state, step):
    """The parameters and the state after a step."""
    gradients = jax.tree.map(lambda p: jnp.sin(step * p) + p, params)
    updates, state = tx.update(gradients, state, params)
    return gradtx.apply_updates(params, updates), state


RESUMED = """
import pickle, sys
import jax, jax.numpy as jnp, numpy as np
import gradtx
name, path, start, stop = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rng = np.random.default_rng(0)
tx = getattr(gradtx, name)(1e-2)
params = {str(i): jnp.asarray(rng.normal(size=(3, 3)), jnp.float32) for i in range(20)}
state = tx.init(params)
if start:
    leaves = [jnp.asarray(x) for x in pickle.load(open(path, "rb"))]
    params, state = jax.tree.unflatten(jax.tree.structure((params, state)), leaves)
for step in range(start, stop):
    rng = np.random.default_rng(step)
    grads = {k: jnp.asarray(rng.normal(size=(3, 3)), jnp.float32) for k in params}
    updates, state = tx.update(grads, state, params)
    params = gradtx.apply_updates(params, updates)
pickle.dump([np.asarray(x) for x in jax.tree.leaves((params, state))], open(path, "wb"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_a_saved_run_of_many_leaves_ends_with_the_same_bits_in_another_process(name, tmp_path):
    """With the options that XLA has by itself."""

    def run(path, start, stop):
        command = [sys.executable, "-c", RESUMED, name, path, str(start), str(stop)]
        subprocess.run(command, check=True, env=environment())
        return path.read_bytes()

    whole = run(tmp_path / "whole", 0, 40)
    run(tmp_path / "part", 0, 36)
    assert run(tmp_path / "part", 36, 40) == whole


@pytest.mark.slow
def test_array_hyperparameters_are_arguments():
    params = tree(shape=(4, 5))
    assert programs(several, gradtx.adam(jnp.float32(0.1)), params, 1) > 0
    assert programs(several, gradtx.adam(jnp.float32(0.2)), params, 1) == 0


@pytest.mark.quick(1)
@some(
    "adam", "lamb", "muon", "prodigy", "sgd", of=["adam", "lamb", "lbfgs", "muon", "prodigy", "sgd"]
)
def test_the_numbers_are_those_of_one_operation_after_another(name):
    """And the errors. Of the others `test_steps_have_the_bits_of_jit` and the contract
    tests/test_settings.py show together that the numbers are."""
    tx = CATALOGUE[name].make()
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


def test_a_tree_of_one_leaf_is_a_program_from_its_first_step_on():
    params = tree(count=1, shape=(5, 5))
    assert programs(several, gradtx.adam(0.0456), params, 1) == 1
    assert programs(several, gradtx.adam(0.0456), params, 6) == 0


RATES = [0.1 + i / 100 for i in range(10)]


def test_a_loop_of_new_optimizers_is_told_how_to_compile_once():
    """Also where an optimizer of another kind stays the same beside them."""
    params = {"w": jnp.ones(3)}
    state = gradtx.sgd(0.1).init(params)
    beside = gradtx.scale(0.5)

    def loop(state):
        for rate in RATES:
            _, state = gradtx.sgd(rate).update(params, state)
            beside.update(params, beside.init(params))

    with pytest.warns(UserWarning, match=r"^sgd: .*sgd\(\.\.\., jnp.asarray\(x\)\)") as seen:
        loop(state)
    assert [each.filename for each in seen] == [__file__]


@pytest.mark.parametrize(
    "make",
    [lambda rate: gradtx.sign_sgd(jnp.float32(rate)), lambda _: gradtx.sign_sgd(0.3)],
    ids=["array", "equal"],
)
def test_a_loop_of_new_optimizers_that_share_a_program(make):
    params = {"w": jnp.ones(4)}
    state = make(0.1).init(params)

    def loop(state=state):
        for rate in RATES:
            _, state = make(rate).update(params, state)

    assert programs(loop) == 1


@pytest.mark.slow
def test_optimizers_that_take_a_second_step_are_no_such_loop():
    params = {"w": jnp.ones(3)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rate in RATES:
            several(gradtx.noisy_sgd(rate), params, 2)


@pytest.mark.slow
def test_the_bits_of_a_step_do_not_depend_on_the_steps_before_it():
    params = {"w": jnp.asarray(RNG.normal(size=(3, 5)), jnp.float32)}
    for rate in RATES[:6]:
        tx = gradtx.adagrad(rate)
        state = tx.init(params)
        got = tx.update(params, state, params)
        assert bits(got) == bits(jax.jit(tx.update)(params, state, params))


def test_a_large_integer_beside_the_gradients_is_no_argument_of_a_program():
    params, tx = tree(), gradtx.sgd(0.0366)
    updates, _ = tx.update(params, tx.init(params), params, step=2**40)
    jax.tree.map(np.testing.assert_array_equal, updates, tx.update(params, tx.init(params))[0])


def test_a_loss_as_a_number_leaves_the_bits_of_a_step():
    """It is an argument of the program: another one compiles nothing."""
    params = tree(3, shape=(3, 5))
    tx = gradtx.adam(0.0321)
    state = tx.init(params)
    want = bits(jax.jit(tx.update)(params, state, params))
    for value in (1.5, np.float32(1.5), 2):
        assert bits(tx.update(params, state, params, value=value)) == want
    assert programs(lambda: tx.update(params, state, params, value=0.5)) == 0


@pytest.mark.slow
def test_a_step_inside_of_jit_on_known_arrays_has_the_bits_of_the_others():
    params = tree(shape=(8, 5))
    tx = gradtx.adam(0.0654)
    state = tx.init(params)
    inside = jax.jit(lambda: tx.update(params, state, params)[0])()
    want = jax.jit(tx.update)(params, state)[0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), inside, want)


@pytest.mark.slow
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

    def look_too(updates, state, params=None):
        return look(updates, params), state

    by_hand = gradtx.GradientTransformation(lambda params: (), look_too)
    for tx in (
        by_hand,
        gradtx.chain(by_hand, gradtx.adam(0.1)),
        gradtx.accumulate(gradtx.masked(by_hand, lambda p: jax.tree.map(lambda _: True, p)), 1),
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_it_can_be_switched_off():
    params = tree(shape=(9, 2))
    tx = gradtx.adam(0.0789)
    with gradtx.eager_programs(False):
        assert programs(several, tx, params, 2) == 0
    with jax.disable_jit():
        assert programs(several, tx, params, 2) == 0
    assert 1 <= programs(several, tx, params, 2) <= 2  # that of apply may be there


@pytest.mark.slow
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
    assert 1 <= programs(run) <= 2  # that of apply may be there
    assert len(seen) == 3


def test_the_arrays_of_a_state_are_not_the_parameters():
    params = tree()
    tx = gradtx.chain(gradtx.ema_params(0.9), gradtx.lookahead(gradtx.sgd(0.1), 2, 0.5))
    state = tx.init(params)
    own = {id(x) for x in jax.tree.leaves(params)}
    assert not own & {id(x) for x in jax.tree.leaves(state)}
