"""Hyperparameters by name."""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx.types import StateOf

P = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}


def after(tx, steps):
    state = tx.init(P)
    for _ in range(steps):
        _, state = tx.update(P, state, P)
    return state


@pytest.mark.slow
def test_hyperparameters_are_those_of_the_next_step():
    tx = gradtx.named_chain(
        ("clip", gradtx.clip(1.0)),
        ("adam", gradtx.adam(gradtx.linear_schedule(1.0, 0.0, 10), b1=0.5)),
    )
    values = gradtx.hyperparams(tx, after(tx, 3))
    assert values["clip.max_delta"] == 1.0
    assert values["adam.b1"] == 0.5
    np.testing.assert_allclose(values["adam.learning_rate"], 0.7, rtol=1e-6)
    np.testing.assert_allclose(gradtx.hyperparams(tx)["adam.learning_rate"], 1.0)


def test_masked_and_nested():
    tx = gradtx.chain(gradtx.masked(gradtx.sgd(0.1), "w"), gradtx.chain(gradtx.scale(2.0)))
    values = gradtx.hyperparams(tx, tx.init(P))
    assert values == {
        "0.inner.learning_rate": 0.1,
        "0.inner.momentum": None,
        "0.inner.dampening": None,
        "1.0.step_size": 2.0,
    }


FALLING = gradtx.linear_schedule(1.0, 0.0, 10)
GROUPS = {
    "slow": gradtx.masked(gradtx.chain(gradtx.clip(1.0), gradtx.sgd(FALLING)), "w"),
    "fast": gradtx.adamw(0.1),
}
BY_GROUP = [("b", "fast"), ("*", "slow")]
# A rate that falls, wherever it is, and its steps after four calls.
DEPTHS = {
    "alone": (gradtx.adam(FALLING), 4),
    "chain": (gradtx.chain(gradtx.clip(1.0), gradtx.adam(FALLING)), 4),
    "named": (gradtx.named_chain(("clip", gradtx.clip(1.0)), ("adam", gradtx.adam(FALLING))), 4),
    "wrapped": (gradtx.apply_if_finite(gradtx.chain(gradtx.adam(FALLING)), 2), 4),
    "codec": (gradtx.store(gradtx.adamw(FALLING), "bf16", min_size=1), 4),
    "window": (gradtx.guard(gradtx.accumulate(gradtx.adam(FALLING), 2)), 2),
    "object": (gradtx.MultiSteps(gradtx.adam(FALLING), 2), 2),
    "injected": (gradtx.chain(gradtx.inject_hyperparams(gradtx.adam)(FALLING)), 4),
    "optax, injected": (optax.inject_hyperparams(optax.sgd)(0.6), 4),
    "behind another library's": (gradtx.chain(optax.apply_every(3), gradtx.sgd(FALLING)), 4),
    "between others": (
        gradtx.masked(
            gradtx.chain(optax.apply_every(3), gradtx.adam(FALLING), optax.scale(2.0)), "w"
        ),
        4,
    ),
    "group": (gradtx.chain(gradtx.partition({"all": gradtx.sgd(FALLING)}, [("*", "all")])), 4),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("where", DEPTHS)
def test_a_rate_at_any_depth_has_one_short_name(where):
    tx, steps = DEPTHS[where]
    found = gradtx.hyperparams(tx, after(gradtx.with_extra_args_support(tx), 4))
    np.testing.assert_allclose(found["learning_rate"], 1 - steps / 10, rtol=1e-6)


def test_each_of_two_transformations_in_a_wrapper_has_its_own_step():
    tx = gradtx.sam(gradtx.sgd(FALLING), gradtx.sgd(FALLING), reset_state=False)
    found = gradtx.hyperparams(tx, after(tx, 5))
    rates = found["optimizer.learning_rate"], found["adv_optimizer.learning_rate"]
    np.testing.assert_allclose(rates, [0.8, 0.7], rtol=1e-6)
    falling = gradtx.sgd(FALLING)
    tx = gradtx.diloco(falling, falling, 2, "data")
    state = tx.init(P)._replace(inner_state=after(falling, 4), outer_state=after(falling, 2))
    found = gradtx.hyperparams(tx, state)
    rates = found["inner.learning_rate"], found["outer.learning_rate"]
    np.testing.assert_allclose(rates, [0.6, 0.8], rtol=1e-6)


class TwoStates(NamedTuple):
    first_state: Annotated[Any, StateOf("second")]
    then: Annotated[Any, StateOf("first")]


def test_the_mark_of_a_state_says_whose_it_is_and_not_the_name_of_its_field():
    @gradtx.transformation
    def one_of(first: gradtx.GradientTransformation, second: gradtx.GradientTransformation):
        def init(params):
            return TwoStates(second.init(params), first.init(params))

        return gradtx.GradientTransformation(init, lambda g, s, params=None, **_: (g, s))

    falling = gradtx.sgd(FALLING)
    state = TwoStates(after(falling, 4), after(falling, 2))
    found = gradtx.hyperparams(one_of(falling, falling), state)
    rates = found["first.learning_rate"], found["second.learning_rate"]
    np.testing.assert_allclose(rates, [0.8, 0.6], rtol=1e-6)


@pytest.mark.parametrize("inner", [gradtx.sgd(0.1), gradtx.apply_if_finite(gradtx.adam(0.1), 9)])
@pytest.mark.parametrize("builder", [gradtx.accumulate, gradtx.multi_steps])
def test_the_length_of_a_window_goes_by_the_windows_so_far(builder, inner):
    """What is inside counts no steps, or fewer: of a NaN it makes none."""
    tx = builder(inner, lambda windows: jnp.where(windows == 0, 1, 3))
    _, state = tx.update(jnp.array([jnp.nan]), tx.init(jnp.ones(1)))
    length = next(iter(gradtx.hyperparams(tx, state).values()))
    ended = []
    for _ in range(3):
        _, state = tx.update(jnp.ones(1), state)
        ended.append(bool(gradtx.has_updated(state)))
    assert ended == [False, False, True]
    assert int(length) == len(ended)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("name", "wrapped"),
    [
        ("b1", lambda base: gradtx.schedule_free(base, 0.1, b1=lambda t: 0.9 + t / 100)),
        ("weight_decay", lambda base: gradtx.mechanize(base, lambda t: 0.9 + t / 100)),
    ],
)
def test_a_schedule_of_a_wrapper_goes_by_its_own_steps(name, wrapped):
    tx = wrapped(gradtx.apply_if_finite(gradtx.adam(0.1), 9))
    params, state = jnp.ones(1), tx.init(jnp.ones(1))
    for g in (1.0, np.nan, 1.0):
        _, state = tx.update(jnp.array([g]), state, params)
    assert float(gradtx.hyperparams(tx, state)[name]) == pytest.approx(0.93, rel=1e-6)


@pytest.mark.slow
def test_the_rate_of_a_group_has_the_name_of_the_group():
    tx = gradtx.guard(gradtx.accumulate(gradtx.partition(GROUPS, BY_GROUP), 2))
    found = gradtx.hyperparams(tx, after(tx, 4))
    np.testing.assert_allclose(found["slow.learning_rate"], 0.8, rtol=1e-6)
    assert found["fast.learning_rate"] == 0.1
    assert found.get("middle.learning_rate") is None
    with pytest.raises(KeyError, match="occurs at .*slow.*fast"):
        found["learning_rate"]
    assert "slow.learning_rate" in found
    assert "learning_rate" not in found
    assert "middle.learning_rate" not in found
    slower = gradtx.replace(tx, {"fast.learning_rate": 0.01})
    assert gradtx.hyperparams(slower)["fast.learning_rate"] == 0.01
    assert gradtx.hyperparams(slower)["transforms.fast.learning_rate"] == 0.01
    assert float(gradtx.hyperparams(slower)["transforms.slow.learning_rate"]) == 1.0


def test_one_value_for_all_groups():
    tx = gradtx.partition({"a": gradtx.adam(0.1), "b": gradtx.sgd(0.2)}, [("w", "a"), ("*", "b")])
    with pytest.raises(ValueError, match="occurs at") as error:
        gradtx.replace(tx, learning_rate=0.5)
    assert str(error.value) == (
        "replace: 'learning_rate' occurs at transforms.a.learning_rate, "
        "transforms.b.learning_rate: give the path, or {'*.learning_rate': ...} for all of that "
        "name"
    )
    new = gradtx.replace(tx, {"*.learning_rate": 0.5, "a.b1": 0.8})
    assert new == gradtx.partition(
        {"a": gradtx.adam(0.5, b1=0.8), "b": gradtx.sgd(0.5)}, [("w", "a"), ("*", "b")]
    )
    with pytest.raises(ValueError, match=r"'\*.rate' does not exist"):
        gradtx.replace(tx, {"*.rate": 0.5})
    alone = gradtx.replace(gradtx.adam(0.1), {"*.learning_rate": 0.5})
    assert alone == gradtx.adam(0.5)


@pytest.mark.parametrize("labels", [("first", "second.last"), (1, 2)])
def test_a_group_goes_by_its_own_steps_whatever_its_label(labels):
    """Groups of which one has skipped the steps with NaN."""
    first, second = labels
    tx = gradtx.partition(
        {label: gradtx.apply_if_finite(gradtx.sgd(FALLING), 9) for label in labels},
        {"w": first, "b": second},
    )
    _, state = tx.update(P, tx.init(P), P)
    _, state = tx.update({**P, "b": jnp.full(3, jnp.nan)}, state, P)
    found = gradtx.hyperparams(tx, state)
    rates = [found[f"transforms.{label}.inner.learning_rate"] for label in labels]
    np.testing.assert_allclose(rates, [0.8, 0.9], rtol=1e-6)


def test_what_is_injected_is_that_of_the_next_step_too():
    """Under its name; a number that was replaced in the state, and an object with a state."""
    given = {"learning_rate": gradtx.WrappedSchedule(FALLING), "b1": 0.5, "b2": lambda: 0.25}
    tx = gradtx.inject_hyperparams(gradtx.adam)(**given)
    state = after(tx, 3)
    state.hyperparams["b1"] = 0.75
    found = gradtx.hyperparams(tx, state)
    assert (found["b1"], float(found["b2"]), found["eps"]) == (0.75, 0.25, np.float32(1e-8))
    np.testing.assert_allclose(found["learning_rate"], 0.7, rtol=1e-6)
    np.testing.assert_allclose(gradtx.hyperparams(tx, tx.init(P))["learning_rate"], 1.0)


PLATEAU = gradtx.reduce_on_plateau(0.5, patience=1)


@pytest.mark.parametrize(
    ("tx", "want"),
    [
        (gradtx.chain(gradtx.sgd(0.4), PLATEAU), {"0": 0.1}),
        (gradtx.chain(gradtx.sgd(FALLING), PLATEAU), {"0": 0.7 / 4}),
        (gradtx.named_chain(("a", gradtx.sgd(0.4)), ("b", PLATEAU)), {"a": 0.1}),
        (
            gradtx.chain(gradtx.chain(gradtx.sgd(0.4), PLATEAU), PLATEAU),
            {"0.0": 0.1 / 4},
        ),
        (gradtx.chain(PLATEAU, gradtx.scale_by_learning_rate(0.4)), {"1": 0.1}),
        (gradtx.chain(PLATEAU, gradtx.adam(0.4)), {"1": 0.4}),
        (
            gradtx.chain(
                gradtx.partition(
                    {"a": gradtx.sgd(0.4), "b": gradtx.sgd(0.8)}, {"w": "a", "b": "b"}
                ),
                PLATEAU,
            ),
            {"0.transforms.a": 0.1, "0.transforms.b": 0.2},
        ),
        (
            gradtx.chain(gradtx.sgd(0.4), gradtx.share_value(PLATEAU, "data"), gradtx.clip(1.0)),
            {"0": 0.1},
        ),
    ],
)
def test_a_learning_rate_is_the_one_in_force(tx, want):
    """After three values alike, of which the last two halve it."""
    state = tx.init(P)
    for _ in range(3):
        _, state = tx.update(P, state, P, value=1.0)
    found = gradtx.hyperparams(tx, state)
    rates = {path: rate for path, rate in found.items() if path.endswith("learning_rate")}
    assert rates == {f"{path}.learning_rate": pytest.approx(rate) for path, rate in want.items()}
    assert gradtx.hyperparams(tx) == gradtx.hyperparams(tx, tx.init(P))


def test_a_rate_after_another_factor_is_reduced_too():
    tx = gradtx.chain(PLATEAU, gradtx.scale(2.0), gradtx.scale_by_learning_rate(0.1))
    state = tx.init(0.0)
    for _ in range(2):
        _, state = tx.update(1.0, state, 0.0, value=1.0)
    assert gradtx.hyperparams(tx, state)["learning_rate"] == 0.05
    clipped = gradtx.chain(PLATEAU, gradtx.clip(1.0), gradtx.scale_by_learning_rate(0.1))
    assert gradtx.hyperparams(clipped, state)["learning_rate"] == 0.1


def test_a_group_is_not_reduced_by_the_plateau_of_another():
    tx = gradtx.partition(
        {"a": gradtx.sgd(0.4), "b": gradtx.chain(gradtx.sgd(0.4), PLATEAU)}, {"w": "a", "b": "b"}
    )
    state = tx.init(P)
    for _ in range(2):
        _, state = tx.update(P, state, P, value=1.0)
    found = gradtx.hyperparams(tx, state)
    assert float(found["a.learning_rate"]) == 0.4
    assert float(found["b.0.learning_rate"]) == pytest.approx(0.2)


def test_the_value_of_a_schedule_that_is_a_link():
    tx = gradtx.chain(gradtx.scale_by_adam(), gradtx.scale_by_schedule(FALLING))
    found = gradtx.hyperparams(tx, after(tx, 4))["step_size_fn"]
    np.testing.assert_allclose(found, 0.6, rtol=1e-6)


class TestReplace:
    tx = gradtx.chain(gradtx.trace(0.9), gradtx.clip(1.0), gradtx.trace(0.5))

    def test_by_name(self):
        assert gradtx.replace(gradtx.adam(0.1), learning_rate=0.2) == gradtx.adam(0.2)
        assert gradtx.replace(self.tx, max_delta=2.0).expansion is not self.tx.expansion
        assert "clip(max_delta=2.0)" in repr(gradtx.replace(self.tx, max_delta=2.0))

    def test_by_path(self):
        new = gradtx.replace(self.tx, {"2.decay": 0.6})
        assert new == gradtx.chain(gradtx.trace(0.9), gradtx.clip(1.0), gradtx.trace(0.6))

    def test_the_old_state_goes_on(self):
        tx = gradtx.adam(0.1)
        state = after(tx, 2)
        updates, _ = tx.update(P, state, P)
        halved, _ = gradtx.replace(tx, learning_rate=0.05).update(P, state, P)
        np.testing.assert_allclose(halved["b"], updates["b"] / 2, rtol=1e-6)

    def test_groups_whose_names_are_in_any_order(self):
        """Only the group that is named changes."""
        labels = [("b", "fast"), ("*", "slow")]

        def made(slow, fast):
            return gradtx.partition({"slow": gradtx.sgd(slow), "fast": gradtx.adam(fast)}, labels)

        new = gradtx.replace(made(0.1, 0.9), {"transforms.fast.learning_rate": 0.5})
        assert new == made(0.1, 0.5)
        assert gradtx.replace(new, {"slow.learning_rate": 0.2}) == made(0.2, 0.5)

    def test_refused(self):
        with pytest.raises(ValueError, match="occurs at 0.decay, 2.decay"):
            gradtx.replace(self.tx, decay=0.1)
        with pytest.raises(ValueError, match="'rate' does not exist"):
            gradtx.replace(self.tx, rate=0.1)
        with pytest.raises(ValueError, match="clip: max_delta"):
            gradtx.replace(self.tx, max_delta=-1.0)
        with pytest.raises(TypeError, match="does not know its arguments.*gradtx.schedule"):
            gradtx.replace(lambda count: 0.1, rate=0.1)

    def test_a_schedule(self):
        schedule = gradtx.linear_schedule(0.0, 1.0, 10)
        assert gradtx.replace(schedule, end_value=2.0) == gradtx.linear_schedule(0.0, 2.0, 10)
        with pytest.raises(ValueError, match="'steps' does not exist.*transition_steps"):
            gradtx.replace(schedule, steps=20)


def test_traced_hyperparameters_print():
    seen = []
    jax.jit(lambda rate: seen.append(repr(gradtx.sgd(rate))) or rate)(0.1)
    assert seen == ["sgd(learning_rate=<traced float32[]>)"]


def test_a_name_that_occurs_once_is_found_by_get_too():
    found = gradtx.hyperparams(gradtx.chain(gradtx.trace(0.5), gradtx.ema(0.9), gradtx.sgd(0.1)))
    assert found.get("learning_rate") == found["learning_rate"] == 0.1
    assert found.get("rate", 3.0) == 3.0
    assert found.get("decay") is None  # of two


@pytest.mark.parametrize("build", [gradtx.adan, gradtx.simplified_ademamix])
def test_a_count_of_another_name_is_the_clock_too(build):
    tx, p = build(0.1, b1=gradtx.linear_schedule(0.9, 0.5, 4)), jnp.ones(2)
    state = tx.init(p)
    for _ in range(4):
        _, state = tx.update(p, state, p)
    assert float(gradtx.hyperparams(tx, state)["b1"]) == pytest.approx(0.5)


def test_what_is_within_a_wrapper_with_a_schedule_has_its_own_state():
    """Such a wrapper's state is beside a count of steps."""
    inner = gradtx.chain(gradtx.sgd(0.4), gradtx.reduce_on_plateau(0.5, patience=1))
    tx, p = gradtx.lookahead(inner, 5, lambda count: 0.5), jnp.zeros(1)
    state = tx.init(p)
    for _ in range(3):
        _, state = tx.update(jnp.ones(1), state, p, value=1.0)
    assert float(gradtx.hyperparams(tx, state)["learning_rate"]) == pytest.approx(0.1)
