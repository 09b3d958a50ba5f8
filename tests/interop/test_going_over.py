"""Runs that go over between Optax and gradtx in their middle: the whole catalogue, by every way."""

# Sees mutants of: flax.

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from benchmarks import going_over
from benchmarks.going_over import EXCEPTIONS, NAMES, OTHER_NUMBERS, OTHER_TREES, TWINS
from tests.catalogue import CATALOGUE, has_an_optimizer
from tests.quick import quick
from tests.test_contracts import grads, two

# What else Optax publishes that makes transformations, and what stands for it in the catalogue.
ELSEWHERE = {
    "multi_transform": "partition",
    "inject_hyperparams": "injected",
    "inject_stateful_hyperparams": "injected",
    "MultiSteps": "multi_steps",
    "with_extra_args_support": "chain",
}


def makers():
    """The names of Optax that make transformations, by what they say that they return."""
    for module in (optax, optax.contrib, optax.transforms):
        for name, value in vars(module).items():
            if name.startswith("_") or not inspect.isfunction(value):
                continue
            if "GradientTransformation" in str(inspect.signature(value).return_annotation):
                yield name


def test_every_transformation_that_both_have_is_tried():
    assert len(NAMES) > 120
    assert {name for name in makers() if name not in CATALOGUE} == ELSEWHERE.keys() - {"MultiSteps"}
    assert set(ELSEWHERE.values()) <= set(NAMES)
    assert {name for name in NAMES if CATALOGUE[name].optax is None} == TWINS.keys()
    listed = [name for each in EXCEPTIONS for name in each.names]
    assert {*listed, *OTHER_NUMBERS, *OTHER_TREES} <= set(NAMES)
    assert len(listed) == len(set(listed))


def test_the_page_has_the_table():
    """After a change: ``python -m benchmarks.going_over --docs``."""
    text = going_over.PAGE.read_text(encoding="utf-8")
    assert going_over.written(text) == text
    assert going_over.table()[-1] in text


# A rule alone goes over as it does within its optimizer, unless it is listed.
LISTED = {name for each in EXCEPTIONS for name in each.names} | {*OTHER_NUMBERS}
TRIED = [n for n in NAMES if n in LISTED or not has_an_optimizer(n)]
TRIED = [n for n in TRIED if n not in OTHER_TREES]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Optax's and Orbax's own
@pytest.mark.parametrize("name", quick(TRIED, "adam", "lookahead", "masked"))
def test_a_run_goes_over_by_every_way_that_is_not_listed(name):
    """And by none that is."""
    pytest.importorskip("flax")
    pytest.importorskip("orbax.checkpoint")
    found = going_over.tried(name)
    assert going_over.failed(found) == going_over.expected(name), found
    if name in OTHER_NUMBERS:
        assert {one.fault for one in found.values()} == {""}


@pytest.mark.parametrize("name", OTHER_TREES)
def test_what_keeps_another_tree_does(name):
    ours, theirs = (tx.init(two()) for tx in (CATALOGUE[name].make(), TWINS[name]()))
    assert len(jax.tree.leaves(ours)) > len(jax.tree.leaves(theirs))


def test_flax_writes_named_states_and_reads_them():
    serialization = pytest.importorskip("flax.serialization")
    tx = gradtx.named_chain(("clip", gradtx.clip(1.0)), ("adam", gradtx.scale_by_adam()))
    g = jax.tree.map(lambda x: x[0], grads(1, of=two))
    _, state = tx.update(g, tx.init(two()), two())
    back = serialization.from_bytes(tx.init(two()), serialization.to_bytes(state))
    assert type(back) is gradtx.NamedStates
    assert jax.tree.structure(back) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, back, state)


def test_flax_still_reads_a_field_written_as_none():
    serialization = pytest.importorskip("flax.serialization")
    tx = gradtx.lookahead(gradtx.sgd(0.1), 2, 0.5)
    state = tx.init(gradtx.LookaheadParams.init_synced(jnp.ones(2)))
    written = serialization.to_state_dict(state)
    assert "slow" not in written
    for form in (written, written | {"slow": None}):
        assert serialization.from_state_dict(state, form).slow is None
    alone = tx.init(jnp.ones(2))
    assert serialization.to_state_dict(alone)["slow"] is alone.slow


def test_lookahead_steps_in_the_class_of_its_parameters():
    tx = gradtx.lookahead(gradtx.sgd(0.1), 1, 0.5)
    for lib in (gradtx, optax):
        p = lib.LookaheadParams.init_synced(jnp.ones(2))
        updates, state = tx.update(jnp.ones(2), tx.init(p), p)
        assert type(updates) is lib.LookaheadParams
        np.testing.assert_allclose(optax.apply_updates(p, updates).slow, 0.95)
        assert gradtx.eval_params(tx, state, p) is p.slow
