"""Transformations under Keras's `fit`, beside Keras's own optimizers and loops of our own."""

# Sees mutants of: keras_base, keras_steps.

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.interop import from_keras, keras_objects, keras_optimizer
from tests import catalogue
from tests.catalogue import CATALOGUE, has_an_optimizer, optimizers
from tests.later import later
from tests.processes import environment
from tests.quick import quick

os.environ["KERAS_BACKEND"] = "jax"
keras, KO = later("keras"), later("keras", "keras.optimizers")
# Keras's variables do not know NumPy's newest protocol. One process imports Keras.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.xdist_group("keras"),
]
NAMES = sorted(CATALOGUE)
# Every optimizer, and a third of the links and wrappers, whose states are of the same kinds.
ESTIMATED = "estimated_gradients"  # is refused, with its own test
LINKS = (n for n in NAMES[::3] if n != ESTIMATED and not has_an_optimizer(n))
TRAINED = sorted({*optimizers(), "partition", *LINKS})
CUSTOM = {f.__name__: f for f in vars(catalogue).values() if callable(f) and hasattr(f, "__name__")}
# What asks for more than gradients.
EXAMPLES = [name for name in NAMES if CATALOGUE[name].examples]
ASKING = [
    "adahessian",
    "bfgs",
    "extragradient",
    "hutchinson_estimator_diag_hessian",
    "lbfgs",
    "lbfgsb",
    "momo",
    "momo_adam",
    "polyak_sgd",
    "reduce_on_plateau",
    "scale_by_adahessian",
    "scale_by_backtracking_linesearch",
    "scale_by_polyak",
    "scale_by_sophia",
    "scale_by_zoom_linesearch",
    "sophia",
    "ssbroyden",
]
X = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
Y = (X @ np.float32([[1.0], [-2.0], [0.5]]) > 0).astype(np.float32)


def telling(of_examples):
    class Telling(keras.Sequential):
        """A model whose step passes on the loss, and gradients of examples if these are wanted."""

        def train_step(self, state, data):
            trainable, fixed, slots, metrics = state
            x, y, _ = keras.utils.unpack_x_y_sample_weight(data)

            def loss(values, x, y):
                return jnp.mean((self.stateless_call(values, fixed, x)[0] - y) ** 2)

            def value_fn(by_path):
                return loss(list(by_path.values()), x, y)

            value, grads = jax.value_and_grad(loss)(trainable, x, y)
            if of_examples:
                each = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))
                grads = each(trainable, x[:, None], y[:, None])
            paths = [v.path for v in self.trainable_variables]
            by_path = OrderedDict(zip(paths, grads, strict=True))
            more = {"value": value, "grad": by_path, "value_fn": value_fn}
            trainable, slots = self.optimizer.stateless_apply(slots, grads, trainable, **more)
            return {"loss": value}, (trainable, fixed, slots, metrics)

    return Telling


def model(optimizer, kind=None, dtype=None, **options):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(4, "tanh", dtype=dtype), keras.layers.Dense(1, dtype=dtype)]
    made = (kind or keras.Sequential)([keras.Input((3,)), *layers])
    made.compile(optimizer, loss="mse", **options)
    return made


def fit(made, epochs, start=0, **options):
    """The losses of epochs of three batches."""
    given = {"batch_size": 8, "shuffle": False, "verbose": 0, **options}
    return made.fit(X, Y, epochs=epochs, initial_epoch=start, **given).history["loss"]


def everything(made):
    return [np.asarray(v.value) for v in (*made.trainable_variables, *made.optimizer.variables)]


def assert_same_bits(a, b):
    for x, y in zip(everything(a), everything(b), strict=True):
        assert x.dtype == y.dtype
        assert x.tobytes() == y.tobytes()


def assert_close(a, b, tolerance=1e-6):
    for x, y in zip(a.trainable_variables, b.trainable_variables, strict=True):
        np.testing.assert_allclose(x.value, y.value, rtol=tolerance, atol=tolerance)


def ours(name):
    tx = CATALOGUE[name].make()
    if name.startswith("scale_by_param_block"):  # which climb by steps as large as the parameters
        tx = gradtx.chain(tx, gradtx.scale(-0.1))
    return keras_optimizer(tx)


def estimating():
    class Estimating(keras.Sequential):
        """A model whose gradients are estimated."""

        def train_step(self, state, data):
            trainable, fixed, slots, metrics = state
            x, y, _ = keras.utils.unpack_x_y_sample_weight(data)

            def loss(values):
                prediction = self.stateless_call(values, fixed, x)[0]
                return jnp.mean((prediction - y) ** 2), jnp.mean(prediction)

            (value, _), trainable, slots = self.optimizer.stateless_minimize(
                loss, slots, trainable, has_aux=True
            )
            return {"loss": value}, (trainable, fixed, slots, metrics)

    return Estimating


@pytest.mark.slow
@pytest.mark.parametrize("scaled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_estimated_gradients_have_the_steps_of_minimize(scaled):
    tx = gradtx.adam(0.1)
    made = model(
        keras_optimizer(tx, gradients=gradtx.spsa(1e-2), loss_scale_factor=8.0 if scaled else None),
        estimating(),
    )
    optimizer = made.optimizer
    optimizer.build(made.trainable_variables)
    params = OrderedDict(optimizer.params)
    fixed = [v.value for v in made.non_trainable_variables]

    def loss(values, x, y):
        return jnp.mean((made.stateless_call(list(values.values()), fixed, x)[0] - y) ** 2)

    step = gradtx.make_step(loss, tx, gradients=gradtx.spsa(1e-2), donate=False)
    params = jax.tree.map(jnp.copy, params)
    state = step.init(params)
    for start in range(0, len(X), 8):
        params, state, _ = step(params, state, X[start : start + 8], Y[start : start + 8])
    fit(made, 1)
    for path, value in params.items():
        np.testing.assert_allclose(optimizer.params[path], value, rtol=1e-4, atol=1e-5)
    keys = [jax.random.key_data(s.gradient_key) for s in (optimizer.state, state)]
    np.testing.assert_array_equal(*keys)
    assert KO.deserialize(KO.serialize(optimizer)).tx == optimizer.tx


@pytest.mark.slow
def test_gradients_of_a_backward_pass_are_refused_where_they_are_estimated():
    with pytest.raises(ValueError, match="keras_optimizer: gradients are estimated"):
        fit(model(keras_optimizer(gradtx.sgd(0.1), gradients=gradtx.spsa())), 1)
    with pytest.raises(ValueError, match="pass gradients=gradtx.spsa"):
        fit(model(keras_optimizer(gradtx.sgd(0.1)), estimating()), 1)
    with pytest.raises(TypeError, match="keras_optimizer: gradients must be an estimator"):
        keras_optimizer(gradtx.sgd(0.1), gradients=gradtx.spsa)


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(TRAINED, "adam", "partition"))
def test_the_catalogue_trains_and_continues_from_weights(name, tmp_path):
    kind = telling(name in EXAMPLES) if name in ASKING + EXAMPLES else keras.Sequential
    path = tmp_path / "run.weights.h5"
    first = model(ours(name), kind)
    losses = fit(first, 1)
    first.save_weights(path)
    losses += fit(first, 3, start=1)
    assert len(losses) == 3
    assert np.all(np.isfinite(losses))
    again = model(ours(name), kind)
    again.optimizer.build(again.trainable_variables)
    again.load_weights(path)
    fit(again, 3, start=1)
    assert_same_bits(first, again)
    config = json.loads(json.dumps(KO.serialize(first.optimizer)))
    restored = KO.deserialize(config, custom_objects=CUSTOM)
    assert restored.tx == first.optimizer.tx
    assert restored.get_config() == first.optimizer.get_config()


@pytest.mark.parametrize("name", quick(ASKING + EXAMPLES, "polyak_sgd"))
def test_what_asks_for_more_than_gradients_says_how(name):
    with pytest.raises(ValueError, match="loss|metric|examples") as caught:
        fit(model(ours(name)), 1)
    assert "stateless_apply" in "".join(caught.value.__notes__)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("theirs", "tx"),
    [
        (lambda: KO.Adam(0.01), gradtx.adam(0.01, eps=1e-7, epsilon_hat=True)),
        (lambda: KO.SGD(0.1, momentum=0.9), gradtx.sgd(0.1, momentum=0.9)),
        (lambda: KO.Lion(0.001), gradtx.lion(0.001, b1=0.9, b2=0.99, weight_decay=0.0)),
        (
            lambda: KO.Adam(0.01, gradient_accumulation_steps=2, global_clipnorm=0.1),
            gradtx.accumulate(
                gradtx.chain(
                    gradtx.clip_by_global_norm(0.1), gradtx.adam(0.01, eps=1e-7, epsilon_hat=True)
                ),
                every=2,
            ),
        ),
    ],
    ids=["adam", "sgd", "lion", "accumulated"],
)
def test_fit_ends_where_keras_does(theirs, tx):
    a, b = model(theirs()), model(keras_optimizer(tx))
    np.testing.assert_allclose(fit(a, 4), fit(b, 4), rtol=1e-5)
    assert_close(a, b, 1e-5)


@pytest.mark.slow
def test_a_model_saved_whole_goes_on(tmp_path):
    tx = gradtx.chain(gradtx.add_noise(0.1, 0.5, 3), gradtx.adamw(0.01, mask=catalogue.is_matrix))
    first = model(keras_optimizer(tx))
    fit(first, 2)
    first.save(tmp_path / "run.keras")
    again = keras.models.load_model(tmp_path / "run.keras", {**keras_objects(), **CUSTOM})
    assert again.optimizer.tx == tx
    fit(first, 4, start=2)
    fit(again, 4, start=2)
    assert_same_bits(first, again)
    with pytest.raises(TypeError, match="made by hand"):
        model(keras_optimizer(gradtx.GradientTransformation(*gradtx.sgd(0.1)))).save(
            tmp_path / "by_hand.keras"
        )


@pytest.mark.slow
def test_slots_are_in_the_order_of_the_model(tmp_path):
    """A model made again has layers of other names, in which `dense_10` would be sorted first."""

    def ten(start):
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(3, name=f"dense_{start + i}") for i in range(4)]
        made = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1, name="last")])
        made.compile(keras_optimizer(gradtx.adam(0.01)), loss="mse")
        made.optimizer.build(made.trainable_variables)
        return made

    first, again = ten(0), ten(8)
    fit(first, 2)
    first.save_weights(tmp_path / "a.weights.h5")
    again.load_weights(tmp_path / "a.weights.h5")
    fit(first, 4, start=2)
    fit(again, 4, start=2)
    assert_same_bits(first, again)


KILLED = """
import os, signal
os.environ["KERAS_BACKEND"] = "jax"
import keras
from tests.interop import test_keras_optimizer as tests

class Kill(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if self.epoch == 2 and batch == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

tests.killed({folder!r}, [Kill()])
"""


def killed(folder, callbacks=()):
    """A run that backs itself up, with a rate of its own in each epoch."""
    made = model(keras_optimizer(gradtx.chain(gradtx.add_noise(0.1, 0.5, 3), gradtx.lamb(0.1))))
    rate = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.5 * rate)
    backup = keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
    fit(made, 4, callbacks=[rate, backup, *callbacks])
    return made


@pytest.mark.slow
def test_a_killed_fit_goes_on_bit_for_bit(tmp_path):
    whole = killed(str(tmp_path / "whole"))
    folder = str(tmp_path / "killed")
    program = KILLED.format(folder=folder)
    flags = {"XLA_FLAGS": os.environ["XLA_FLAGS"]}
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, env=environment(**flags), capture_output=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-3000:]
    assert_same_bits(whole, killed(folder))


def within(rate):
    """SGD with the rate inside of the momentum, as Keras has it."""
    return gradtx.chain(gradtx.scale_by_learning_rate(rate), gradtx.trace(0.9))


@pytest.mark.slow
@pytest.mark.parametrize("compiled", quick([True, False], True))
def test_callbacks_set_the_rate(compiled):
    traced = []

    def seen(updates, params):
        traced.append(len(traced))
        return updates

    tx = gradtx.chain(gradtx.stateless(seen), within(0.5))
    a = model(KO.SGD(0.5, momentum=0.9), jit_compile=compiled)
    b = model(keras_optimizer(tx), jit_compile=compiled)
    for made in (a, b):
        rate = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.5 * rate)
        plateau = keras.callbacks.ReduceLROnPlateau("loss", 0.1, patience=1, min_delta=10.0)
        history = made.fit(
            X, Y, 8, epochs=4, verbose=0, shuffle=False, callbacks=[rate, plateau]
        ).history
        np.testing.assert_allclose(history["learning_rate"], [0.25, 0.125, 0.00625, 0.0003125])
    assert_close(a, b)
    assert len(traced) == 1 or not compiled


def test_rates_keep_their_ratios():
    rates = {"a": gradtx.sgd(0.0), "b": gradtx.sgd(0.1), "c": gradtx.adam(0.3)}
    tx = gradtx.partition(rates, [("*/bias", "a"), ("*dense*/kernel", "b"), ("*", "c")])
    optimizer = keras_optimizer(tx)
    assert float(optimizer.learning_rate) == pytest.approx(0.1)
    optimizer.learning_rate = 0.2
    paths = ("dense/bias", "dense/kernel", "last/kernel")
    variables = [keras.Variable(np.zeros(2, np.float32)) for _ in paths]
    for v, path in zip(variables, paths, strict=True):
        v._path = path
    optimizer.apply([np.ones(2, np.float32)] * 3, variables)
    moved = [float(v.value[0]) for v in variables]
    np.testing.assert_allclose(moved, [0.0, -0.2, -0.6], rtol=1e-6)
    both = keras_optimizer(gradtx.muon(0.02, adam_learning_rate=0.01))
    assert both._ratios == [1.0, 0.5]


@pytest.mark.slow
def test_schedules_of_keras_and_ours():
    schedule = keras.optimizers.schedules.PolynomialDecay(0.5, 8, 0.1, power=2.0)
    a = model(KO.SGD(schedule, momentum=0.9))
    b = model(keras_optimizer(within(0.0), schedule))
    c = model(keras_optimizer(within(gradtx.polynomial_schedule(0.5, 0.1, 2.0, 8))))
    for made in (a, b, c):
        fit(made, 3)
    assert_close(a, b)
    assert_close(a, c)
    for made in (b, c):
        np.testing.assert_allclose(made.optimizer.learning_rate, a.optimizer.learning_rate, 1e-6)
    restored = KO.deserialize(KO.serialize(b.optimizer))
    assert restored.get_config() == b.optimizer.get_config()
    by_function = keras_optimizer(gradtx.sgd(0.1), lambda: 0.25)
    assert float(by_function.learning_rate) == 0.25


def moved(optimizer, steps, rates=None):
    """What an optimizer makes of ones in steps of gradients, with rates set after some of them."""
    optimizer.build([v := keras.Variable(np.ones(3, np.float32), name="v")])
    rng = np.random.default_rng(0)
    for step in range(steps):
        optimizer.apply([rng.normal(size=3).astype(np.float32)])
        if rates and step in rates:
            optimizer.learning_rate = rates[step]
    return np.asarray(v.value)


def test_the_rate_in_force_is_shown():
    optimizer = keras_optimizer(gradtx.adam(0.1))
    assert optimizer.tx == gradtx.adam(0.1)
    moved(optimizer, 2, {0: 0.5})
    assert gradtx.hyperparams(optimizer.tx, optimizer.state)["learning_rate"] == 0.5
    assert optimizer.get_config()["tx"] == gradtx.to_config(gradtx.adam(0.1))
    both = keras_optimizer(gradtx.muon(0.02, adam_learning_rate=0.01), 0.5)
    found = gradtx.hyperparams(both.tx)
    assert (found["learning_rate"], found["adam_learning_rate"]) == (0.5, 0.25)


@pytest.mark.slow
def test_accumulation_counts_as_keras_does():
    """Windows; of Keras's schedule, micro-batches."""
    decay = keras.optimizers.schedules.PolynomialDecay(0.5, 24, 0.1)
    there = KO.SGD(decay, gradient_accumulation_steps=4)
    ours = gradtx.stretch_schedule(gradtx.linear_schedule(0.5, 0.1, 24), stride=4, offset=3)
    here = keras_optimizer(gradtx.accumulate(gradtx.sgd(0.0), 4), decay)
    inside = keras_optimizer(gradtx.chain(gradtx.accumulate(gradtx.sgd(ours), 4)))
    want = moved(there, 22)
    for each in (here, inside):
        np.testing.assert_allclose(moved(each, 22), want, rtol=1e-5)
        assert int(each.iterations) == int(there.iterations) == 5
    params = {v.path: v.value for v in there._trainable_variables}
    tx, state = from_keras(there, params)
    again = keras_optimizer(tx, state=state)
    again.build([keras.Variable(want, name="v")])
    assert int(again._iterations) == 22
    assert int(again.iterations) == 5


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 3])
def test_the_average_is_that_of_use_ema(window):
    more = {} if window == 1 else {"gradient_accumulation_steps": window}
    there = KO.SGD(0.1, use_ema=True, ema_momentum=0.9, **more)
    average = gradtx.ema_params(0.9, start=window, window=window)
    here = keras_optimizer(gradtx.chain(gradtx.accumulate(gradtx.sgd(0.1), window), average))
    np.testing.assert_allclose(moved(here, 8), moved(there, 8), rtol=1e-6)
    got = gradtx.eval_params(here.tx, here.state, here.params)["v"]
    np.testing.assert_allclose(got, there._model_variables_moving_average[0].value, rtol=1e-6)


def test_momentum_with_the_rate_inside_is_that_of_keras():
    """After a callback has lowered the rate, Keras's velocity still has the old one."""
    there = moved(KO.SGD(0.1, momentum=0.9), 12, {5: 0.01})
    np.testing.assert_allclose(moved(keras_optimizer(within(0.1)), 12, {5: 0.01}), there, rtol=1e-6)
    other = moved(keras_optimizer(gradtx.sgd(0.1, momentum=0.9)), 12, {5: 0.01})
    assert np.abs(other - there).min() > 0.1


@pytest.mark.slow
def test_rates_that_cannot_be_set():
    scheduled = keras_optimizer(gradtx.chain(gradtx.sgd(gradtx.linear_schedule(0.1, 0.0, 10))))
    none = keras_optimizer(gradtx.chain(gradtx.scale_by_adam(), gradtx.scale(-0.1)))
    static = keras_optimizer(gradtx.static(gradtx.sgd(0.1)))
    assert float(scheduled.learning_rate) == pytest.approx(0.1)
    assert float(none.learning_rate) == 1.0
    with pytest.raises(ValueError, match=r"0\.learning_rate is a schedule.*with a number"):
        scheduled.learning_rate = 0.1
    for each in (none, static):
        with pytest.raises(ValueError, match="no hyperparameter learning_rate.*scale_by_learning"):
            each.learning_rate = 0.1
    with pytest.raises(ValueError, match="cannot be set"):
        keras_optimizer(gradtx.scale_by_adam(), 0.1)
    plateau = keras.callbacks.ReduceLROnPlateau("loss", 0.1, patience=1, min_delta=10.0)
    with pytest.raises(ValueError, match="cannot be set"):
        fit(model(none), 4, callbacks=[plateau])


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy):
    a = model(KO.Adam(0.01, epsilon=1e-3), dtype=policy)
    b = model(keras_optimizer(gradtx.adam(0.01, eps=1e-3, epsilon_hat=True)), dtype=policy)
    for made in (a, b):
        losses = fit(made, 6)
        assert losses[-1] < losses[0]
    assert_close(a, b, 1e-4)


@pytest.mark.slow
def test_parameters_in_bfloat16():
    """In which Keras's own Adam takes no step, since 0.999 is 1."""
    there = model(KO.Adam(0.05), dtype="bfloat16")
    assert len(set(fit(there, 3))) == 1
    here = model(keras_optimizer(gradtx.adam(0.05)), dtype="bfloat16")
    losses = fit(here, 6)
    assert losses[-1] < 0.5 * losses[0]
    assert {str(v.value.dtype) for v in here.trainable_variables} == {"bfloat16"}


@pytest.mark.slow
def test_loss_scales(tmp_path):
    def scaled(optimizer):
        return model(KO.LossScaleOptimizer(optimizer, initial_scale=2.0**60), dtype="mixed_float16")

    a = scaled(KO.Adam(0.01))
    b = scaled(keras_optimizer(gradtx.adam(0.01, eps=1e-7, epsilon_hat=True)))
    start = [np.asarray(v.value) for v in b.trainable_variables]
    fit(b, 1)
    assert float(b.optimizer.dynamic_scale.value) == 2.0**57
    for before, v in zip(start, b.trainable_variables, strict=True):
        np.testing.assert_array_equal(before, v.value)
    assert int(b.optimizer.inner_optimizer.state[0].count) == 0
    fit(a, 30)
    fit(b, 30, start=1)
    assert int(b.optimizer.inner_optimizer.state[0].count) > 3
    assert int(a.optimizer.inner_optimizer.iterations) == int(
        b.optimizer.inner_optimizer.iterations
    )
    assert_close(a, b, 1e-4)
    b.optimizer.learning_rate = 0.5
    b.save(tmp_path / "scaled.keras")
    again = keras.models.load_model(tmp_path / "scaled.keras", keras_objects())
    assert float(again.optimizer.learning_rate) == 0.5
    fit(b, 32, start=30)
    fit(again, 32, start=30)
    assert_same_bits(b, again)
    fixed = model(keras_optimizer(gradtx.sgd(0.1), loss_scale_factor=1024.0))
    plain = model(keras_optimizer(gradtx.sgd(0.1)))
    fit(fixed, 2)
    fit(plain, 2)
    assert_close(fixed, plain)


@pytest.mark.slow
def test_a_scale_that_the_transformation_finds():
    ours = model(keras_optimizer(gradtx.dynamic_loss_scale(gradtx.sgd(0.1), period=3)))
    plain = model(keras_optimizer(gradtx.sgd(0.1)))
    fit(ours, 5)
    fit(plain, 5)
    assert_close(ours, plain)
    assert float(gradtx.loss_scale(ours.optimizer.state)) > 2.0**15
    with pytest.raises(ValueError, match="LossScaleOptimizer around it: leave one out"):
        KO.LossScaleOptimizer(keras_optimizer(gradtx.dynamic_loss_scale(gradtx.sgd(0.1))))


def distributions():
    devices = keras.distribution.list_devices()[:8]
    mesh = keras.distribution.DeviceMesh((2, 4), ("batch", "model"), devices)
    layout = keras.distribution.LayoutMap(mesh)
    layout[".*dense[^/]*/kernel"] = (None, "model")
    layout[".*dense[^/]*/bias"] = ("model",)
    return {
        "data": keras.distribution.DataParallel(devices=devices),
        "model": keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", quick(["data", "model"], "model"))
def test_distributions(kind, tmp_path):
    distribution = distributions()[kind]
    tx = gradtx.chain(gradtx.clip_by_global_norm(0.5), gradtx.adamw(0.01), gradtx.ema_params(0.9))

    def wide(optimizer):
        keras.utils.set_random_seed(0)
        made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8), keras.layers.Dense(4)])
        made.compile(optimizer, loss="mse")
        return made

    alone = wide(keras_optimizer(tx))
    fit(alone, 3)
    with distribution.scope():
        made = wide(keras_optimizer(tx))
        fit(made, 1)
        made.save_weights(tmp_path / "run.weights.h5")
        fit(made, 3, start=1)
        kernel = made.trainable_variables[0]
        slot = gradtx.get_slot(made.optimizer.state, "mu", kernel.path)
        assert len(slot.sharding.device_set) == 8
        assert slot.sharding.is_equivalent_to(kernel.value.sharding, 2)
        assert slot.sharding.is_fully_replicated == (kind == "data")
        again = wide(keras_optimizer(tx))
        again.optimizer.build(again.trainable_variables)
        again.load_weights(tmp_path / "run.weights.h5")
        fit(again, 3, start=1)
        assert_same_bits(made, again)
    assert_close(alone, made, 1e-5)


@pytest.mark.slow
def test_batches_one_by_one_and_eager_steps():
    tx = gradtx.muon(0.02)
    whole, single = model(keras_optimizer(tx)), model(keras_optimizer(tx))
    eager = model(keras_optimizer(tx), run_eagerly=True)
    for made in (whole, eager):
        fit(made, 2)
    for _ in range(2):
        for at in range(0, 24, 8):
            single.train_on_batch(X[at : at + 8], Y[at : at + 8])
    assert_same_bits(whole, single)
    assert_close(whole, eager)


@pytest.mark.slow
def test_a_run_of_keras_goes_on_under_fit():
    there = model(KO.AdamW(0.01, weight_decay=0.1))
    fit(there, 2)
    here = model(KO.SGD())
    here.set_weights(there.get_weights())
    values = [jnp.array(v.value) for v in there.trainable_variables]
    paths = [v.path for v in here.trainable_variables]
    tx, state = from_keras(there.optimizer, dict(zip(paths, values, strict=True)), order=paths)
    here.compile(keras_optimizer(tx, state=state), loss="mse")
    np.testing.assert_allclose(fit(here, 6, start=2), fit(there, 6, start=2), rtol=1e-5)
    assert_close(here, there, 1e-5)
    assert int(here.optimizer.iterations) == int(there.optimizer.iterations) == 18
    wrong = keras_optimizer(gradtx.adam(0.1), state=gradtx.adam(0.1).init({"w": jnp.zeros(2)}))
    with pytest.raises(ValueError, match="nothing in the saved state fits this transformation"):
        fit(model(wrong), 1)


def named(*paths):
    """Variables of ones at these paths, as models have them."""
    variables = []
    for path in paths:
        *scopes, name = path.split("/")
        with contextlib.ExitStack() as stack:
            for scope in scopes:
                stack.enter_context(keras.name_scope(scope))
            variables.append(keras.Variable(np.ones(2, np.float32), name=name))
    assert [v.path for v in variables] == list(paths)
    return variables


@pytest.mark.parametrize(("there", "here"), [("net_7/", "net_8/"), ("net/", ""), ("", "net/")])
def test_a_state_continues_in_the_model_made_again_under_another_name(there, here):
    tx = gradtx.chain(gradtx.clip(1.0), gradtx.sgd(0.1, momentum=0.9))
    params = {f"{there}hidden/kernel": jnp.ones(2), f"{there}head/kernel": jnp.full(2, 2.0)}
    state = gradtx.set_slot(tx.init(params), "trace", params)
    optimizer = keras_optimizer(tx, state=state)
    optimizer.build(named(f"{here}hidden/kernel", f"{here}head/kernel"))
    trace = {path: float(x[0]) for path, x in gradtx.get_slot(optimizer.state, "trace").items()}
    assert trace == {f"{here}hidden/kernel": 1.0, f"{here}head/kernel": 2.0}


def test_a_state_of_other_variables_is_refused_by_their_paths():
    params = {"net/hidden/kernel": jnp.ones(2)}
    optimizer = keras_optimizer(gradtx.adam(0.1), state=gradtx.adam(0.1).init(params))
    with pytest.raises(ValueError, match="nothing in the saved state fits") as error:
        optimizer.build(named("net/dense_3/kernel"))
    (note,) = error.value.__notes__
    assert "slots are those of net/hidden/kernel, and the variables net/dense_3/kernel" in note
    assert "name" in note


def test_a_state_is_set():
    tx = gradtx.adam(0.1)
    optimizer = keras_optimizer(tx)
    optimizer.build(named("kernel"))
    state = gradtx.set_slot(tx.init(optimizer.params), "mu", jnp.full(2, 3.0), "kernel")
    state = (state[0]._replace(count=jnp.int32(5)), *state[1:])
    optimizer.state = state
    np.testing.assert_array_equal(gradtx.get_slot(optimizer.state, "mu", "kernel"), 3.0)
    assert int(optimizer.iterations) == 5
    with pytest.raises(ValueError, match="nothing in the saved state fits"):
        optimizer.state = tx.init({"other": jnp.zeros(3)})
    later = keras_optimizer(tx)
    later.state = state
    later.build(named("kernel"))
    np.testing.assert_array_equal(gradtx.get_slot(later.state, "mu", "kernel"), 3.0)


def test_the_model_ends_with_the_average():
    optimizer = keras_optimizer(gradtx.chain(gradtx.sgd(1.0), gradtx.ema_params(0.75, start=1)))
    with pytest.raises(ValueError, match="no average to assign"):
        optimizer.assign_eval_params()
    (v,) = named("kernel")
    optimizer.build([v])
    for _ in range(2):
        optimizer.apply([np.ones(2, np.float32)])
    np.testing.assert_allclose(v.value, -1.0)
    optimizer.assign_eval_params()
    np.testing.assert_allclose(v.value, 0.75 * 0.0 + 0.25 * -1.0)
    plain = keras_optimizer(gradtx.sgd(1.0))
    plain.build([v])
    with pytest.raises(ValueError, match="no average to assign"):
        plain.assign_eval_params()


def test_an_optimizer_prints_its_transformation():
    tx = gradtx.chain(gradtx.clip(1.0), gradtx.sgd(0.5))
    assert repr(keras_optimizer(tx)) == f"keras_optimizer({tx!r})"
    optimizer = keras_optimizer(tx)
    optimizer.learning_rate = 0.25
    assert "learning_rate=0.25" in str(optimizer)


@pytest.mark.slow
def test_the_state_is_read_as_elsewhere():
    tx = gradtx.chain(gradtx.sgd(0.1, momentum=0.9), gradtx.ema_params(0.5))
    optimizer = keras_optimizer(tx)
    assert optimizer.state is None
    made = model(optimizer)
    fit(made, 2)
    assert gradtx.slot_names(optimizer.state) == ["trace", "average"]
    assert int(gradtx.iterations(optimizer.state)) == int(optimizer.iterations) == 6
    average = gradtx.eval_params(optimizer.tx, optimizer.state, optimizer.params)
    assert list(average) == [v.path for v in made.trainable_variables]
    made.set_weights(list(average.values()))
    assert np.isfinite(made.evaluate(X, Y, verbose=0))


def test_variables_without_a_gradient_and_of_one_name():
    variables = [keras.Variable(np.ones(2, np.float32), name="v") for _ in range(3)]
    variables[2].overwrite_with_gradient = True
    optimizer = keras_optimizer(gradtx.adam(0.1))
    optimizer.build(variables)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply([None, np.ones(2, np.float32), np.full(2, 7.0, np.float32)])
    np.testing.assert_allclose([v.value[0] for v in variables], [1.0, 0.9, 7.0], rtol=1e-6)
    mu = gradtx.get_slot(optimizer.state, "mu")
    assert {path: float(slot[0]) for path, slot in mu.items()} == {
        "v": 0.0,
        "v:1": pytest.approx(0.1),
    }
    assert len(optimizer.variables) == 2 + 1 + 4


@pytest.mark.slow
def test_roles_are_those_of_all_variables_where_some_have_no_gradient():
    variables = []
    for name, shape in {"embed": (4, 4), "layers": (3, 4, 4)}.items():
        with keras.name_scope(name):
            variables.append(keras.Variable(np.ones(shape, np.float32), name="kernel"))
    roles = gradtx.ByRole(stacked=(("layers", 1),))
    optimizer = keras_optimizer(gradtx.muon(0.1, muon_weight_dimension_numbers=roles))
    optimizer.build(variables)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply([np.eye(4, dtype=np.float32), None])
    first, second = (np.asarray(v.value) for v in variables)
    assert np.all(np.diag(first) < 0.95)
    assert np.all(second == 1)


def test_gradients_of_single_examples():
    """One dimension more than the parameters have, for a transformation that clips each."""
    optimizer = keras_optimizer(gradtx.chain(gradtx.per_example(5.0), gradtx.sgd(0.5)))
    optimizer.build([variable := keras.Variable(np.ones(2, np.float32), name="v")])
    slots = [v.value for v in optimizer.variables]
    (moved,), _ = optimizer.stateless_apply(
        slots, [jnp.array([[3.0, 4.0], [6.0, 8.0]])], [variable.value]
    )
    np.testing.assert_allclose(moved, [1 - 0.5 * 3, 1 - 0.5 * 4], rtol=1e-6)


def test_a_rate_that_is_no_hyperparameter_counts_as_one():
    """That of a builder which does not say of its argument that it is a schedule."""

    @gradtx.transformation
    def falling(learning_rate):
        return gradtx.scale_by_learning_rate(learning_rate)

    assert float(keras_optimizer(falling(lambda count: 0.5)).learning_rate) == 1.0


def test_frozen_layers():
    made = model(keras_optimizer(gradtx.adam(0.1)))
    made.layers[0].trainable = False
    before = np.asarray(made.layers[0].kernel.value)
    fit(made, 2)
    np.testing.assert_array_equal(made.layers[0].kernel.value, before)
    assert len(made.optimizer.params) == 2


@pytest.mark.parametrize(
    "option",
    [
        "clipnorm",
        "clipvalue",
        "global_clipnorm",
        "weight_decay",
        "use_ema",
        "ema_momentum",
        "ema_overwrite_frequency",
        "gradient_accumulation_steps",
    ],
)
def test_options_of_keras_are_refused_by_what_they_are_here(option):
    with pytest.raises(TypeError, match=rf"no option '{option}': pass .*\btx\b"):
        keras_optimizer(gradtx.sgd(0.1), **{option: 1.0})


def test_other_mistakes():
    with pytest.raises(TypeError, match="it takes learning_rate, state and name"):
        keras_optimizer(gradtx.sgd(0.1), momentum=0.9)
    for wrong, said in {"adam": "not 'adam': call", gradtx.adam: "not adam: call"}.items():
        with pytest.raises(TypeError, match=said):
            keras_optimizer(wrong)


@pytest.mark.slow
def test_another_backend_is_refused():
    pytest.importorskip("torch")
    program = "import gradtx; gradtx.interop.keras_optimizer(gradtx.sgd(0.1))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        env=environment(KERAS_BACKEND="torch"),
        capture_output=True,
        text=True,
    )
    assert (
        'Keras runs on its torch backend, and gradtx on JAX: set os.environ["KERAS_BACKEND"]'
        in (done.stderr)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    [
        "import keras, gradtx.interop, sys",
        "import gradtx.interop, sys; assert 'keras' not in sys.modules; import keras",
    ],
)
def test_a_file_is_read_by_a_process_that_has_made_none(imports, tmp_path):
    made = model(keras_optimizer(gradtx.muon(0.02)))
    fit(made, 1)
    made.save(tmp_path / "run.keras")
    program = (
        f"{imports}\n"
        "made = keras.models.load_model(sys.argv[1])\n"
        "assert keras.__loader__ is keras.__spec__.loader\n"
        "print(made.optimizer.tx == gradtx.muon(0.02), int(made.optimizer.iterations))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "run.keras")],
        check=True,
        env=environment(KERAS_BACKEND="jax"),
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["True", "3"]
