"""Pickles of pairs made by hand, whose records have nineteen fields, by position.

    git archive 8c92783d gradtx | tar x -C /tmp/old
    PYTHONPATH=/tmp/old:. python -c "import tests.golden.make_records as m; m.write(m.PATH)"

A later version writes other records. tests/names/test_earlier.py reads these.
"""

import pathlib
import pickle

import jax.numpy as jnp

import gradtx
from gradtx.core.pair import Communication, Links
from gradtx.transforms.decay import WeightDecaySchedule

PATH = pathlib.Path(__file__).parent / "records.bin"


def init(params):
    return ()


def update(updates, state, params=None, **extra_args):
    return updates, state


def step(updates, state, params, **extra_args):
    return params, state


def before(params, state, touched):
    return params, state


def nearest(params, rate):
    return {"w": jnp.maximum(params["w"], 0)}


def roles(params):
    return {"w": "matrix"}


def cases(state):
    return []


def on_part(i, function, tree):
    return {**tree, "w": function(tree["w"])}


def message_bytes(params):
    return 7


def states(state):
    return state


INNER = gradtx.sgd(0.1)
TRAITS = {
    "step": step,
    "before_gradients": before,
    "parts": (INNER,),
    "links": Links((INNER,), states, tuple),
    "on_part": on_part,
    "takes_vectors": True,
    "clock": WeightDecaySchedule,
    "cases": cases,
    "communication": Communication(message_bytes, message_bytes, ("data",), ("data",)),
    "multipliers": {"w": 2.0},
    "nearest": nearest,
    "roles": roles,
    "takes_norm": "state",
    "inner": (INNER,),
    "searches": True,
    "scales_loss": True,
    "estimator": gradtx.spsa(1e-2),
}


def pairs():
    """A pair for each field, one with all of them, and one with none."""
    single = {name: {name: value} for name, value in TRAITS.items()}
    every = {**single, "all": TRAITS, "none": {}}
    return {name: gradtx.GradientTransformation(init, update, **t) for name, t in every.items()}


def write(path):
    path.write_bytes(pickle.dumps(pairs(), protocol=4))
