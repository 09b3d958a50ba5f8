"""Keras optimizers handed over in the middle of a run, beside Keras itself."""

# Sees mutants of: keras_schedules.

import functools
import json
import os

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.interop import from_keras
from tests import oracle
from tests.later import later
from tests.quick import quick

os.environ["KERAS_BACKEND"] = "jax"
keras, KO = later("keras"), later("keras", "keras.optimizers")
# Keras's variables do not know NumPy's newest protocol. One process imports Keras.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.xdist_group("keras"),
]
SHAPES = {"table": (4, 3), "kernel": (3, 2), "bias": (2,)}
STEPS = 20


def start():
    return [oracle.parameters(i, shape) for i, shape in enumerate(SHAPES.values())]


def gradients(steps):
    columns = [oracle.gradients(i + 9, s, steps) for i, s in enumerate(SHAPES.values())]
    return [[np.asarray(c[i], np.float32) for c in columns] for i in range(steps)]


def built(optimizer, constraint=None):
    variables = [
        keras.Variable(np.asarray(p, np.float32), name=name)
        for name, p in zip(SHAPES, start(), strict=True)
    ]
    for v in variables:
        v.constraint = constraint
    optimizer.build(variables)
    return optimizer, variables


def named(arrays):
    return dict(zip(SHAPES, arrays, strict=True))


def train(optimizer, variables, gs):
    """The variables after steps with the gradients `gs`, one compiled scan."""

    def step(carry, g):
        return optimizer.stateless_apply(carry[1], g, carry[0]), None

    carry = [v.value for v in variables], [v.value for v in optimizer.variables]
    stacked = [jnp.stack(column) for column in zip(*gs, strict=True)]
    carry, _ = jax.jit(lambda c, g: jax.lax.scan(step, c, g))(carry, stacked)
    for v, value in zip((*variables, *optimizer.variables), (*carry[0], *carry[1]), strict=True):
        v.assign(value)
    return [np.asarray(x) for x in carry[0]]


def go_on(tx, state, params, gs):
    def step(carry, g):
        params, state = carry
        return gradtx.apply_gradients(tx, g, params, state), None

    carry = jax.tree.map(jnp.asarray, params), state
    stacked = jax.tree.map(lambda *column: jnp.stack(column), *gs)
    return jax.jit(lambda c, g: jax.lax.scan(step, c, g))(carry, stacked)[0]


def decays(**options):
    return {"weight_decay": 0.1, **options}


def keras_schedule_free(*args, **options):
    if not hasattr(KO, "ScheduleFreeAdamW"):
        pytest.skip("this Keras has no ScheduleFreeAdamW")
    return KO.ScheduleFreeAdamW(*args, **options)


SCHEDULES = {
    "exponential": lambda: KO.schedules.ExponentialDecay(0.1, 7, 0.5, staircase=True),
    "exponential to 0 at once": lambda: KO.schedules.ExponentialDecay(0.1, 25, 0.0),
    "exponential to 0": lambda: KO.schedules.ExponentialDecay(0.1, 25, 0.0, staircase=True),
    "piecewise": lambda: KO.schedules.PiecewiseConstantDecay([5, 23], [0.1, 0.05, 0.01]),
    "polynomial": lambda: KO.schedules.PolynomialDecay(0.1, 9, 0.01, power=2.0, cycle=True),
    "polynomial once": lambda: KO.schedules.PolynomialDecay(0.1, 30, 0.01, power=2.0),
    "inverse": lambda: KO.schedules.InverseTimeDecay(0.1, 5, 0.5, staircase=True),
    "cosine": lambda: KO.schedules.CosineDecay(0.0, 30, 0.1, warmup_target=0.1, warmup_steps=5),
    "cosine once": lambda: KO.schedules.CosineDecay(0.1, 3e1, 0.1),
    "restarts": lambda: KO.schedules.CosineDecayRestarts(0.1, 4, t_mul=2.0, m_mul=0.8, alpha=0.1),
    "restarts alike": lambda: KO.schedules.CosineDecayRestarts(0.1, 4, t_mul=1.0, m_mul=0.8),
}


OPTIMIZERS = {
    "sgd": lambda: KO.SGD(0.1),
    "sgd momentum": lambda: KO.SGD(0.1, momentum=0.9, **decays()),
    "sgd nesterov": lambda: KO.SGD(0.1, momentum=0.9, nesterov=True, clipnorm=1.0),
    "adam": lambda: KO.Adam(0.01, epsilon=1e-3),
    "adam decays": lambda: KO.Adam(0.01, global_clipnorm=1.0, **decays()),
    "amsgrad": lambda: KO.Adam(0.01, amsgrad=True, epsilon=1e-3, clipvalue=0.5),
    "adamw": lambda: KO.AdamW(0.01, weight_decay=0.1),
    "adagrad": lambda: KO.Adagrad(0.1, **decays()),
    "rmsprop": lambda: KO.RMSprop(0.01),
    "rmsprop momentum": lambda: KO.RMSprop(0.01, momentum=0.9, **decays()),
    "rmsprop centered": lambda: KO.RMSprop(0.01, momentum=0.9, centered=True, epsilon=1e-3),
    "adadelta": lambda: KO.Adadelta(1.0, **decays(weight_decay=0.01)),
    "adamax": lambda: KO.Adamax(0.01, epsilon=1e-3),
    "nadam": lambda: KO.Nadam(0.01, **decays()),
    "ftrl": lambda: KO.Ftrl(0.1, l1_regularization_strength=0.01, beta=0.1),
    "ftrl decays": lambda: KO.Ftrl(
        0.1, l2_regularization_strength=0.1, l2_shrinkage_regularization_strength=0.1, **decays()
    ),
    "lion": lambda: KO.Lion(0.01, **decays()),
    "schedule free": lambda: keras_schedule_free(0.01, warmup_steps=25, weight_decay=0.1),
    "schedule free plain": lambda: keras_schedule_free(0.01, epsilon=1e-3),
    "lamb": lambda: KO.Lamb(0.01, **decays()),
    "adafactor": lambda: KO.Adafactor(0.1, **decays()),
    "muon": lambda: KO.Muon(0.01, exclude_layers=["table"]),
    "muon plain": lambda: KO.Muon(0.01, nesterov=False, rms_rate=None, weight_decay=None),
    "accumulation": lambda: KO.Adam(0.01, gradient_accumulation_steps=3, clipnorm=1.0),
    "accumulation schedule": lambda: KO.SGD(
        SCHEDULES["exponential"](), momentum=0.9, gradient_accumulation_steps=3
    ),
    "accumulation loss scale": lambda: KO.SGD(
        0.1, momentum=0.9, gradient_accumulation_steps=3, loss_scale_factor=8.0, clipnorm=1.0
    ),
    "average": lambda: KO.SGD(0.1, use_ema=True, ema_momentum=0.9),
    "average accumulation": lambda: KO.SGD(
        0.1, use_ema=True, ema_momentum=0.9, gradient_accumulation_steps=3
    ),
    "overwrite": lambda: KO.Adam(0.01, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4),
    "overwrite accumulation": lambda: KO.Adam(
        0.01,
        use_ema=True,
        ema_momentum=0.9,
        ema_overwrite_frequency=2,
        gradient_accumulation_steps=3,
    ),
    "loss scale factor": lambda: KO.Adam(0.01, loss_scale_factor=8.0),
    "loss scale": lambda: KO.LossScaleOptimizer(
        KO.Adam(0.01), initial_scale=16.0, dynamic_growth_steps=6
    ),
    "several": lambda: KO.MultiOptimizer(
        KO.OptimizerMap(KO.Adam(0.01), {"ker.*": KO.SGD(0.1, momentum=0.9), "none": KO.Lion(0.1)})
    ),
    "schedule": lambda: KO.SGD(SCHEDULES["cosine"](), weight_decay=0.1),
}


QUICK = ("sgd nesterov", "adam", "adamw", "rmsprop centered", "muon", "overwrite accumulation")


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(OPTIMIZERS, *QUICK))
def test_a_run_goes_on(name):
    """Twenty steps in Keras, handed over, twenty more on both sides."""
    optimizer, variables = built(OPTIMIZERS[name]())
    gs = gradients(2 * STEPS)
    params = named(train(optimizer, variables, gs[:STEPS]))
    tx, state = from_keras(optimizer, params, order=list(SHAPES))
    assert gradtx.from_config(json.loads(json.dumps(gradtx.to_config(tx)))) == tx
    got, _ = go_on(tx, state, params, [named(g) for g in gs[STEPS:]])
    serialized = json.loads(json.dumps(KO.serialize(optimizer)))
    saved = {str(i): np.array(v.value) for i, v in enumerate(optimizer.variables)}
    want = named(train(optimizer, variables, gs[STEPS:]))
    for key, theirs in want.items():
        assert np.abs(theirs - params[key]).max() > 1e-3
        np.testing.assert_allclose(got[key], theirs, rtol=1e-5, atol=2e-6)
    # The same from a saved configuration and saved arrays.
    tx_saved, state_saved = from_keras(serialized, params, saved, order=list(SHAPES))
    assert tx_saved == tx
    jax.tree.map(np.testing.assert_array_equal, state_saved, state)


@pytest.mark.slow
def test_a_loss_scale_falls_below_one():
    optimizer, variables = built(KO.LossScaleOptimizer(KO.SGD(0.1), initial_scale=1.0))
    tx, state = from_keras(optimizer, start())
    gs = [[np.full_like(g, np.inf) for g in each] for each in gradients(3)]
    _, state = go_on(tx, state, start(), gs)
    train(optimizer, variables, gs)
    assert float(gradtx.loss_scale(state)) == float(optimizer.dynamic_scale) == 1 / 8


@pytest.mark.slow
def test_every_class_of_keras_is_known():
    """Those that Keras publishes, and those that are tried above."""
    made = [make() for make in OPTIMIZERS.values()]
    tried = {type(optimizer).__name__ for optimizer in made} | {"Optimizer", "OptimizerMap"}

    def classes(module):
        return {name for name, each in vars(module).items() if isinstance(each, type)}

    assert classes(keras.optimizers) == tried
    there = classes(keras.optimizers.schedules)
    tried = {type(make()).__name__ for make in SCHEDULES.values()}
    assert there == tried | {"LearningRateSchedule"}


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name):
    schedule = SCHEDULES[name]()
    tx = from_keras(KO.SGD(schedule))
    counts = jnp.arange(40)
    mine, theirs = tx.declaration.arguments["learning_rate"], lambda count: schedule(count)
    got, want = (jax.jit(jax.vmap(f))(counts) for f in (mine, theirs))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-8)


def test_a_cosine_without_steps_of_warmup_begins_at_its_target():
    config = KO.SGD(keras.optimizers.schedules.CosineDecay(0.0, 30, warmup_target=0.5)).get_config()
    del config["learning_rate"]["config"]["warmup_steps"]
    tx = from_keras(config, class_name="SGD")
    assert float(gradtx.hyperparams(tx)["learning_rate"]) == 0.5


def test_a_tree_in_another_order():
    optimizer, variables = built(KO.Adam(0.01))
    params = train(optimizer, variables, gradients(2))
    _, state = from_keras(optimizer, named(params), order=list(SHAPES))
    _, listed = from_keras(optimizer, params)
    mu = gradtx.get_slot(listed, "mu")
    for i, key in enumerate(SHAPES):
        np.testing.assert_array_equal(gradtx.get_slot(state, "mu", key), mu[i])


def test_without_parameters_only_the_transformation():
    tx = from_keras(KO.AdamW(0.25, weight_decay=0.5, clipnorm=1.0))
    assert repr(tx).startswith("chain(clip_by_norm(max_norm=1.0), decay_first(inner=adam(learn")
    assert from_keras(KO.Adam(0.25).get_config(), class_name="Adam") == from_keras(KO.Adam(0.25))
    scaled = gradtx.chain(gradtx.scale(0.125), gradtx.sgd(0.25))
    assert from_keras(KO.SGD(0.25, loss_scale_factor=8.0)) == scaled
    averaged = KO.SGD(0.25, use_ema=True)
    config = {k: v for k, v in averaged.get_config().items() if k != "ema_momentum"}
    assert from_keras(config, class_name="SGD") == from_keras(averaged)


def test_a_new_optimizer_gives_a_new_state():
    tx, state = from_keras(KO.Adam(0.01), start())
    jax.tree.map(np.testing.assert_array_equal, state, tx.init([jnp.asarray(p) for p in start()]))


# The values of slots, and counts, where the variables of Keras are 4, 5, 6 and so on.
FILLED = {
    "rmsprop centered": {"nu": [6, 7, 8], "trace": [-9, -10, -11], "mu": [12, 13, 14]},
    "average accumulation": {"average": [6, 7, 8], "acc_grads": [9, 10, 11], "mini_step": [1]},
    "accumulation of five": {"acc_grads": [6 / 4, 7 / 4, 8 / 4], "gradient_step": [0]},
    "schedule free": {"z": [6, 8, 10], "nu": [7, 9, 11], "step_count": [5], "weight_sum": [4]},
    "adafactor": {"v_row": [6, 9, 0], "v_col": [7, 10, 0], "v": [0, 0, 14]},
    "nadam": {"mu": [6, 8, 10], "nu": [7, 9, 11], "momentum_product": [12]},
}


@pytest.mark.parametrize("name", FILLED)
def test_variables_are_in_their_slots(name):
    more = {"accumulation of five": lambda: KO.SGD(0.1, gradient_accumulation_steps=5)}
    optimizer, _ = built((OPTIMIZERS | more)[name]())
    for i, v in enumerate(optimizer.variables):
        v.assign(np.full(v.shape, i + 4))
    _, state = from_keras(optimizer, start())
    for slot, want in FILLED[name].items():
        held = jax.tree.leaves(gradtx.tree.get(state, slot))
        assert [float(np.mean(x)) for x in held] == want


def test_adafactor_has_rows_and_columns_of_the_last_two_axes():
    optimizer = KO.Adafactor(0.1)
    optimizer.build([keras.Variable(np.ones((2, 3, 4), np.float32), name="stack")])
    _, state = from_keras(optimizer, [np.ones((2, 3, 4), np.float32)])
    shapes = [gradtx.tree.get(state, name)[0].shape for name in ("v_row", "v_col")]
    assert shapes == [(2, 3), (2, 4)]


@pytest.mark.parametrize("warmup", [0, 1, 2, 4])
def test_the_rate_of_schedule_free_learning_starts_low(warmup):
    tx = from_keras(keras_schedule_free(0.5, warmup_steps=warmup))
    assert float(gradtx.hyperparams(tx)["learning_rate"]) == 0.5 / max(warmup, 1)


@pytest.mark.slow
def test_muon_of_gradients_as_small_as_its_epsilon():
    optimizer, variables = built(KO.Muon(0.1, exclude_layers=["table"]))
    tx, state = from_keras(optimizer, start())
    gs = [[1e-7 * g for g in each] for each in gradients(2)]
    got, _ = go_on(tx, state, start(), gs)
    for mine, theirs in zip(got, train(optimizer, variables, gs), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 2])
def test_an_average_begins_as_the_parameters_after_the_first_window(window):
    optimizer = KO.SGD(0.1, use_ema=True, ema_momentum=0.5, gradient_accumulation_steps=window)
    optimizer, variables = built(optimizer)
    tx, state = from_keras(optimizer, start())
    gs = gradients(5)
    _, state = go_on(tx, state, start(), gs)
    train(optimizer, variables, gs)
    want = [v for v in optimizer.variables if v.name.endswith("average")]
    for mine, theirs in zip(gradtx.tree.get(state, "average"), want, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_variables_excluded_from_weight_decay():
    optimizer = KO.AdamW(0.01, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    with pytest.raises(ValueError, match="pass params"):
        from_keras(optimizer)
    optimizer, variables = built(optimizer)
    gs = gradients(2)
    params = train(optimizer, variables, gs[:1])
    tx, state = from_keras(optimizer, params)
    assert "['0', '1']" in repr(tx)
    got, _ = go_on(tx, state, params, gs[1:])
    for mine, theirs in zip(got, train(optimizer, variables, gs[1:]), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


@pytest.mark.slow
def test_variables_excluded_from_the_weight_decay_of_muon():
    optimizer = KO.Muon(0.1, weight_decay=0.5, adam_weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["table", "bias"])
    optimizer, variables = built(optimizer)
    gs = gradients(3)
    params = train(optimizer, variables, gs[:1])
    tx, state = from_keras(optimizer, params)
    got, _ = go_on(tx, state, params, gs[1:])
    for mine, theirs in zip(got, train(optimizer, variables, gs[1:]), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=2e-6)


CONSTRAINTS = {
    "max": lambda: keras.constraints.MaxNorm(0.5),
    "min max": lambda: keras.constraints.MinMaxNorm(0.5, 0.8, rate=0.25, axis=[0]),
    "non-negative": lambda: keras.constraints.NonNeg(),
    "unit": lambda: keras.constraints.UnitNorm(axis=-1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONSTRAINTS)
@pytest.mark.parametrize("average", [False, True])
def test_constraints_go_on(name, average):
    options = (
        {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2} if average else {}
    )
    optimizer, variables = built(KO.SGD(0.1, momentum=0.9, **options), CONSTRAINTS[name]())
    gs = gradients(6)
    params = train(optimizer, variables, gs[:3])
    tx, state = from_keras(optimizer, params)
    assert gradtx.from_config(json.loads(json.dumps(gradtx.to_config(tx)))) == tx
    got, _ = go_on(tx, state, params, gs[3:])
    for mine, theirs in zip(got, train(optimizer, variables, gs[3:]), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=2e-6)


def test_a_constraint_of_your_own_is_refused():
    class MaxNorm(keras.constraints.Constraint):
        def __call__(self, w):
            return 2 * w

    optimizer, _ = built(KO.SGD(0.1), MaxNorm())
    with pytest.raises(
        ValueError, match="the constraint MaxNorm of .* is not known; there are Max"
    ):
        from_keras(optimizer, start())


@pytest.mark.slow
def test_the_paths_of_variables_tell_which_is_which():
    """Two leaves of one shape, which JAX orders differently from Keras."""
    dense = keras.layers.Dense(2, name="dense")
    last = keras.layers.Dense(2, name="a_dense")
    model = keras.Sequential([keras.layers.Input((2,)), dense, last], name="sequential")
    optimizer = KO.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)
    for i, v in enumerate(optimizer.variables[2:]):
        v.assign(np.full(v.shape, float(i)))
    params = {
        layer.name: {"kernel": layer.kernel.numpy(), "bias": layer.bias.numpy()}
        for layer in (dense, last)
    }
    _, state = from_keras(optimizer, params)
    held = {k: float(np.mean(gradtx.get_slot(state, "trace", k))) for k in PATHS}
    assert held == dict(zip(PATHS, range(4), strict=True))
    with pytest.raises(ValueError, match=r"parameter there \(sequential/dense"):
        from_keras(optimizer, {str(i): v.numpy() for i, v in enumerate(model.trainable_variables)})
    saved = [v.numpy() for v in optimizer.variables]
    with pytest.raises(ValueError, match="nothing says which"):
        from_keras(KO.serialize(optimizer), params, saved)
    assert from_keras(KO.serialize(optimizer), params)  # a new state has nothing to mistake


PATHS = ["dense/kernel", "dense/bias", "a_dense/kernel", "a_dense/bias"]


@pytest.mark.slow
@pytest.mark.parametrize("average", [{}, {"use_ema": True}, {"use_ema": True, "every": 2}])
def test_a_gradient_of_none(average):
    """The parameter, its slots and its constraint are left alone, and its average moves."""
    every = {"ema_overwrite_frequency": 2} if "every" in average else {}
    given = {k: v for k, v in average.items() if k == "use_ema"} | every
    constraint = None if every else keras.constraints.NonNeg()
    optimizer, variables = built(
        KO.Adam(0.1, weight_decay=0.1, ema_momentum=0.9, **given), constraint
    )
    gs = gradients(5)
    params = train(optimizer, variables, gs[:1])
    variables[0].assign(params[0] - 1.0)  # outside of its set
    params[0] = params[0] - 1.0
    tx, state = from_keras(optimizer, params)
    if average:
        with pytest.raises(ValueError, match="average at '0' moves without a gradient"):
            gradtx.apply_gradients(tx, [None, *gs[1][1:]], params, state)
    for g in gs[1:3]:
        without = [None, *g[1:]]
        updates, state = tx.update(without, state, params)
        params = gradtx.apply_updates(params, updates)
        with pytest.warns(UserWarning, match="Gradients do not exist"):
            optimizer.apply([None if g is None else jnp.asarray(g) for g in without])
        for mine, theirs in zip(params, variables, strict=True):
            np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-5, atol=2e-6)
    if average:
        theirs = [v.numpy() for v in optimizer._model_variables_moving_average]
        for mine, their in zip(gradtx.get_slot(state, "average"), theirs, strict=True):
            np.testing.assert_allclose(mine, their, rtol=1e-5, atol=2e-6)
    got, _ = go_on(tx, state, params, gs[3:])
    for mine, theirs in zip(got, train(optimizer, variables, gs[3:]), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=2e-6)


@pytest.mark.slow
def test_one_optimizer_under_several_patterns():
    shared = KO.SGD(0.1, momentum=0.9)
    routes = KO.OptimizerMap(KO.Adam(0.01), {"ker.*": shared, "bias": shared})
    optimizer, variables = built(KO.MultiOptimizer(routes))
    gs = gradients(5)
    params = named(train(optimizer, variables, gs[:3]))
    tx, state = from_keras(optimizer, params, order=list(SHAPES))
    assert set(state.inner_states) == {"ker.*", "default"}
    got, _ = go_on(tx, state, params, [named(g) for g in gs[3:]])
    for key, theirs in named(train(optimizer, variables, gs[3:])).items():
        np.testing.assert_allclose(got[key], theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_learning_rate_that_is_a_function_is_asked_at_each_step():
    rates = [0.25]

    def rate():
        return rates[0]

    optimizer, variables = built(KO.SGD(rate, momentum=0.9, weight_decay=0.5))
    gs = gradients(3)
    params = train(optimizer, variables, gs[:1])
    tx, state = from_keras(optimizer, params)
    for rates[0], g in zip((0.5, 0.125), gs[1:], strict=True):
        params, state = gradtx.apply_gradients(tx, g, params, state)
        for mine, theirs in zip(params, train(optimizer, variables, [g]), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="the schedule 'function' is not known"):
        from_keras(KO.serialize(optimizer))


def test_the_learning_rate_in_force_is_taken():
    optimizer, _ = built(KO.SGD(0.5))
    config = KO.serialize(optimizer)
    optimizer.learning_rate = 0.125
    tx, _ = from_keras(config, start(), [v.numpy() for v in optimizer.variables])
    assert gradtx.hyperparams(tx)["learning_rate"] == 0.125


def config(name="SGD", **changes):
    arguments = [KO.SGD(0.1)] if name == "LossScaleOptimizer" else []
    made = getattr(KO, name)(*arguments).get_config()
    return {"class_name": name, "config": {**made, **changes}}


def without(key, name="SGD"):
    made = config(name)
    del made["config"][key]
    return made


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: None, TypeError, "an optimizer or its configuration"),
        (dict, ValueError, "class_name"),
        (
            lambda: {"class_name": "Adamm", "config": {}},
            ValueError,
            "'Adamm' is not known; there are Ada",
        ),
        (lambda: {"class_name": 3, "config": {}}, TypeError, "class_name must be a string"),
        (lambda: {"class_name": "SGD", "config": []}, TypeError, "must be a dict"),
        (lambda: {"class_name": "SGD", "config": {}}, ValueError, "'learning_rate' is missing"),
        (lambda: without("momentum"), ValueError, "'momentum' is missing"),
        (lambda: without("weight_decay", "AdamW"), ValueError, "'weight_decay' is missing"),
        (lambda: config(momentumm=0.9), ValueError, "unknown options 'momentumm'"),
        (lambda: config(momentum="0.9"), TypeError, "momentum must be a number, not str '0.9'"),
        (lambda: config(nesterov=1), TypeError, "nesterov must be true or false"),
        (lambda: config(learning_rate=float("nan")), ValueError, "learning_rate must be a finite"),
        (lambda: config(learning_rate=10**400), ValueError, "learning_rate must be a finite"),
        (
            lambda: config(learning_rate={"class_name": "Noam"}),
            ValueError,
            "schedule 'Noam' is not known",
        ),
        (lambda: config("Adam", beta_1=1.0), ValueError, "b1 must be a number in"),
        (lambda: config(clipnorm=1.0, clipvalue=1.0), ValueError, "at most one"),
        (lambda: config(gradient_accumulation_steps=1), ValueError, "at least 2"),
        (lambda: config(gradient_accumulation_steps=2.5), TypeError, "an integer"),
        (lambda: config(loss_scale_factor=0), ValueError, "must not be 0"),
        (lambda: config("Muon"), ValueError, "matrices depends on params"),
    ],
)
def test_bad_configurations(make, error, says):
    with pytest.raises(error, match=says):
        from_keras(make())


def test_a_muon_that_does_not_say_what_later_ones_do():
    """Those of Keras 3.10 have other factors of shapes, and no decay of their own for Adam."""
    params = {"w": jnp.ones((2, 2))}
    for key in ("rms_rate", "adam_weight_decay"):
        with pytest.raises(ValueError, match=f"the option '{key}' is missing"):
            from_keras(without(key, "Muon"), params)


def test_a_loss_scale_with_options_of_the_base_class():
    """Keras reads such a file of an older version, where they have their defaults."""
    made = config("LossScaleOptimizer", inner_optimizer=config())
    old = {"weight_decay": None, "clipnorm": None, "use_ema": False, "ema_momentum": 0.99}
    longer = {**made, "config": {**made["config"], **old}}
    assert from_keras(longer) == from_keras(made)
    with pytest.raises(ValueError, match="unknown options 'clipnorm'"):
        from_keras({**made, "config": {**made["config"], "clipnorm": 1.0}})


def test_deep_values_are_an_error():
    deep = []
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(ValueError, match="too deeply"):
        from_keras({"class_name": "SGD", "config": {"learning_rate": deep}})


def test_bad_variables():
    optimizer, _ = built(KO.SGD(0.1, momentum=0.9))
    good = [np.array(v.numpy()) for v in optimizer.variables]
    for values, error, says in (
        (good[:-1], ValueError, "there are 4 variables, and more are needed: .* trace of bias"),
        ([*good, good[0]], ValueError, "there are 6 variables, and 5 are needed"),
        ([*good[:2], good[3], good[2], good[4]], ValueError, r"must have the shape \(4, 3\)"),
        ([good[1], *good[1:]], TypeError, "must be integer"),
        ([*good[:2], good[2].astype(int), *good[3:]], TypeError, "must be float"),
        ([*good[:4], "text"], TypeError, "not an array of numbers"),
        ({"1": good[0]}, ValueError, "'0' is missing"),
    ):
        with pytest.raises(error, match=says):
            from_keras(optimizer, start(), values)
    with pytest.raises(ValueError, match="pass params"):
        from_keras(optimizer, None, good)
    with pytest.raises(ValueError, match="there are 3 trained variables"):
        from_keras(optimizer, start()[:2])
    with pytest.raises(ValueError, match="give their order"):
        from_keras(optimizer, start()[::-1])
    with pytest.raises(ValueError, match="every leaf once"):
        from_keras(optimizer, named(start()), order=["kernel", "bias"])


NAMES = ["class_name", "config", "name", "learning_rate", "momentum", "beta_1", "epsilon"]
NAMES += ["clipnorm", "use_ema", "ema_momentum", "weight_decay", "gradient_accumulation_steps"]
NAMES += [
    "inner_optimizer",
    "optimizer_map",
    "default_optimizer",
    "initial_scale",
    "exclude_layers",
]
NAMES += ["boundaries", "values", "decay_steps", "alpha", "initial_learning_rate"]
CLASSES = ["SGD", "Adam", "Muon", "LossScaleOptimizer", "MultiOptimizer", "OptimizerMap"]
CLASSES += ["CosineDecay", "PiecewiseConstantDecay", "os.system", "function", "__lambda__"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), inner, max_size=4)
        | st.fixed_dictionaries(
            {
                "class_name": st.sampled_from(CLASSES),
                "config": st.dictionaries(st.sampled_from(NAMES), inner, max_size=6),
            }
        )
    ),
    max_leaves=12,
)


@functools.cache
def templates():
    names = ("SGD", "Adam", "RMSprop", "Ftrl", "Adafactor", "Muon")
    plain = [{"class_name": c, "config": getattr(KO, c)().get_config()} for c in names]
    scheduled = [KO.serialize(KO.SGD(make())) for make in SCHEDULES.values()]
    return [*plain, *scheduled, *(KO.serialize(OPTIMIZERS[n]()) for n in ("loss scale", "several"))]


def attempt(source):
    try:
        made = from_keras(source, [np.zeros((2, 3), np.float32)])
    except (ValueError, TypeError) as error:
        assert str(error)
    else:
        assert isinstance(made[0], gradtx.GradientTransformation)


@pytest.mark.slow
@hypothesis.given(JSON)
@hypothesis.settings(max_examples=200, deadline=None)
def test_hostile_configurations_give_clear_errors(value):
    attempt(value)


@pytest.mark.slow
@hypothesis.given(st.data())
@hypothesis.settings(max_examples=200, deadline=None)
def test_damaged_configurations_give_clear_errors(data):
    """A good configuration with one value, somewhere in it, replaced."""
    made = json.loads(json.dumps(data.draw(st.sampled_from(templates()))))
    places = [
        (node, key)
        for node in walk(made)
        for key in (node if isinstance(node, dict) else range(len(node)))
    ]
    node, key = data.draw(st.sampled_from(places))
    node[key] = data.draw(JSON)
    attempt(made)


def walk(node):
    yield node
    for value in node.values() if isinstance(node, dict) else node:
        if isinstance(value, dict | list) and value:
            yield from walk(value)
