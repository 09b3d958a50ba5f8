"""Tuned settings as data: each builds its optimizer, and is the one in the results."""

import inspect

import pytest

import gradtx
from gradtx.inspection.tuned import _tuned

# Arguments of the leaderboard's own that stand for an optimizer inside another.
INNER = {"adam_learning_rate"}


@pytest.mark.parametrize("name", sorted(_tuned()))
def test_settings_are_arguments_of_the_optimizer(name):
    found = gradtx.tuned_settings(name)
    assert found.settings
    for setting in found.settings.values():
        assert set(setting) == set(found.ranges)
        for argument, value in setting.items():
            low, high = found.ranges[argument]
            assert low <= value <= high
    if hasattr(gradtx, name):
        build = getattr(gradtx, name)
        known = inspect.signature(build).parameters
        for setting in found.settings.values():
            build(**{k: v for k, v in setting.items() if k in known or k not in INNER})


def test_the_caller_may_change_what_it_got():
    gradtx.tuned_settings("adamw").settings["logistic"]["b1"] = 7.0
    assert gradtx.tuned_settings("adamw").settings["logistic"]["b1"] < 1


def test_unknown_names_are_refused_with_near_ones():
    with pytest.raises(ValueError, match=r"there are no settings of 'adam_w'; try .*adamw"):
        gradtx.tuned_settings("adam_w")
    with pytest.raises(ValueError, match="there are no settings"):
        gradtx.tuned_settings(None)
