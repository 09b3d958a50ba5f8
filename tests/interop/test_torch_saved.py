"""Hostile state dicts of PyTorch: a clear error or a transformation, without PyTorch installed."""

# Sees mutants of: reading.

import copy

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

import gradtx
from gradtx.interop import from_torch
from tests.places import keys, walk

COMMON = {"params": [0, 1], "lr": 0.1, "weight_decay": 0.1, "maximize": False, "foreach": None}
BETAS = {"betas": (0.9, 0.999), "eps": 1e-8}
SHAPES = ((3, 2), (2,))
PARAMS = [np.ones(shape, np.float32) for shape in SHAPES]


def saved(options, *slots, **numbers):
    """A state dict as PyTorch writes it, with arrays in the place of tensors."""
    state = {
        i: {**{slot: np.full(shape, 0.5, np.float32) for slot in slots}, **numbers}
        for i, shape in enumerate(SHAPES)
    }
    return {"state": state, "param_groups": [{**COMMON, **options}]}


def adam():
    return saved({**BETAS, "amsgrad": False}, "exp_avg", "exp_avg_sq", step=np.float32(3))


def two_groups():
    made = adam()
    group = made["param_groups"][0]
    made["param_groups"] = [{**group, "params": [0]}, {**group, "params": [1], "lr": 1.0}]
    return made


def lbfgs():
    row = np.arange(8, dtype=np.float32)
    state = {
        "n_iter": 3,
        "func_evals": 4,
        "d": row,
        "t": 0.5,
        "old_dirs": [row, row + 1],
        "old_stps": [row, row - 1],
        "ro": [0.5, 0.25],
        "H_diag": 1.0,
        "prev_flat_grad": row,
        "prev_loss": 1.0,
    }
    group = {"params": [0, 1], "lr": 0.1, "max_iter": 20, "max_eval": 25, "tolerance_grad": 1e-7}
    group |= {"tolerance_change": 1e-9, "history_size": 10, "line_search_fn": None}
    return {"state": {0: state}, "param_groups": [group]}


SAVED = {
    "SGD": lambda: saved({"momentum": 0.9, "dampening": 0.0, "nesterov": False}, "momentum_buffer"),
    "Adam": adam,
    "AdamW": two_groups,
    "NAdam": lambda: saved(
        {**BETAS, "momentum_decay": 4e-3, "decoupled_weight_decay": False},
        "exp_avg",
        "exp_avg_sq",
        step=3.0,
        mu_product=0.5,
    ),
    "Adagrad": lambda: saved(
        {"lr_decay": 0.1, "eps": 1e-10, "initial_accumulator_value": 0.0}, "sum", step=3
    ),
    "LBFGS": lbfgs,
}
NAMES = st.sampled_from(sorted(SAVED))
KEYS = [
    *COMMON,
    *BETAS,
    "momentum",
    "step",
    "exp_avg",
    "state",
    "param_groups",
    "n_iter",
    0,
    1,
    "0",
]
DATA = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([-1, 2**31, 2**63, 10**400, np.float32(np.nan), np.ones(2), np.ones((3, 2))])
    | st.floats()
    | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)


def attempt(name, source):
    try:
        tx, state = from_torch(source, PARAMS, class_name=name)
    except (ValueError, TypeError) as error:
        assert str(error)
    else:
        assert isinstance(tx, gradtx.GradientTransformation)
        assert jax.tree.structure(state) == jax.tree.structure(tx.init(PARAMS))


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", SAVED)
def test_the_state_dicts_are_good(name):
    tx, state = from_torch(SAVED[name](), PARAMS, class_name=name)
    new, _ = gradtx.apply_gradients(tx, PARAMS, PARAMS, state)
    assert all(np.all(np.isfinite(p)) for p in new)


@pytest.mark.slow
@hypothesis.given(NAMES, DATA)
@hypothesis.settings(max_examples=150)
def test_hostile_state_dicts_give_clear_errors(name, value):
    attempt(name, value)
    attempt(name, {"state": {}, "param_groups": [value]})


@pytest.mark.slow
@hypothesis.given(NAMES, st.data())
@hypothesis.settings(max_examples=300)
def test_damaged_state_dicts_give_clear_errors(name, data):
    """A good state dict with one value, somewhere in it, replaced or left out."""
    made = copy.deepcopy(SAVED[name]())
    places = [(node, key) for node in walk(made) for key in keys(node)]
    node, key = data.draw(st.sampled_from(places))
    if data.draw(st.booleans()):
        del node[key]
    else:
        node[key] = data.draw(DATA)
    attempt(name, made)


def test_deep_values_are_an_error():
    deep = []
    for _ in range(10_000):
        deep = [deep]
    made = SAVED["SGD"]()
    made["param_groups"][0]["momentum"] = deep
    with pytest.raises(ValueError, match="too deeply"):
        from_torch(made, PARAMS, class_name="SGD")


def test_a_transposed_kernel_says_how_to_turn_what_was_handed_over():
    names = ["kernel", "bias"]
    turned = {"kernel": PARAMS[0].T, "bias": PARAMS[1]}
    with pytest.raises(ValueError, match="transpose afterwards.*map_params"):
        from_torch(adam(), turned, class_name="Adam", order=names)
    wrong = {"kernel": np.ones((2, 5), np.float32), "bias": PARAMS[1]}
    with pytest.raises(ValueError, match="has the shape") as error:
        from_torch(adam(), wrong, class_name="Adam", order=names)
    assert "transpose" not in str(error.value)
    tx, state = from_torch(
        adam(), dict(zip(names, PARAMS, strict=True)), class_name="Adam", order=names
    )
    state = gradtx.tree.map_params(tx, lambda x: x.T if x.ndim == 2 else x, state)
    assert gradtx.get_slot(state, "mu", "kernel").shape == SHAPES[0][::-1]


def test_a_saved_scheduler_is_refused_with_what_to_do():
    with pytest.raises(TypeError, match="make the scheduler again"):
        from_torch(adam(), PARAMS, class_name="Adam", scheduler={"last_epoch": 3})
