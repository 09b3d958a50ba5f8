"""Which test holds each optimizer to its paper, and which beside a library that has it too."""

import ast
import functools
import pathlib
import re

import optax
import pytest

from tests.catalogue import optimizers

TESTS = pathlib.Path(__file__).parent

# In these tests steps are compared with a transcription of the paper in NumPy's float64.
PAPERS = {
    "optimizers/test_adagrad.py": {
        "test_adagrad": "adagrad",
    },
    "optimizers/test_adam.py": {
        "test_adam_is_the_papers": "adam",
        "test_adamw_is_the_papers": "adamw",
        "test_nadamw_is_adamw_that_looks_ahead": "nadamw",
    },
    "optimizers/test_adam_family.py": {
        "test_it_is_the_papers": (
            "acprop adabelief adamax adamaxw adan ademamix adopt amsgrad nadam radam "
            "simplified_ademamix yogi"
        ),
    },
    "optimizers/test_adam_variants.py": {
        "test_adabound_is_the_papers": "adabound",
        "test_diffgrad_is_the_papers": "diffgrad",
        "test_laprop_is_the_papers": "laprop",
        "test_qhadam_is_the_papers": "qhadam",
        "test_stable_adamw_is_the_papers": "stable_adamw",
        "test_tiger_is_the_authors": "tiger",
    },
    "optimizers/test_factored.py": {
        "test_adafactor_is_the_papers": "adafactor",
        "test_adam_mini_is_the_papers": "adam_mini",
        "test_came_is_the_papers": "came",
        "test_sm3_is_the_papers": "sm3",
    },
    "optimizers/test_galore.py": {
        "test_galore": "galore",
    },
    "optimizers/test_gradient_family.py": {
        "test_it_is_the_papers": (
            "adadelta madgrad rprop signum optimistic_adam optimistic_adam_v2 "
            "optimistic_gradient_descent"
        ),
        "test_noise_has_the_variance_of_the_schedule": "noisy_sgd",
    },
    "optimizers/test_layerwise.py": {
        "test_fromage_is_the_papers": "fromage",
        "test_lamb_is_the_papers": "lamb",
        "test_lars_is_the_papers": "lars",
        "test_novograd_is_the_papers": "novograd",
    },
    "optimizers/test_lbfgs.py": {
        "test_the_paper_and_optax": "lbfgs",
    },
    "optimizers/test_learning_rate_free.py": {
        "test_cocob_is_the_papers": "cocob",
        "test_dadapt_adamw_is_the_papers": "dadapt_adamw",
        "test_dog_is_the_papers": "dog scale_by_distance_over_gradients",
        "test_dowg_is_the_papers": "dowg",
        "test_momo_is_the_papers": "momo momo_adam",
        "test_polyak_is_the_papers": "polyak_sgd",
        "test_prodigy_is_the_papers": "prodigy",
    },
    "optimizers/test_lion.py": {
        "test_lion": "lion",
    },
    "optimizers/test_mars.py": {
        "test_before_any_optimizer_and_with_a_schedule": "mars",
        "test_mars_adamw": "mars_adamw",
        "test_mars_lion": "mars_lion",
    },
    "optimizers/test_muon.py": {
        "test_muon": "muon",
    },
    "optimizers/test_peers.py": {
        "test_asgd_is_the_papers": "asgd",
        "test_ftrl_is_the_papers": "ftrl",
    },
    "optimizers/test_proximal.py": {
        "test_adagrad": "proximal_adagrad",
        "test_dual_averaging": "adagrad_da",
        "test_gradient_descent": "proximal_gradient_descent",
    },
    "optimizers/test_rmsprop.py": {
        "test_rmsprop": "rmsprop",
    },
    "optimizers/test_rowwise.py": {
        "test_transcription": "adagrad_decay rowwise_adagrad rowwise_adam",
    },
    "optimizers/test_sgd.py": {
        "test_momentum": "sgd",
        "test_sign_sgd": "sign_sgd",
    },
    "optimizers/test_sophia.py": {
        "test_it_is_the_paper_s": "sophia",
    },
    "transforms/test_grokfast.py": {
        "test_moving_average": "grokfast_ema",
        "test_window": "grokfast_ma",
    },
    "transforms/test_linesearch.py": {
        "test_backtracking_transcription": "scale_by_backtracking_linesearch",
    },
    "wrappers/test_cautious.py": {
        "test_cautious_adamw_is_the_paper_s": "cautious",
        "test_cautious_weight_decay_is_the_paper_s": "add_cautious_decayed_weights",
    },
    "wrappers/test_mechanic.py": {
        "test_it_is_the_papers": "mechanize",
    },
    "wrappers/test_schedule_free.py": {
        "test_it_is_the_paper_s": "schedule_free_adamw schedule_free_sgd",
    },
}

# Optax has not these, or not as they should be; beside PyTorch, Keras or TensorFlow's numbers.
LIVE = {
    "interop/test_tensorflow.py": {
        "test_dense": "adagrad_da ftrl proximal_adagrad proximal_gradient_descent",
    },
    "optimizers/test_adam_family.py": {
        "test_it_is_pytorchs": "adadelta adamax amsgrad nadam radam rprop",
    },
    "optimizers/test_peers.py": {
        "test_adagrad_with_lr_decay_is_pytorch_s": "adagrad",
        "test_asgd_is_pytorch_s": "asgd",
        "test_ftrl_is_keras_s": "ftrl",
        "test_sgd_with_dampening_is_pytorch_s": "sgd",
    },
}
# In none of the libraries that are tested beside.
NOWHERE = (
    "adabound adagrad_decay adam_mini came diffgrad laprop mars_adamw mars_lion qhadam "
    "rowwise_adagrad rowwise_adam stable_adamw tiger"
)
LINKS = {
    "add_cautious_decayed_weights",
    "cautious",
    "grokfast_ema",
    "grokfast_ma",
    "mars",
    "mechanize",
    "scale_by_backtracking_linesearch",
    "scale_by_distance_over_gradients",
}


def rows(table):
    """The file, the test and the optimizer of every entry."""
    return [
        (file, test, name)
        for file, tests in table.items()
        for test, names in tests.items()
        for name in names.split()
    ]


def named(table):
    return {name for _, _, name in rows(table)}


def test_every_optimizer_is_held_to_its_paper():
    assert named(PAPERS) == {*optimizers(), *LINKS}


def test_every_optimizer_is_beside_a_library_that_has_it():
    """Optax's are compared in test_contracts and where test_optax_names says."""
    both = {n for n in optimizers() if hasattr(optax, n) or hasattr(optax.contrib, n)}
    assert set(optimizers()) - both - named(LIVE) == set(NOWHERE.split())


@functools.cache
def statements(file):
    """The top-level functions and values of a test file, by name."""
    found = {}
    for node in ast.parse((TESTS / file).read_text()).body:
        targets = getattr(node, "targets", [])
        for name in [getattr(node, "name", None), *(getattr(t, "id", None) for t in targets)]:
            found[name] = node
    return found


def text_of(file, name, seen):
    """The source of a function or value and of all that it uses in its file."""
    node = statements(file)[name]
    used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    new = used & statements(file).keys() - seen
    seen |= new
    return "\n".join([ast.unparse(node), *(text_of(file, other, seen) for other in new)])


@pytest.mark.parametrize(("file", "test", "name"), [*rows(PAPERS), *rows(LIVE)])
def test_the_test_is_there_and_builds_it(file, test, name):
    text = text_of(file, test, {test})
    assert re.search(rf"(gradtx|lib)\.{name}\(|'{name}'", text)
    assert re.search(r"assert_allclose|oracle\.check|approx", text)
