"""check_rule: what is right passes, and each fault is named by the contract that it breaks."""

import re
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx.testing import check_gradient_transformation, check_rule

PAGE = Path(__file__).parents[2] / "docs" / "writing_a_rule.md"


class CountState(NamedTuple):
    count: jax.Array


def zero_count(params):
    del params
    return CountState(jnp.zeros([], jnp.int32))


def scaled(updates, factor):
    return jax.tree.map(lambda g: g * jnp.asarray(factor, g.dtype), updates)


def plain(updates, state, params=None):
    return scaled(updates, -0.1), CountState(state.count + 1)


def widening(updates, state, params=None):
    return scaled(updates, -0.1), CountState(state.count + 1.0)


calls = []


def counting_in_python(updates, state, params=None):
    calls.append(None)
    return scaled(updates, 1 / len(calls)), state


def random_on_the_host(updates, state, params=None):
    return scaled(updates, np.random.default_rng().normal()), state


def reading_the_step(updates, state, params=None):
    return scaled(updates, 1 / (1 + int(state.count))), CountState(state.count + 1)


def summing(updates, state, params=None):
    return jax.tree.map(lambda g: g.sum(axis=0), updates), state


def in_place(updates, state, params=None):
    def halve(g):
        if isinstance(g, np.ndarray):
            g *= 0.5
            return jnp.asarray(g)
        return g * 0.5

    return jax.tree.map(halve, updates), state


def changing_the_state(updates, state, params=None):
    state["count"] = state["count"] + 1
    return updates, state


def zeros_for_none(updates, state, params=None):
    new = jax.tree.map(
        lambda g: jnp.zeros(()) if g is None else g, updates, is_leaf=lambda g: g is None
    )
    return new, state


def mean_of_entries(updates, state, params=None):
    return jax.tree.map(lambda g: g - g.sum() / g.sum(), updates), state


def on_the_host(updates, state, params=None):
    def call(g):
        return jax.pure_callback(lambda x: np.asarray(x) * 0.5, jax.typeof(g), g)

    return jax.tree.map(call, updates), state


def in_single_precision(updates, state, params=None):
    return jax.tree.map(lambda g: g.astype(jnp.float32), updates), state


def by_position(updates, state, params=None):
    pairs = zip(jax.tree.leaves(updates), jax.tree.leaves(state), strict=False)
    new = [m + g for g, m in pairs]
    mu = jax.tree.unflatten(jax.tree.structure(state), new)
    flat = [*new, *jax.tree.leaves(updates)[len(new) :]]
    return jax.tree.unflatten(jax.tree.structure(updates), flat), mu


def zeros(params):
    return jax.tree.map(jnp.zeros_like, params)


BROKEN = {
    "state keeps its form": (zero_count, widening),
    "compiled equals eager": (zero_count, counting_in_python),
    "pure": (zero_count, random_on_the_host),
    "compiles": (zero_count, reading_the_step),
    "updates keep their form": (zero_count, summing),
    "changes nothing in place": (zero_count, in_place),
    "None leaves": (zero_count, zeros_for_none),
    "zero gradients": (zero_count, mean_of_entries),
    "vmap": (zero_count, on_the_host),
    "low precision": (zero_count, in_single_precision),
    "another tree": (zeros, by_position),
    "donation": (lambda params: (params, params), lambda g, s, p=None: (g, s)),
    "init": (lambda params: ("mean", zeros(params)), lambda g, s, p=None: (g, s)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_fault_is_named_by_its_contract(name):
    calls.clear()
    report = check_gradient_transformation(*BROKEN[name], contracts=[name])
    assert [result.name for result in report.failures] == [name], report
    assert report.failures[0].reason
    with pytest.raises(AssertionError, match=f"FAILS  {name}"):
        report.raise_for_failures()
    report.raise_for_failures(allow=[name])


def test_a_state_that_is_changed_in_place():
    report = check_gradient_transformation(
        lambda params: {"count": jnp.zeros([], jnp.int32)},
        changing_the_state,
        contracts=["changes nothing in place"],
    )
    assert "has other values after the call" in report.failures[0].reason


def test_after_no_update_nothing_else_is_tried():
    report = check_gradient_transformation(zero_count, summing)
    assert [result.name for result in report.failures] == ["updates keep their form"]
    reasons = {result.reason for result in report.results if result.outcome == "does not apply"}
    assert reasons == {"not tried, since 'updates keep their form' fails"}


@pytest.mark.slow
def test_pairs_by_hand_keep_what_applies_to_them():
    report = check_gradient_transformation(zero_count, plain)
    assert report.ok, report
    assert report.scope is None
    skipped = [r.name for r in report.results if r.outcome == "does not apply"]
    assert skipped == ["scope", "another tree", "array hyperparameters", "configuration"]
    assert report.transformation.endswith("plain")


@pytest.mark.slow
def test_a_pair_of_optax():
    report = check_gradient_transformation(optax.sgd(0.1, momentum=0.9))
    assert report.ok, report
    assert report.transformation.startswith("a pair whose update is optax.")
    assert report.abilities["complex parameters"] == ""
    assert report.abilities["rows of a table"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "scope"),
    [
        (lambda: gradtx.adamw(1e-3, weight_decay=0.1), "entries"),
        (lambda: gradtx.adafactor(0.1), "whole leaves"),
        (lambda: gradtx.muon(0.1), "matrices"),
        (lambda: gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.lion(0.1)), "the tree"),
        (lambda: gradtx.guard(gradtx.sgd(0.1)), "entries"),
    ],
)
def test_transformations_of_gradtx_pass(make, scope):
    report = check_rule(make())
    assert report.ok, report
    assert report.scope == scope
    assert not any(report.abilities[name] for name in ("complex parameters", "strict types"))


@gradtx.transformation
def switched(decay: gradtx.checks.Decay = 0.9):
    """Its Python `if` reads a hyperparameter."""

    def rule(g, s, t):
        return (g if decay > 0.5 else -g * jnp.max(g)), {}

    return gradtx.leafwise(gradtx.EmptyState, None, rule)


def test_a_rule_with_a_python_if():
    report = check_rule(switched(), contracts=["array hyperparameters", "rows of a table"])
    assert [result.name for result in report.failures] == ["array hyperparameters"]
    assert "TracerBoolConversionError" in report.failures[0].reason
    assert "scale_by" not in report.abilities["rows of a table"]
    assert "cannot run on the Rows at 'table'" in report.abilities["rows of a table"]


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["elementwise", "rowwise"])
def test_a_norm_of_the_leaf_in_a_narrower_rule(scope):
    def rule(g, s, t):
        return g / (1 + jnp.linalg.norm(g)), {}

    tx = getattr(gradtx, scope)(gradtx.EmptyState, None, rule)
    (failure,) = check_rule(tx, contracts=["scope"]).failures
    assert "alone: '0/b'" in failure.reason
    wide = gradtx.leafwise(gradtx.EmptyState, None, rule)
    assert check_rule(wide, contracts=["scope"]).ok


@pytest.mark.parametrize("scope", ["elementwise", "rowwise"])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_sum_over_others_in_a_narrower_rule(scope, reverse):
    """Over what comes before, or after: the first entry, or the last, has it alone."""

    def rule(g, s, t):
        return jax.lax.cumsum(g.reshape(g.shape[0], -1), 0, reverse=reverse).reshape(g.shape), {}

    tx = getattr(gradtx, scope)(gradtx.EmptyState, None, rule)
    (failure,) = check_rule(tx, contracts=["scope"]).failures
    assert f"the {'first' if reverse else 'last'} " in failure.reason


NAMED = {"head": {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}, "body": {"w": jnp.full((4, 2), 2.0)}}


@pytest.mark.parametrize(
    "tx",
    [
        gradtx.freeze("head"),
        gradtx.masked(gradtx.sgd(0.1), "head/*"),
        gradtx.partition({"a": gradtx.sgd(0.1), "b": gradtx.adam(0.1)}, {"head": "a", "body": "b"}),
    ],
    ids=["freeze", "masked", "partition"],
)
def test_leaves_are_found_by_their_paths(tx):
    names = ["None leaves", "leaves without entries", "another tree"]
    assert check_rule(tx, NAMED, contracts=names).ok
    results = check_rule(tx, [NAMED], contracts=names[:2]).results
    assert not [result for result in results if result.outcome == "fails"]


@pytest.mark.parametrize("params", [jnp.ones(3), {"w": jnp.ones(3)}], ids=["array", "dict"])
def test_a_count_is_no_slot_of_a_single_array(params):
    schedule = gradtx.linear_schedule(0.1, 0.0, 10)
    for tx, outcome in ((gradtx.sgd(schedule), "does not apply"), (gradtx.adam(0.1), "holds")):
        (result,) = check_rule(tx, params, contracts=["another tree"]).results
        assert result.outcome == outcome, result


def test_parameters_that_are_one_array_twice():
    tied = dict.fromkeys(("encoder", "decoder"), jnp.ones(3))
    assert check_rule(gradtx.sgd(0.1), tied, contracts=["donation"]).ok


def test_a_state_that_begins_as_nan():
    def update(updates, state, params=None):
        new = jax.tree.map(lambda g, last: jnp.where(jnp.isnan(last), g, last), updates, state)
        return new, updates

    def unseen(params):
        return jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), params)

    names = ["changes nothing in place"]
    assert check_gradient_transformation(unseen, update, contracts=names).ok


def test_what_would_not_shard():
    def init(params):
        return {"sums": jax.tree.map(lambda p: jnp.zeros(7), params), "last": zeros(params)}

    report = check_gradient_transformation(init, lambda g, s, p=None: (g, s), contracts=["init"])
    assert report.undivided == ("sums/b", "sums/w")
    assert report.state_bytes == 2 * 28 + 40
    assert "whole on every device: sums/b, sums/w" in str(report)
    matrix = {"w": jnp.ones((4, 2))}
    report = check_rule(gradtx.scale_by_muon(), matrix, contracts=["init"])
    assert report.communicates in str(report)
    assert "matrices are brought together" in report.communicates


def test_an_ability_alone():
    report = check_rule(gradtx.sgd(0.1), contracts=["complex parameters"])
    assert report.ok
    assert "complex parameters: yes" in str(report)


def test_arguments():
    with pytest.raises(ValueError, match="no contract is called 'jit'; there are init, "):
        check_rule(gradtx.sgd(0.1), contracts=["jit"])
    with pytest.raises(TypeError, match="call it, adam"):
        check_rule(gradtx.adam)
    with pytest.raises(TypeError, match="expected a gradient transformation"):
        check_gradient_transformation(zero_count, 3)
    with pytest.raises(ValueError, match="no contract is called 'jit'"):
        check_rule(gradtx.sgd(0.1), contracts=["init"]).raise_for_failures(allow=["jit"])


@pytest.mark.slow
def test_parameters_and_gradients_of_the_caller():
    """For a rule that wants leaves of its own, and one that takes gradients of single examples."""
    pair = gradtx.scale_by_riemannian_lora()
    report = check_rule(pair, contracts=["init", "vmap"])
    assert "no leaf is a factor of LoRA" in report.failures[0].reason
    assert (report.state_bytes, report.undivided) == (None, None)
    assert "sharded: not tried\n" in str(report)
    factors = {"lora_a": jnp.ones((4, 2)), "lora_b": jnp.ones((2, 4))}
    report = check_rule(pair, factors, contracts=["init", "updates keep their form"])
    assert report.ok, report
    assert report.scope == "leaves that belong together"
    private = gradtx.differentially_private_aggregate(1.0, 0.1, key=0)
    params = {"w": jnp.ones((4, 2))}
    names = ["updates keep their form", "leaves without entries", "compiled equals eager"]
    report = check_rule(private, params, gradients={"w": jnp.ones((5, 4, 2))}, contracts=names)
    assert report.ok, report
    assert report.results[-1].outcome == "does not apply"


@pytest.mark.slow
def test_the_page_shows_what_is_printed(capsys):
    section = PAGE.read_text(encoding="utf-8").partition("## Checking it\n")[2]
    section = section.partition("\n## ")[0]
    names = {"gradtx": gradtx, "jax": jax, "jnp": jnp, "NamedTuple": NamedTuple}
    first = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[0]
    exec(first, names)
    for code, shown in re.findall(
        r"^```python\n(.*?)^```\n+```text\n(.*?)^```", section, re.MULTILINE | re.DOTALL
    ):
        exec(code, names)
        assert capsys.readouterr().out == shown
