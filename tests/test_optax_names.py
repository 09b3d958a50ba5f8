"""Every public name of the installed Optax is here, with its parameters, or left out."""

import pathlib
import re
import types

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from benchmarks import optax_signatures
from benchmarks.optax_signatures import differences, found_in, left_out, public_names
from gradtx.names.absences import DIFFERENT, LEFT_OUT
from tests.catalogue import CATALOGUE

TESTS = pathlib.Path(__file__).parent

# What is not as in the installed Optax, and why. What a new release brings is named by the test.
KNOWN = {
    "lbfgs: linesearch has another default in Optax": "a pair of Optax's",
    "sophia: hessian_diagonal_fn has another default in Optax": "a pair of Optax's",
    "scale_by_factored_rms: decay_rate_fn has another default in Optax": "a private function",
    "microbatch: accumulator has another default in Optax": "a string, and no enumeration",
    "adopt: clip_value_fn has another default in Optax": "None for Optax's lambda",
    "scale_by_adopt: clip_value_fn has another default in Optax": "None for Optax's lambda",
    "dpsgd: seed is argument 4 in Optax": "it is key there from 0.2.9 on, and seed by name alone",
}

ALL = list(public_names())


def test_all_are_looked_at():
    assert len(ALL) > 400
    modules = {"contrib", "losses", "projections", "schedules", "transforms", "tree", "tree_utils"}
    assert {path.split(".")[0] for path in ALL} >= modules


def test_names_and_arguments_are_those_of_the_installed_optax():
    """A new release of Optax: each line that is not known is something to do."""
    found = sorted(differences())
    assert found == sorted(KNOWN)


@pytest.mark.parametrize("path", [path for path in ALL if left_out(path)])
def test_what_is_left_out_says_what_to_use(path):
    with pytest.raises(AttributeError, match="use "):
        found_in(gradtx, path)


def everything_wrong():
    """A library that differs from Optax in each way."""
    names = {name: found_in(optax, name) for name in ("sgd", "adam", "lion", "clip")}
    names["sgd"] = lambda learning_rate, nesterov=False, momentum=None, accumulator_dtype=None: None
    names["lion"] = lambda learning_rate, b1=0.8, *, extra: None
    del names["adam"]
    return types.SimpleNamespace(**names)


def test_each_difference_is_named(monkeypatch):
    names = ["sgd", "adam", "lion", "clip"]
    monkeypatch.setattr(optax_signatures, "public_names", lambda: names)
    monkeypatch.setattr(optax_signatures, "gradtx", everything_wrong())
    assert list(differences()) == [
        "sgd: momentum is argument 2 in Optax",
        "sgd: nesterov is argument 3 in Optax",
        "adam: is missing",
        "lion: b1 has another default in Optax",
        "lion: b2, argument 3, is missing",
        "lion: mu_dtype, argument 4, is missing",
        "lion: weight_decay, argument 5, is missing",
        "lion: mask, argument 6, is missing",
        "lion: extra must be given here",
    ]


def test_tables_name_what_is_there():
    everything = set(ALL) | {path.rpartition(".")[0] for path in ALL} | {"monte_carlo"}
    assert LEFT_OUT.keys() <= everything | {"experimental"}
    assert DIFFERENT.keys() <= {path.rpartition(".")[2] for path in ALL} | {"__version__"}


@pytest.mark.slow
def test_what_is_said_instead_works():
    """Of what can be said in a line."""
    m = jnp.array([[2.0, 1.0], [1.0, 3.0]])
    w, q = jnp.linalg.eigh(m)
    root = (q * w ** (-1 / 4)) @ q.T
    np.testing.assert_allclose(root, optax.matrix_inverse_pth_root(m, 4)[0], rtol=1e-4, atol=1e-5)
    b = jnp.array([5.0, -6.0])
    tx = gradtx.chain(gradtx.sgd(0.05), gradtx.project("non_negative"))
    found = gradtx.solve(lambda x: jnp.sum((m @ x - b) ** 2), jnp.zeros(2), tx, max_steps=300)
    np.testing.assert_allclose(found.params, optax.nnls(m, b, 300), atol=1e-4)


# Of both libraries, and compared live elsewhere than in test_contracts.test_like_optax, or not.
COMPARED = {
    "hutchinson_estimator_diag_hessian",
    "sophia",
    "lbfgs",
    "scale_by_lbfgs",
    "scale_by_zoom_linesearch",
    "radam",
    "partition",
    "selective_transform",
    "lookahead",
    "monitor",
    "measure_with_ema",
    "sam",
    "masked",
    "stateless",
    "stateless_with_tree_map",
    "optimistic_adam",
}
NOT_COMPARED = {
    "scale_by_radam": "as radam",
    "scale_by_muon": "as muon",
    "scale_by_galore": "as galore",
    "rprop": "Optax's update is that of the step before; compared with its paper",
    "scale_by_rprop": "Optax's update is that of the step before; compared with its paper",
}


def test_what_both_have_is_compared_live():
    both = {n for n in CATALOGUE if n in vars(optax) or n in vars(optax.contrib)}
    twins = {name for name, entry in CATALOGUE.items() if entry.optax is not None}
    assert both - twins == COMPARED | NOT_COMPARED.keys()
    files = {*TESTS.rglob("test_*.py")} - {pathlib.Path(__file__)}
    texts = [text for text in (path.read_text() for path in files) if "optax" in text]
    for name in COMPARED:
        assert any(re.search(rf"\b{name}\b", text) for text in texts), name
