"""The whole loop."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx import Status
from gradtx.training.solve import _arrived, _start


def quartic(x):
    return 2 * x**4 + 3 * x**3 + 2


PUBLISHED = [
    # TensorFlow Core guide "Optimizers with Core APIs": outcome and step for each learning rate.
    # It looks at `x`, and says 6 for 1e-1: the loss overflows a step earlier.
    (lambda lr: gradtx.sgd(lr), 1e-3, Status.MAX_STEPS, 2000, 0),
    (lambda lr: gradtx.sgd(lr), 1e-2, Status.MAX_STEPS, 2000, 0),
    (lambda lr: gradtx.sgd(lr), 1e-1, Status.DIVERGED, 5, 0),
    (lambda lr: gradtx.sgd(lr, momentum=0.7), 1e-3, Status.MAX_STEPS, 2000, 0),
    (lambda lr: gradtx.sgd(lr, momentum=0.7), 1e-2, Status.CONVERGED, 80, 2),
    (lambda lr: gradtx.sgd(lr, momentum=0.7), 1e-1, Status.DIVERGED, 5, 0),
    (lambda lr: gradtx.adam(lr, eps=1e-7), 1e-3, Status.MAX_STEPS, 2000, 0),
    (lambda lr: gradtx.adam(lr, eps=1e-7), 1e-2, Status.MAX_STEPS, 2000, 0),
    (lambda lr: gradtx.adam(lr, eps=1e-7), 1e-1, Status.CONVERGED, 1156, 50),
]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("build", "rate", "status", "steps", "rounding"), PUBLISHED)
def test_published_outcomes(build, rate, status, steps, rounding):
    result = gradtx.solve(quartic, 2.0, build(rate), max_steps=2000)
    assert int(result.status) == status
    assert abs(int(result.steps) - steps) <= rounding
    if status == Status.CONVERGED:
        np.testing.assert_allclose(result.params, -1.125, atol=1e-4)


@pytest.mark.slow
def test_tolerance_is_on_the_gradient():
    result = gradtx.solve(lambda x: jnp.sum(x**2), jnp.ones(3), gradtx.sgd(0.1), tol=1e-2)
    assert int(result.status) == Status.CONVERGED
    assert float(jnp.linalg.norm(2 * result.params)) <= 1e-2
    before = gradtx.solve(
        lambda x: jnp.sum(x**2), jnp.ones(3), gradtx.sgd(0.1), max_steps=int(result.steps) - 1
    )
    assert float(jnp.linalg.norm(2 * before.params)) > 1e-2


@pytest.mark.slow
def test_the_path():
    result = gradtx.solve(lambda x: x**2, 1.0, gradtx.sgd(0.25), max_steps=4, record=True)
    np.testing.assert_allclose(result.path.params, [1.0, 0.5, 0.25, 0.125, 0.0625])
    np.testing.assert_allclose(result.path.values, np.square(result.path.params))
    assert int(result.steps) == 4
    np.testing.assert_allclose(result.value, 0.0625**2)


@pytest.mark.slow
def test_what_a_line_search_has_found_is_not_computed_again():
    """The last value is that of the last point; a path of vectors, of odd length."""
    calls = []

    def loss(x):
        jax.debug.callback(lambda: calls.append(None))
        return jnp.sum((x - 1) ** 4)

    def solved(tx, max_steps):
        calls.clear()
        found = gradtx.solve(loss, jnp.zeros(2), tx, max_steps=max_steps, record=True)
        jax.effects_barrier()
        return found, len(calls)

    found, searched = solved(gradtx.lbfgs(), 4)
    np.testing.assert_allclose(found.value, jnp.sum((found.params - 1) ** 4), rtol=1e-6)
    np.testing.assert_array_equal(found.path.params[-1], found.params)
    # A link after the search would have moved the point: its value and gradient are computed there.
    moved, again = solved(gradtx.chain(gradtx.lbfgs(), gradtx.identity()), 4)
    np.testing.assert_array_equal(moved.params, found.params)
    assert again == searched + 4


@pytest.mark.slow
def test_the_path_stands_still_after_the_end():
    result = gradtx.solve(lambda x: (x - 1) ** 2, 0.0, gradtx.sgd(0.5), max_steps=6, record=True)
    assert int(result.status) == Status.CONVERGED
    np.testing.assert_array_equal(result.path.params, [0, 1, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(result.path.values, [1, 0, 0, 0, 0, 0, 0])


def test_arguments_and_part_of_the_parameters():
    def loss(p, target):
        return (p["a"] - target) ** 2 + (p["b"] - target) ** 2

    start = {"a": 0.0, "b": 0.0}
    result = gradtx.solve(loss, start, gradtx.sgd(0.5), 3.0, trainable="a")
    assert {k: float(v) for k, v in result.params.items()} == {"a": 3.0, "b": 0.0}


def test_no_step():
    result = gradtx.solve(lambda x: x**2, 3.0, gradtx.sgd(0.1), max_steps=0)
    assert (float(result.params), int(result.steps)) == (3.0, 0)


@pytest.mark.slow
def test_it_compiles_once_for_other_numbers():
    traces = []

    def loss(x, target):
        traces.append(None)
        return (x - target) ** 2

    gradtx.solve(loss, 0.0, gradtx.sgd(jnp.float32(0.1)), 1.0, max_steps=3)
    first = len(traces)
    gradtx.solve(loss, 5.0, gradtx.sgd(jnp.float32(0.2)), 2.0, max_steps=3)
    assert len(traces) == first


@pytest.mark.slow
def test_under_jit_and_vmap():
    def best(target):
        return gradtx.solve(lambda x: (x - target) ** 2, 0.0, gradtx.sgd(0.5)).params

    np.testing.assert_allclose(jax.jit(jax.vmap(best))(jnp.arange(3.0)), [0.0, 1.0, 2.0])


def test_a_clip_makes_a_step_of_an_infinite_gradient():
    tx = gradtx.chain(gradtx.clip(1.0), gradtx.sgd(1.0))
    result = gradtx.solve(lambda x: jnp.sqrt(jnp.abs(x)), 0.0, tx, max_steps=1)
    assert int(result.status) != Status.DIVERGED
    assert abs(float(result.params)) == 1


@pytest.mark.quick(1)
@pytest.mark.parametrize("tx", [gradtx.sgd(0.1), gradtx.lbfgs()], ids=["sgd", "lbfgs"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_divergence(tx, value):
    """The gradients are finite: only the value says it."""

    def loss(x, limit):
        return jnp.where(x < limit, x**2, jax.lax.stop_gradient(jnp.full_like(x, value)) + x)

    result = gradtx.solve(loss, 1.0, tx, 0.0, tol=1e-6)
    assert (int(result.status), int(result.steps), float(result.params)) == (2, 1, 1.0)
    fine = gradtx.solve(loss, 1.0, tx, 2.0, tol=1e-3)
    assert int(fine.status) == Status.CONVERGED


@pytest.mark.slow
def test_divergence_at_the_last_step():
    """The first step leaves the domain of the loss; the second would start there."""

    def loss(x):
        return -jnp.log(x) + x

    two = gradtx.solve(loss, 0.5, gradtx.sgd(-1.0), max_steps=2)
    one = gradtx.solve(loss, 0.5, gradtx.sgd(-1.0), max_steps=1)
    assert (int(two.status), int(two.steps)) == (Status.DIVERGED, 2)
    assert (int(one.status), int(one.steps)) == (Status.DIVERGED, 1)


RNG = np.random.default_rng(3)
FEATURES, TARGETS = RNG.normal(size=(50, 20)), RNG.normal(size=50)


def ridge(x, penalty):
    return jnp.mean((FEATURES @ x - TARGETS) ** 2) + penalty * jnp.sum(x**2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lbfgs", "bfgs", "lbfgsb"])
def test_it_stops_where_nothing_moves(name):
    """At the solution a search moves by roundings, for ever."""
    with jax.enable_x64(True):
        start = jnp.zeros(20)
        result = gradtx.solve(ridge, start, getattr(gradtx, name)(), 1.0, max_steps=300)
        slope = jnp.linalg.norm(jax.grad(ridge)(result.params, 1.0))
    assert int(result.status) == Status.CONVERGED
    assert int(result.steps) <= 100
    assert float(slope) < 1e-15


def test_drift_by_roundings_is_no_end():
    """Each step moves one rounding, and the loss is too large to show it."""
    tx = gradtx.sgd(2.0**-23)
    result = gradtx.solve(lambda x: 1e6 - x, 1.0, tx, max_steps=50)
    assert (int(result.status), int(result.steps)) == (Status.MAX_STEPS, 50)
    np.testing.assert_array_equal(result.params, np.float32(1 + 50 * 2.0**-23))


@pytest.mark.slow
@pytest.mark.parametrize("where", ["an argument", "a closure", "a rate", "the start"])
def test_the_solution_is_not_differentiated(where):
    """Its steps have derivatives, of which some are far from that of the solution."""

    def solution(t):
        rate = t if where == "a rate" else 0.25
        target = t if where == "an argument" else 3.0

        def loss(x, target):
            return (x - target - (t if where == "a closure" else 0.0)) ** 2

        start = t if where == "the start" else 0.0
        return gradtx.solve(loss, start, gradtx.sgd(rate), target, max_steps=4).params

    for derivative in (jax.grad, jax.jacfwd, lambda f: jax.jit(jax.grad(f))):
        with pytest.raises(TypeError, match="solve: .*implicit=True.*stop_gradient.*unrolled=True"):
            derivative(solution)(0.25)
    fixed = jax.grad(lambda t: t * solution(jax.lax.stop_gradient(t)))(0.25)
    np.testing.assert_allclose(fixed, solution(0.25), rtol=1e-6)


@pytest.mark.parametrize("bad", [{"max_steps": -1}, {"max_steps": 1.5}, {"tol": -1.0}])
def test_bad_limits(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        gradtx.solve(lambda x: x**2, 1.0, gradtx.sgd(0.1), **bad)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("tx", "start"),
    [
        (gradtx.rprop(1.0), [1.25, -3.0]),
        (gradtx.rprop(1.0), [1.25, 3.25]),
        (gradtx.apply_every(2), [1.25, -3.0]),
        (gradtx.accumulate(gradtx.sgd(0.25), 2), [1.25, -3.0]),
        (gradtx.accumulate(gradtx.sgd(0.25), 5), [1.25, -3.0]),
        (gradtx.adopt(gradtx.linear_schedule(0.0, 0.1, 10)), [1.25, -3.0]),
    ],
    ids=["rprop", "all signs change", "apply_every", "accumulate", "five", "a late first step"],
)
def test_a_step_that_waits_is_not_the_end(tx, start):
    """Rprop takes no step where the sign changed, here in both entries at once."""
    if tx.declaration.name == "apply_every":
        tx = gradtx.chain(gradtx.sgd(0.1), tx)
    result = gradtx.solve(lambda x: jnp.sum(x**2), jnp.array(start), tx, max_steps=400)
    assert int(result.steps) > 5
    np.testing.assert_allclose(result.params, 0, atol=1e-2)


@pytest.mark.slow
def test_a_parameter_may_have_the_name_of_a_count():
    params, tx = {"mini_step": jnp.zeros(3)}, gradtx.sgd(0.1, momentum=0.5)
    result = gradtx.solve(lambda p: jnp.sum((p["mini_step"] - 1) ** 2), params, tx)
    np.testing.assert_allclose(result.params["mini_step"], 1, rtol=1e-5)


@pytest.mark.slow
def test_a_search_in_a_group_sees_what_other_groups_did():
    """Along the line the loss is that of the parameters now, not of those at the start."""
    search = gradtx.chain(gradtx.sgd(0.5), gradtx.scale_by_backtracking_linesearch(5))
    tx = gradtx.partition({"x": search, "y": gradtx.sgd(0.25)}, {"a": "x", "b": "y"})
    result = gradtx.solve(
        lambda p: (p["a"] - p["b"]) ** 2 + p["b"] ** 2, {"a": 0.0, "b": 8.0}, tx, max_steps=40
    )
    np.testing.assert_allclose([result.params["a"], result.params["b"]], 0.0, atol=1e-3)


@pytest.mark.slow
def test_bounds_of_a_group_bind_no_other():
    params = {"a": jnp.array([-1.0, 2.0]), "b": jnp.array([-3.0])}
    grads = {"a": jnp.array([1.0, 0.0]), "b": jnp.array([0.5])}
    bounded = gradtx.lbfgsb(lower=0.0)
    group = gradtx.partition({"x": bounded, "y": gradtx.sgd(0.1)}, {"a": "x", "b": "y"})
    for tx in (group, gradtx.chain(gradtx.masked(bounded, "a"), gradtx.masked(group, "b"))):
        start = _start(tx, params, None)
        assert start["a"].tolist() == [0.0, 2.0]
        assert start["b"].tolist() == [-3.0]
        assert not _arrived(tx, 0.4, start, grads)
        assert _arrived(tx, 0.6, start, grads)


def valley(x):
    return jnp.sum((x - 3.0) ** 2) + 1.0


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("rule", "reason", "steps"),
    [
        # The distance halves at each step: 3, 1.5, ...; the loss is 1 + its square.
        ({"fatol": 0.03}, "FTOL", 5),
        ({"ftol": 0.03}, "FTOL", 5),
        ({"xatol": 0.2}, "XTOL", 4),
        ({"xtol": 0.1}, "XTOL", 4),
        ({"tol": 0.2}, "TOL", 5),
        ({"max_steps": 2}, "MAX_STEPS", 2),
    ],
)
def test_which_rule_stops_it(rule, reason, steps):
    result = gradtx.solve(valley, 0.0, gradtx.sgd(0.25), **rule)
    assert gradtx.StopReason(int(result.reason)).name == reason
    assert int(result.steps) == steps
    converged = reason != "MAX_STEPS"
    assert int(result.status) == (Status.CONVERGED if converged else Status.MAX_STEPS)


def test_the_rules_by_hand():
    """What the steps above are."""
    distance = 3.0 * 0.5 ** np.arange(8)
    loss = 1 + distance**2
    change, moved = -np.diff(loss), -np.diff(distance)
    # The change of the loss is seen when the next is evaluated.
    assert np.argmax(change <= 0.03) + 1 == np.argmax(change <= 0.03 * loss[:-1]) + 1 == 5
    assert np.argmax(moved <= 0.2) + 1 == np.argmax(moved <= 0.1 * (3 - distance[:-1])) + 1 == 4
    assert np.argmax(2 * distance <= 0.2) == 5


@pytest.mark.slow
def test_a_step_that_waits_is_no_small_change():
    tx = gradtx.accumulate(gradtx.sgd(0.25), 2)
    result = gradtx.solve(valley, 0.0, tx, ftol=1e-3, xtol=1e-3)
    np.testing.assert_allclose(result.params, 3.0, atol=0.1)


@pytest.mark.slow
def test_what_diverges_or_stands_still_says_so():
    still = gradtx.solve(valley, 0.0, gradtx.sgd(0.5))
    assert int(still.reason) == gradtx.StopReason.STILL
    wild = gradtx.solve(lambda x: x**4, 10.0, gradtx.sgd(1.0))
    assert int(wild.reason) == gradtx.StopReason.DIVERGED


@pytest.mark.parametrize("name", ["tol", "ftol", "xtol", "fatol", "xatol"])
def test_negative_tolerances(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 0"):
        gradtx.solve(valley, 0.0, gradtx.sgd(0.1), **{name: -1.0})


@pytest.mark.parametrize(
    ("tolerance", "error", "words"),
    [
        (np.array(-1.0), ValueError, "xtol must be at least 0"),
        (np.ones(2), ValueError, r"xtol must be one number, not of the shape \(2,\)"),
        ("1e-3", TypeError, "xtol must be a number or None"),
        (True, TypeError, "xtol must be a number or None"),
    ],
)
def test_what_is_no_tolerance(tolerance, error, words):
    with pytest.raises(error, match=words):
        gradtx.solve(valley, 0.0, gradtx.sgd(0.1), xtol=tolerance)


def test_a_tolerance_may_be_traced():
    steps = jax.jit(lambda tol: gradtx.solve(valley, 0.0, gradtx.sgd(0.25), xtol=tol).steps)
    assert int(steps(0.1)) == 4


@pytest.mark.slow
@pytest.mark.parametrize("x64", [False, True])
def test_integers_to_start_from(x64):
    """A Python number is a float; an array of integers is no parameter; one of others stays."""

    def loss(p, targets):
        return (p["x"] - targets[p["i"]]) ** 2

    targets = jnp.array([1.0, 2.0, 4.0])
    with jax.enable_x64(x64):
        start = {"x": 0, "i": 1}
        result = gradtx.solve(loss, start, gradtx.sgd(0.5), targets, trainable="x")
        assert (float(result.params["x"]), result.params["i"]) == (2.0, 1)
        with pytest.raises(TypeError, match="the parameter at 'x' is int"):
            gradtx.solve(loss, {"x": jnp.array(0)}, gradtx.sgd(0.5), targets)


@pytest.mark.slow
def test_what_swings_is_not_still():
    """After ten steps of equal length this one is where it was, on its way back."""
    tx = gradtx.mars_lion(0.02)
    solution = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    assert int(solution.steps) == 200
    assert solution.reason == gradtx.StopReason.MAX_STEPS


def test_a_solution_is_printed_in_a_line():
    result = gradtx.Solution(
        jnp.ones(2), (), jnp.float32(0.5), jnp.int32(3), jnp.int32(1), None, jnp.int32(2)
    )
    assert repr(result) == str(result)
    assert repr(result).startswith(
        "Solution(status=CONVERGED, reason=TOL, steps=3, value=0.5, fields=params, state, "
    )
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), result)
    assert "status=[1 1], reason=[2 2], steps=[3 3]" in repr(stacked)
    jax.eval_shape(lambda result: str(result) and result, result)


def test_what_is_frozen_and_no_number_hides_nothing():
    params = {"x": jnp.zeros(1), "mask": jnp.array([jnp.nan])}

    def loss(p):
        return jnp.sum((p["x"] - 1) ** 2)

    found = gradtx.solve(loss, params, gradtx.sgd(0.5), trainable="x", max_steps=10)
    assert (found.reason, found.steps) == (gradtx.StopReason.STILL, 2)


@pytest.mark.slow
def test_a_loss_without_a_hash():
    @dataclasses.dataclass
    class Distance:
        target: float

        def __call__(self, x):
            return jnp.sum((x - self.target) ** 2)

    loss = Distance(1.0)
    assert gradtx.solve(loss, jnp.zeros(1), gradtx.sgd(0.5)).params.tolist() == [1.0]
    loss.target = 2.0
    assert gradtx.solve(loss, jnp.zeros(1), gradtx.sgd(0.5)).params.tolist() == [2.0]


@pytest.mark.slow
def test_a_gradient_that_rounding_of_the_parameters_loses_is_above_the_tolerance():
    """Between bounds it is on the change that the gradient would make: 1000 - 1e-5 is 1000."""

    def loss(x):
        return 0.5e-4 * jnp.sum((x - 1000) ** 2)

    for bounds in ({}, {"lower": 0.0, "upper": 2000.0}):
        found = gradtx.solve(loss, jnp.array([999.8]), gradtx.lbfgsb(**bounds), tol=1e-8)
        assert found.status == gradtx.Status.CONVERGED
        np.testing.assert_array_equal(found.params, 1000)
