"""OptimizerV2: its configurations and weights, against TensorFlow's numbers."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.interop import from_keras, get_weights, set_weights
from tests.quick import quick

GOLDEN = np.load(pathlib.Path(__file__).parents[1] / "golden" / "tensorflow.npz")
MOMENTS = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-3}
RMS = {"learning_rate": 0.01, "rho": 0.9}
FTRL = {
    "learning_rate": 0.1,
    "learning_rate_power": -0.5,
    "initial_accumulator_value": 0.1,
    "l1_regularization_strength": 0.01,
    "l2_regularization_strength": 0.1,
    "l2_shrinkage_regularization_strength": 0.0,
    "beta": 0.1,
}
# What get_config says of the optimizers of tests/golden/make_tensorflow.py, and the slots that
# each variable has, in the order of get_weights: ours, and -1 where the sign is another.
CONFIGS = {
    "sgd": ("SGD", {"learning_rate": 0.1, "momentum": 0.0, "nesterov": False}, []),
    "momentum": ("SGD", {"learning_rate": 0.1, "momentum": 0.9, "nesterov": False}, ["trace"]),
    "nesterov": ("SGD", {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True}, ["trace"]),
    "adam": ("Adam", {"learning_rate": 0.01, **MOMENTS, "amsgrad": False}, ["mu", "nu"]),
    "amsgrad": (
        "Adam",
        {"learning_rate": 0.01, **MOMENTS, "amsgrad": True},
        ["mu", "nu", "nu_max"],
    ),
    "adagrad": (
        "Adagrad",
        {"learning_rate": 0.1, "initial_accumulator_value": 0.1, "epsilon": 1e-3},
        ["sum_of_squares"],
    ),
    "rmsprop": ("RMSprop", {**RMS, "momentum": 0.0, "epsilon": 1e-3, "centered": False}, ["nu"]),
    "rmsprop momentum": (
        "RMSprop",
        {**RMS, "momentum": 0.9, "epsilon": 1e-3, "centered": False},
        ["nu", "-trace"],
    ),
    "rmsprop centered": (
        "RMSprop",
        {**RMS, "momentum": 0.9, "epsilon": 1e-2, "centered": True},
        ["nu", "-trace", "mu"],
    ),
    "adadelta": (
        "Adadelta",
        {"learning_rate": 1.0, "rho": 0.95, "epsilon": 1e-3},
        ["e_g", "e_x"],
    ),
    "adamax": ("Adamax", {"learning_rate": 0.01, **MOMENTS}, ["mu", "nu"]),
    "nadam": ("Nadam", {"learning_rate": 0.01, **MOMENTS, "decay": 0.004}, ["mu", "nu"]),
    "ftrl": ("Ftrl", FTRL, ["accumulator", "linear"]),
}


def config(name, **changes):
    class_name, options, _ = CONFIGS[name]
    return {"class_name": class_name, "config": {"name": name, "decay": 0.0, **options, **changes}}


def run(tx, state, p, gs):
    def step(carry, g):
        p, state = gradtx.apply_gradients(tx, g, *carry)
        return (p, state), p

    return jax.jit(lambda c: jax.lax.scan(step, c, gs))((p, state))


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_formulas_are_tensorflows(name):
    tx = from_keras(config(name))
    assert gradtx.from_config(json.loads(json.dumps(gradtx.to_config(tx)))) == tx
    start = jnp.asarray(GOLDEN["start"])
    _, got = run(tx, tx.init(start), start, jnp.asarray(GOLDEN["gradients"]))
    np.testing.assert_allclose(got, GOLDEN[f"v2 {name}, dense"], rtol=1e-5, atol=2e-6)


def weights(name, state, params, count):
    """A state as OptimizerV2 would write it."""

    def arrays(slot):
        sign = -1 if slot.startswith("-") else 1
        held = gradtx.get_slot(state, slot.removeprefix("-"))
        return [sign * np.asarray(held[k]) for k in params]

    groups = [arrays(slot) for slot in CONFIGS[name][2]]
    if name == "ftrl":  # both slots of each variable together
        groups = list(zip(*groups, strict=True))
    product = [np.asarray(state[0].momentum_product)] if name == "nadam" else []
    return [np.int64(count), *product, *(x for group in groups for x in group)]


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(CONFIGS, "adam", "nadam", "ftrl"))
def test_weights_go_where_they_belong(name):
    """Two variables of one shape: every slot in its place, every sign right."""
    start = jnp.asarray(GOLDEN["start"])
    params = {"a": start, "b": -start}
    g = jnp.asarray(GOLDEN["gradients"])
    gs = {"a": g, "b": g[::-1]}
    tx = from_keras(config(name))
    first, second = (
        jax.tree.map(lambda x, part=part: x[part], gs) for part in (slice(5), slice(5, 9))
    )
    (p, state), _ = run(tx, tx.init(params), params, first)
    (want, _), _ = run(tx, state, p, second)
    again, loaded = from_keras(config(name), p, weights(name, state, params, 5), order=["a", "b"])
    assert again == tx
    (got, _), _ = run(tx, loaded, p, second)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), got, want)


def test_the_momentum_of_rmsprop_has_the_other_sign():
    arrays = [np.full(2, x, np.float32) for x in (1, 2, 3)]
    _, state = from_keras(config("rmsprop centered"), [jnp.zeros(2)], [np.int64(3), *arrays])
    held = {name: gradtx.get_slot(state, name)[0].tolist() for name in ("nu", "trace", "mu")}
    assert held == {"nu": [1.0, 1.0], "trace": [-2.0, -2.0], "mu": [3.0, 3.0]}


@pytest.mark.parametrize("name", CONFIGS)
def test_set_weights_refuses_what_is_in_tensorflows_order(name):
    """It would fit RMSprop's slots, whose shapes are alike, with momentum and mean exchanged."""
    params = {"a": jnp.asarray(GOLDEN["start"])}
    tx = from_keras(config(name))
    state = tx.init(params)
    theirs = weights(name, state, params, 5)
    with pytest.raises(ValueError, match=r"64 bits.* from_keras\(config, params, weights\)"):
        set_weights(state, theirs)
    ours = get_weights(gradtx.chain(gradtx.count_steps(), tx).init(params))
    set_weights(gradtx.chain(gradtx.count_steps(), tx).init(params), [5, *ours[1:]])


def test_a_decaying_rate():
    """The rate is divided by 1 + decay * iterations, a schedule too; Nadam's decay is another."""
    for rate in (0.5, {"class_name": "ExponentialDecay", "config": EXPONENTIAL}):
        tx, state = from_keras(
            config("sgd", decay=0.25, learning_rate=rate), [jnp.zeros(1)], [np.int64(4)]
        )
        got, _ = gradtx.apply_gradients(tx, [jnp.ones(1)], [jnp.zeros(1)], state)
        scheduled = 0.5 if rate == 0.5 else 0.5 * 0.25**4
        np.testing.assert_allclose(got[0], -scheduled / 2, rtol=1e-6)


EXPONENTIAL = {
    "initial_learning_rate": 0.5,
    "decay_steps": 1,
    "decay_rate": 0.25,
    "staircase": False,
    "name": None,
}


def test_old_names_and_options_that_came_later():
    old = {"lr": 0.01, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-3, "decay": 0.0}
    assert from_keras(old, class_name="Adam") == from_keras(config("adam"))
    del old["decay"]
    assert from_keras({**old, "schedule_decay": 0.004}, class_name="nadam") == from_keras(
        config("nadam")
    )
    plain = {"lr": 0.1, "momentum": 0.0, "nesterov": False}
    assert from_keras(plain, class_name="SGD") == gradtx.sgd(0.1)
    assert repr(from_keras(config("sgd", clipvalue=0.5, clipnorm=1.0))).startswith(
        "chain(clip(max_delta=0.5), clip_by_norm(max_norm=1.0), sgd("
    )


class SGD:
    """An optimizer as TensorFlow has it."""

    variables = None

    def get_config(self):
        return config("momentum")["config"]

    def get_weights(self):
        return [np.int64(3), np.full((2,), 2.0, np.float32)]


def test_an_optimizer_itself():
    tx, state = from_keras(SGD(), [jnp.zeros(2)])
    assert tx == from_keras(config("momentum"))
    assert gradtx.get_slot(state, "trace", "0").tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("source", "error", "says"),
    [
        (config("sgd", momentumm=1), ValueError, "SGD of OptimizerV2: unknown options 'momentumm'"),
        (config("sgd", decay=-1.0), ValueError, "decay_rate must be"),
        (config("sgd", decay="x"), TypeError, "decay must be a number"),
        (config("sgd", is_legacy_optimizer=1), ValueError, "unknown options .*'decay'"),
        (
            {"class_name": "Lion", "config": {"decay": 0.0}},
            ValueError,
            "Lion of OptimizerV2 is not",
        ),
        (
            {"class_name": "Adam", "config": {"decay": 0.0}},
            ValueError,
            "'learning_rate' is missing",
        ),
    ],
)
def test_bad_configurations(source, error, says):
    with pytest.raises(error, match=says):
        from_keras(source)


def test_bad_weights():
    good = [np.int64(3), np.zeros(2, np.float32)]
    for values, error, says in (
        (good[1:], ValueError, "iteration, must have the shape"),
        (good[:1], ValueError, "more are needed"),
        ([*good, good[1]], ValueError, "there are 3 variables, and 2 are needed"),
    ):
        with pytest.raises(error, match=says):
            from_keras(config("momentum"), [jnp.zeros(2)], values)


def test_configurations_of_the_optimizers_between():
    """TensorFlow 2.11 to 2.15 say that they are none of the old ones."""
    between = {
        "name": "SGD",
        "weight_decay": None,
        "clipnorm": None,
        "global_clipnorm": None,
        "clipvalue": None,
        "use_ema": False,
        "ema_momentum": 0.99,
        "ema_overwrite_frequency": None,
        "jit_compile": True,
        "is_legacy_optimizer": False,
        "learning_rate": 0.1,
        "momentum": 0.0,
        "nesterov": False,
    }
    assert from_keras(between, class_name="SGD") == gradtx.sgd(0.1)
