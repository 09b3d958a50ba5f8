"""Regular expressions of other libraries: Python's verdict, or a refusal, in bounded time."""

import re
import time

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import gradtx
from gradtx.interop import expressions

ATOMS = [
    "a",
    "b",
    "/",
    ".",
    "[ab]",
    "[^a]",
    r"\d",
    r"\w",
    r"\.",
    "1",
    "^",
    "$",
    "[]a]",
    "{",
    "-",
    r"\b",
    r"\Z",
]
PATTERNS = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: (
        st.lists(inner, max_size=3).map("".join)
        | st.tuples(inner, inner).map("|".join)
        | st.tuples(
            st.sampled_from(["({})", "(?:{})", "(?={})", "(?!{})", "(?P<n>{})"]),
            inner,
            st.sampled_from(["", "*", "+", "?", "*?", "{2}", "{1,}", "{,2}", "{0,3}?"]),
        ).map(lambda t: t[0].replace("{}", t[1]) + t[2])
    ),
    max_leaves=6,
)


SLOW = [
    "(a+)+b",
    "(a|a)*b",
    "(a*)*b",
    "(.*)*(.*)*(.*)*b",
    "a*" * 30 + "b",
    "a?" * 30 + "a" * 30,
    "(a|a)" * 30 + "b",
    "((a{,99}){,99})*b",
    "((a{,}){,}){,}b",
    "(?=(a+)+b)",
    "(?:(?:){9999}){9999}",
    "(" * 60 + "a" + ")*" * 60,
    "(" * 60 + "a" + ")?" * 60,
]


def outcome(match, pattern, text):
    """What a match says, and the seconds of processor time that it took."""
    start = time.process_time()
    try:
        found = match(pattern, text)
    except re.error as error:
        found = str(error)
    return found, time.process_time() - start


@pytest.mark.slow
@hypothesis.given(PATTERNS, st.sampled_from(["", "(?i)", "(?sm)"]), st.text("aB/1.{\n", max_size=5))
@hypothesis.settings(max_examples=200, deadline=None)
def test_any_pattern_is_answered_or_refused_in_bounded_time(pattern, flags, text):
    pattern = flags + pattern
    try:
        wanted = bool(re.fullmatch(pattern, text)), bool(re.search(pattern, text))
    except re.error:  # two groups of one name
        hypothesis.reject()
    for match, want in zip((expressions.fullmatch, expressions.search), wanted, strict=True):
        found, _ = outcome(match, pattern, text)
        assert found is want or "might take too long" in found
        _, seconds = outcome(match, pattern, "a" * 200)
        assert seconds < 5


@pytest.mark.parametrize("pattern", SLOW)
def test_what_might_take_for_ever_is_refused_by_name(pattern):
    for match in (expressions.fullmatch, expressions.search):
        found, seconds = outcome(match, pattern, "a" * 200)
        assert "might take too long" in found
        assert pattern[:40] in found
        assert seconds < 1


@pytest.mark.parametrize(
    "pattern",
    ["(a|a)" * 14 + "b", "a*a*a*c", "a?" * 15 + "a" * 199 + "b", "(?:.{0,999}b)?", "(x|a){15}b"],
)
def test_the_most_that_is_taken_is_done_in_a_second_or_so(pattern):
    found, seconds = outcome(expressions.fullmatch, pattern, "a" * 200)
    assert found in (True, False)
    assert seconds < 5


@pytest.mark.parametrize(
    ("pattern", "text", "steps", "ways"),
    [
        ("ab", "", 3, 1),
        ("a|bc", "", 2 + 3, 2),
        ("a{0,9}", "aa", 1 + 10, 3),  # it ends at one of three places
        ("a{2,4}", "a" * 10, 1 + 5, 3),
        ("a{,3}", "a" * 10, 1 + 4, 4),
        (".*b", "aba", 1 + 4 + 1, 1),  # only before a "b"
        (".*abc*", "ababaa", 1 + 7 + 2 + 2 + 2 * 7, 2 * 7),  # only before an "ab"
        (r".*\.a", ".a.a.b", 1 + 7 + 2 + 2, 2),
        (r".*\d", "d.d", 1 + 4 + 4, 4),
        ("a*x", "aaa", 1 + 4 + 1, 1),
        ("(a|b){2,3}", "", 1 + 4 * (1 + 2 + 4 + 8) + 1, 4 + 8),
        ("(a|b){33}", "", 1 + 4 * (2**34 - 1) + 1, 2**33),
        ("(a{1}){64}", "", 1 + 3 * 65 + 1, 1),
        ("(a{1}){65}", "", np.inf, np.inf),
        ("(a|b){99}", "", np.inf, np.inf),
        ("(a|b)*", "", np.inf, np.inf),
    ],
)
def test_steps_and_ways_are_counted(pattern, text, steps, ways):
    """A step for each part of an alternative, and one for each turn of a repetition; what comes
    after a part is tried in each way of that."""
    assert expressions._work(pattern, text)[:2] == (steps, ways)


@pytest.mark.parametrize(("match", "steps"), [("fullmatch", 3), ("search", 4 * 3)])
def test_a_search_begins_at_each_place_and_at_the_end(match, steps, monkeypatch):
    monkeypatch.setattr(expressions, "_MOST_STEPS", steps)
    assert not getattr(expressions, match)("ab", "xyz")
    monkeypatch.setattr(expressions, "_MOST_STEPS", steps - 1)
    with pytest.raises(re.error, match="might take too long"):
        getattr(expressions, match)("ab", "xyz")


@pytest.mark.parametrize(
    ("pattern", "name", "found"),
    [
        ("(.*/)?(dense|conv)_[0-9]+/kernel", "block/conv_1/kernel", True),
        (".*attention.*dense.*kernel.*", "transformer/attention_1/dense/kernel", True),
        (".*layer_?norm.*|.*bias.*|.*scale", "encoder/layer_10/output/dense/kernel" * 4, False),
        (r"(?i).*\.GAMMA(:0)?", "model.batch.gamma:0", True),
        (r"(ab){2}_(?:x|y){2}\x61(?<!b)", "abab_xya", True),
        ("(" * 60 + "a" + ")" * 60, "a", True),
        ("a{}{{2}", "a{}{{", True),
    ],
)
def test_what_models_use_is_taken(pattern, name, found):
    assert expressions.fullmatch(pattern, name) is found
    assert expressions.search(pattern, f"x{name}x") is found


@pytest.mark.parametrize(
    "pattern", ["(", "a**", r"(a)\1", "(?P<n>a)(?P=n)", "(?i:a)", "(" * 5000, "b" * 5000]
)
def test_what_is_not_taken_is_an_error_that_names_the_pattern(pattern):
    with pytest.raises(re.error, match=re.escape(repr(pattern)[:40])):
        expressions.fullmatch(pattern, "aa")


@pytest.mark.parametrize("depth", [60, 230, 5000])
def test_deep_patterns_of_keras_are_refused_at_once(depth):
    config = {
        "learning_rate": 0.01,
        "exclude_layers": ["(" * depth + "a" + ")*" * depth],
        "exclude_embeddings": True,
        "epsilon": 1e-7,
        "adam_lr_ratio": 1.0,
        "momentum": 0.95,
        "nesterov": True,
        "rms_rate": 0.2,
        "weight_decay": None,
        "adam_weight_decay": 0.004,
        "muon_a": 3.4445,
        "muon_b": -4.7750,
        "muon_c": 2.0315,
        "ns_steps": 6,
        "adam_beta_1": 0.9,
        "adam_beta_2": 0.999,
    }
    start = time.process_time()
    with pytest.raises(ValueError, match=r"exclude_layers: '\(\(\(\("):
        gradtx.interop.from_keras(config, {"w": np.ones((2, 2))}, class_name="Muon")
    assert time.process_time() - start < 1


def shared(deep=60):
    value = [1.0]
    for _ in range(deep):
        value = [value, value]
    return value


def cyclic():
    value = {}
    value["config"] = [value, value]
    return value


@pytest.mark.slow
@pytest.mark.parametrize(
    "value", [shared(), shared(300), cyclic()], ids=["shared", "deep", "cyclic"]
)
def test_shared_and_cyclic_lists_are_refused_at_once(value):
    readers = [
        lambda: gradtx.from_config(
            {"gradtx": 1, "name": "sgd", "arguments": {"learning_rate": value}}
        ),
        lambda: gradtx.interop.from_keras(
            {"class_name": "SGD", "config": {"learning_rate": value}}
        ),
        lambda: gradtx.interop.from_torch(value, [1.0], class_name="SGD"),
        lambda: gradtx.interop.from_torch(
            {"state": value, "param_groups": []}, [1.0], class_name="SGD"
        ),
    ]
    for read in readers:
        with pytest.raises(ValueError, match="nested too deeply|too large"):
            read()
