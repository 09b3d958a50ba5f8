"""The pair, its declaration, and hyperparameters that are arrays or schedules."""

import copy
import pickle
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx.core.pair import transformations_in, with_extra_args_support


def test_it_unpacks_to_exactly_two_functions():
    init, update = gradtx.adam(0.1)
    state = init(jnp.ones(2))
    updates, _ = update(jnp.ones(2), state)
    np.testing.assert_allclose(updates, -0.1, rtol=1e-6)
    assert len(gradtx.adam(0.1)) == 2


def test_a_replaced_function_makes_a_pair_by_hand():
    """As for Optax's NamedTuple: what the old functions came with does not stay."""
    tx = gradtx.accumulate(gradtx.sgd(0.1), 2)
    ascending = tx._replace(update=lambda g, state, params=None, **_: (g, state))
    params, state = {"w": jnp.zeros(2)}, ascending.init({"w": jnp.zeros(2)})
    new, _ = gradtx.apply_gradients(
        gradtx.chain(ascending), {"w": jnp.ones(2)}, params, state=(state,)
    )
    np.testing.assert_array_equal(new["w"], 1.0)
    assert ascending != tx


def test_repr():
    tx = gradtx.chain(
        gradtx.clip_by_global_norm(1.0),
        gradtx.scale_by_adam(),
        gradtx.scale_by_learning_rate(0.001),
    )
    assert repr(tx) == (
        "chain(clip_by_global_norm(max_norm=1.0), "
        "scale_by_adam(b1=0.9, b2=0.999, eps=1e-08, eps_root=0.0), "
        "scale_by_learning_rate(learning_rate=0.001, flip_sign=True))"
    )
    assert repr(gradtx.adam(0.001).expansion).startswith("chain(scale_by_adam(")
    assert repr(gradtx.sgd(np.float32(0.5))) == "sgd(learning_rate=0.5)"


def test_equality_and_hash():
    assert gradtx.adam(0.1) == gradtx.adam(0.1)
    assert gradtx.adam(0.1) != gradtx.adam(0.2)
    assert gradtx.adam(0.1) != gradtx.adamw(0.1)
    array = gradtx.adam(jnp.float32(0.1))
    assert array == gradtx.adam(jnp.float32(0.1))
    assert array != gradtx.adam(jnp.float32(0.2))
    assert array != gradtx.adam(0.1)
    assert len({gradtx.adam(0.1), gradtx.adam(0.1), gradtx.adam(0.2)}) == 2
    assert gradtx.chain() == gradtx.chain()
    assert gradtx.adam(0.1) != "adam"


def test_copies_and_pickles():
    tx = gradtx.adam(gradtx.cosine_decay_schedule(0.1, 10), b1=jnp.float32(0.5))
    for again in (copy.copy(tx), copy.deepcopy(tx), pickle.loads(pickle.dumps(tx))):
        assert again == tx


def test_paths_of_the_transformations_in_an_argument():
    a, b = gradtx.sgd(0.1), gradtx.clip(1.0)
    value = {"x": a, "y": [a, b], "z": ("one", b), "pairs": [("p", a), ("q", b)]}
    assert list(transformations_in(value, "groups")) == [
        *[("groups.x", a), ("groups.y.0", a), ("groups.y.1", b), ("groups.z.one", b)],
        *[("groups.pairs.p", a), ("groups.pairs.q", b)],
    ]
    assert list(transformations_in([a], "")) == [("0", a)]


def test_two_functions_alone_are_a_pair():
    init, update = optax.sgd(0.5)
    assert with_extra_args_support((init, update)).update(1.0, init(1.0), value=0.0)[0] == -0.5


def test_pairs_of_other_numbers_have_one_structure():
    one, other = (jax.tree.structure(gradtx.adam(jnp.float32(x))) for x in (0.1, 0.2))
    assert one == other
    assert one != jax.tree.structure(gradtx.adamax(jnp.float32(0.1)))


def test_a_builder_may_take_schedules_itself():
    given, schedule = [], gradtx.constant_schedule(0.5)

    @gradtx.transformation(native_schedules=True)
    def scaled(rate: gradtx.checks.NonNegative = 1.0):
        given.append(rate)
        return gradtx.scale_by_schedule(rate)

    assert scaled(schedule).update(1.0, scaled(schedule).init(1.0))[0] == 0.5
    assert set(given) == {schedule}


def test_array_hyperparameters_are_leaves():
    tx = gradtx.chain(gradtx.clip(jnp.float32(1.0)), gradtx.adam(jnp.float32(0.1), b1=0.5))
    assert [float(x) for x in jax.tree.leaves(tx)] == [1.0, np.float32(0.1)]
    doubled = jax.tree.map(lambda x: 2 * x, tx)
    assert gradtx.hyperparams(doubled)["0.max_delta"] == 2.0
    assert jax.tree.leaves(gradtx.adam(0.1)) == []


def test_placeholders_survive_a_rebuild():
    """JAX puts anything into a tree at times; nothing is checked or built then."""
    structure = jax.tree.structure(gradtx.adam(jnp.float32(0.1)))
    rebuilt = jax.tree.unflatten(structure, [object()])
    assert isinstance(rebuilt, gradtx.GradientTransformation)


def test_gradients_of_hyperparameters():
    def after_one_step(rate):
        tx = gradtx.sgd(rate)
        return gradtx.apply_updates(1.0, tx.update(2.0, tx.init(1.0))[0])

    np.testing.assert_allclose(jax.grad(after_one_step)(0.1), -2.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [
        lambda h: gradtx.sgd(0.1, momentum=h),
        lambda h: gradtx.adam(0.1, b1=h),
        lambda h: gradtx.clip(h),
        lambda h: gradtx.add_decayed_weights(h),
        lambda h: gradtx.clip_by_global_norm(h),
        lambda h: gradtx.scale(h),
    ],
)
def test_any_hyperparameter_may_be_a_schedule(build):
    schedule = gradtx.linear_schedule(0.1, 0.9, 8)
    scheduled, p = build(schedule), jnp.array([1.0, 2.0])
    state = scheduled.init(p)

    @jax.jit
    def scan(p, state):
        def step(carry, _):
            p, state = carry
            updates, state = scheduled.update(p, state, p)
            return (p - 0.1 * updates, state), updates

        return jax.lax.scan(step, (p, state), length=4)[1]

    got = scan(p, state)
    plain_state = build(0.1).init(p)
    for t in range(4):
        updates, plain_state = build(float(schedule(t))).update(p, plain_state, p)
        p = p - 0.1 * updates
        np.testing.assert_allclose(got[t], updates, rtol=1e-4)


def test_a_scheduled_decay_of_weights_counts_like_optax():
    tx = gradtx.add_decayed_weights(gradtx.linear_schedule(1.0, 0.0, 4), mask="w")
    theirs = optax.add_decayed_weights(optax.linear_schedule(1.0, 0.0, 4), {"w": True, "b": False})
    p = {"w": jnp.ones(2), "b": jnp.ones(2)}
    state = tx.init(p)
    assert type(state).__name__ == type(theirs.init(p)).__name__
    for _ in range(2):
        updates, state = tx.update(p, state, p)
    np.testing.assert_allclose(updates["w"], 1.75)
    np.testing.assert_allclose(updates["b"], 1.0)
    assert type(state.inner_state).__name__ == "WeightDecaySchedule"
    assert int(state.inner_state.count) == 2


def test_extra_arguments():
    def update(updates, state, params=None):
        return updates, state

    plain = gradtx.GradientTransformation(lambda p: (), update)
    supported = gradtx.with_extra_args_support(plain)
    assert isinstance(supported, gradtx.GradientTransformationExtraArgs)
    assert supported.update(1.0, (), None, value=2.0) == (1.0, ())
    assert gradtx.with_extra_args_support(supported) is supported
    chained = gradtx.chain(plain, optax.scale(2.0))
    assert float(chained.update(1.0, chained.init(1.0), None, value=3.0)[0]) == 2.0


def take(updates, state, params, **extra_args):
    return params, state


@pytest.mark.parametrize("wrap", [gradtx.chain, lambda tx: gradtx.masked(tx, True)])
def test_extra_arguments_that_another_library_s_pair_names(wrap):
    """It may take some by name, and no others."""

    def update(updates, state, params=None, *, value=1.0):
        return updates * value, state

    def positional(updates, state, params=None, /, *, value=1.0):
        return update(updates, state, params, value=value)

    tx = gradtx.with_extra_args_support((lambda params: (), positional))
    assert float(tx.update(2.0, (), value=3.0, other=5.0)[0]) == 6.0
    for kind in (optax.GradientTransformationExtraArgs, optax.GradientTransformation):
        tx = wrap(kind(lambda params: (), update))
        state = tx.init(0.0)
        assert float(tx.update(jnp.float32(2.0), state, value=3.0, other=5.0)[0]) == 6.0
        assert float(tx.update(jnp.float32(2.0), state)[0]) == 2.0


def test_a_pair_by_hand_is_pickled_with_its_step():
    pair = gradtx.GradientTransformationExtraArgs(len, len, take)
    assert pickle.loads(pickle.dumps(pair)).step is take


@pytest.mark.slow
@pytest.mark.parametrize(
    "around",
    [
        lambda inner, schedule: gradtx.decay_first(inner, schedule),
        lambda inner, schedule: gradtx.decay_first(gradtx.decay_first(inner, schedule), schedule),
        lambda inner, schedule: gradtx.decay_first(
            gradtx.chain(inner, gradtx.scale_by_adam(schedule)), schedule
        ),
    ],
)
def test_a_schedule_around_a_schedule(around):
    """Each has a clock, and both are at the same step."""
    schedule, p, g = gradtx.linear_schedule(0.5, 0.1, 4), jnp.array([3.0, 4.0]), jnp.ones(2)
    tx = around(gradtx.clip_by_norm(schedule), schedule)
    state = tx.init(p)
    assert jax.tree.structure(jax.eval_shape(tx.init, p)) == jax.tree.structure(state)
    constant = [around(gradtx.clip_by_norm(x), x) for x in map(float, map(schedule, range(6)))]
    plain = constant[0].init(p)
    for t in range(6):
        updates, state = jax.jit(tx.update)(g, state, p)
        want, plain = constant[t].update(g, plain, p)
        np.testing.assert_allclose(updates, want, rtol=1e-5)


def test_what_is_built_within_a_trace_is_of_use_after_it():
    """The first value of a schedule, which the initial state reads."""
    start = gradtx.linear_schedule(0.5, 0.1, 4)
    tx = gradtx.scale_by_adagrad_decay(initial_accumulator_value=start)
    jax.jit(tx.init)(jnp.ones(2))
    np.testing.assert_array_equal(tx.init(jnp.ones(2)).accumulator, [0.5, 0.5])


@gradtx.transformation
def _computes_in_its_builder(b: gradtx.checks.NonNegative = 0.5):
    c = jnp.float32(1) - b
    return gradtx.stateless(lambda g, p: jax.tree.map(lambda x: c * x, g))


@pytest.mark.parametrize("b", [0.5, lambda count: 0.5], ids=["number", "schedule"])
@pytest.mark.parametrize("wrap", [lambda tx: tx, gradtx.chain], ids=["alone", "in a chain"])
def test_a_pair_may_be_built_inside_of_a_trace(b, wrap):
    """What its builder computes there must not outlive the trace."""
    tx = wrap(_computes_in_its_builder(b))
    fresh = pickle.loads(pickle.dumps(tx)) if b == 0.5 else tx  # not built yet
    step = jax.jit(lambda tx, g: tx.update(g, tx.init(g))[0])
    for size in (2, 3):
        np.testing.assert_array_equal(step(fresh, jnp.ones(size)), 0.5)
    np.testing.assert_array_equal(fresh.update(jnp.ones(2), fresh.init(jnp.ones(2)))[0], 0.5)


def test_a_pair_without_arrays_is_not_built_again():
    tx = gradtx.adam(1e-3)
    leaves, treedef = jax.tree.flatten(tx)
    assert leaves == []
    assert jax.tree.unflatten(treedef, leaves) is tx
    swept = gradtx.adam(jnp.float32(1e-3))
    assert jax.tree.unflatten(*jax.tree.flatten(swept)[::-1]) is not swept


def _nothing(params):
    return ()


def _pass(updates, state, params=None):
    return updates, state


def test_a_pickle_of_a_pair_made_by_hand_is_read_as_before():
    """Pickles of 0.1.0's development name a class of four fields beside the pair."""
    pair = gradtx.GradientTransformation(_nothing, _pass)
    rebuild, (cls, functions, _) = pair.__reduce__()
    old = rebuild(cls, functions, sys.modules[cls.__module__]._Members(None, None, None, None))
    assert tuple(old) == (_nothing, _pass)
    assert old.step is None
    assert tuple(pickle.loads(pickle.dumps(pair))) == (_nothing, _pass)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        *(("pair", name) for name in ("Scope", "Rule", "Traits", "Links", "Communication")),
        ("pair", "ScheduledState"),
        ("engine.matrices", "MatrixDimensions"),
        ("wrappers.guard", "Rolling"),
    ],
)
def test_pickles_find_classes_in_the_modules_that_they_name(module, name):
    """The class was there when they were written."""
    found = pickle.loads(f"cgradtx.{module}\n{name}\n.".encode())
    assert found.__name__ == name


@pytest.mark.parametrize("name", ["adapters", "entered", "numbers", "seen", "self"])
def test_extra_arguments_may_have_any_names(name):
    x = jnp.ones(2)
    tx = gradtx.sgd(jnp.float32(0.5))
    for enabled in (True, False):
        with gradtx.eager_programs(enabled):
            updates, _ = tx.update(x, tx.init(x), x, **{name: jnp.ones(3)})
        np.testing.assert_array_equal(updates, -0.5 * x)


def test_an_update_that_returns_nothing_runs_once_and_is_named():
    calls = []

    @gradtx.transformation
    def forgetful():
        return gradtx.GradientTransformation(lambda params: (), lambda *args: calls.append(args))

    with pytest.raises(TypeError, match="forgetful: it returned None"):
        forgetful().update(jnp.ones(2), ())
    assert len(calls) == 1
