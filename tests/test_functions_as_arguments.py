"""A number, or a function of other arguments, where a function is wanted is refused when built."""

# Sees mutants of: checks.

import math

import pytest

import gradtx
from gradtx.names.namespace import homes

SGD = gradtx.sgd(0.1)


def of_eight(a, b, c, d, e, f, g, h):
    return a


def nothing():
    return 1.0


# What takes a schedule, and no number in its place.
SCHEDULES = {
    "scale_by_schedule": gradtx.scale_by_schedule,
    "stretch_schedule": gradtx.stretch_schedule,
    "multiplicative_schedule": lambda v: gradtx.multiplicative_schedule(1.0, v),
    "join_schedules": lambda v: gradtx.join_schedules([lambda count: 0.1, v], [5]),
}

# What takes another function, and so many arguments.
FUNCTIONS = {
    "accumulate": (3, lambda v: gradtx.accumulate(SGD, 2, should_skip_update_fn=v)),
    "multi_steps": (3, lambda v: gradtx.multi_steps(SGD, 2, should_skip_update_fn=v)),
    "adopt": (1, lambda v: gradtx.adopt(lambda count: 0.1, clip_value_fn=v)),
    "scale_by_factored_rms": (2, lambda v: gradtx.scale_by_factored_rms(decay_rate_fn=v)),
    "measure_with_ema": (1, lambda v: gradtx.measure_with_ema(v, 0.9)),
    "monitor": (1, lambda v: gradtx.monitor({"size": v})),
    "snapshot": (1, lambda v: gradtx.snapshot("size", v)),
    "stateless": (2, gradtx.stateless),
    "stateless_with_tree_map": (2, gradtx.stateless_with_tree_map),
    "project": (1, gradtx.project),
    "conditionally_mask": (None, lambda v: gradtx.conditionally_mask(SGD, v)),
    "conditionally_transform": (None, lambda v: gradtx.conditionally_transform(SGD, v)),
    "microbatch": (None, lambda v: gradtx.microbatch(v, 0, 2)),
    "make_fenchel_young_loss": (None, gradtx.make_fenchel_young_loss),
}

DIMENSIONS = [
    name
    for name in homes("gradtx")
    if "weight_dimension_numbers" in getattr(getattr(gradtx, name), "__annotations__", ())
]


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_schedule(name):
    build = SCHEDULES[name]
    with pytest.raises(TypeError, match=rf"{name}: .*constant_schedule\(0.98\) makes one"):
        build(0.98)
    for wrong in ("fast", [0.1], nothing, of_eight, lambda count: "fast"):
        with pytest.raises(TypeError, match=f"{name}: .* must be a"):
            build(wrong)
    build(lambda count: 0.98)


def test_a_wrapped_schedule_may_return_anything():
    """What `inject_hyperparams` calls at each step may be an argument that is no number."""
    with pytest.raises(TypeError, match=r"WrappedSchedule: .*constant_schedule\(0.98\) makes one"):
        gradtx.WrappedSchedule(0.98)
    for wrong in ("fast", [0.1], nothing, of_eight):
        with pytest.raises(TypeError, match="WrappedSchedule: .* must be a"):
            gradtx.WrappedSchedule(wrong)
    schedule = gradtx.WrappedSchedule(lambda count: count > 0)
    assert not schedule(schedule.init())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_function_or_one_of_other_arguments(name):
    count, build = FUNCTIONS[name]
    for wrong in (0.98, [0.1], {"a": 1}):
        with pytest.raises((TypeError, ValueError), match=name):
            build(wrong)
    if count is not None:
        for wrong in (nothing, of_eight):
            with pytest.raises(TypeError, match=f"{name}: .* must be a function of .*argument"):
                build(wrong)
        said = "one argument" if count == 1 else f"{count} arguments"
        with pytest.raises(TypeError, match=f"must be a function of {said}"):
            build(nothing)
    build([None, lambda a: a, lambda a, b: a, lambda a, b, c: (a, b)][count or 1])


def test_a_builtin_without_a_signature_is_a_function():
    gradtx.snapshot("size", max)
    gradtx.monitor({"size": math.fsum})


@pytest.mark.parametrize("wrong", [lambda count: 0.1, nothing])
def test_a_schedule_is_made_of_numbers(wrong):
    for build in (
        lambda v: gradtx.cosine_decay_schedule(v, 10),
        lambda v: gradtx.linear_schedule(0.0, v, 10),
        lambda v: gradtx.warmup_cosine_decay_schedule(0.0, 1.0, 5, 10, end_value=v),
    ):
        with pytest.raises(TypeError, match="must be a number or an array, not a schedule"):
            build(wrong)


def test_labels_by_a_function_of_other_arguments():
    for wrong in (nothing, of_eight):
        with pytest.raises(TypeError, match="partition: param_labels must be .* takes [08] arg"):
            gradtx.partition({"a": SGD}, wrong)


def test_a_mapping_is_wanted():
    for build in (gradtx.monitor, gradtx.qk_clip):
        with pytest.raises(TypeError, match="must be a dict, not 'fast'"):
            build("fast")


@pytest.mark.parametrize("name", DIMENSIONS)
def test_no_dimension_numbers(name):
    build = getattr(gradtx, name)
    given = {"learning_rate": lambda count: 0.1} if not name.startswith("scale_by") else {}
    given = given if "learning_rate" in build.__annotations__ else {}
    for wrong in (0.98, "fast", [1, 2], nothing, of_eight):
        with pytest.raises(TypeError, match=name):
            build(**given, weight_dimension_numbers=wrong)


def test_all_that_take_dimension_numbers_are_found():
    assert {"soap", "shampoo", "kron", "scale_by_muon", "conda", "dion2"} <= set(DIMENSIONS)
    assert len(DIMENSIONS) > 25


def test_the_largest_relative_step_may_be_a_schedule():
    limit = gradtx.linear_schedule(0.4, 0.0, 2)
    schedule = gradtx.relative_step_schedule(limit)
    assert float(schedule(1)) == pytest.approx(0.2)
    assert gradtx.from_config(gradtx.to_config(schedule)) == schedule
    with pytest.raises(ValueError, match="relative_step_schedule: max_value"):
        gradtx.relative_step_schedule(-1.0)
