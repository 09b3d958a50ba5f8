"""Regular expressions without backtracking: Python's verdict, in bounded time."""

import re

import hypothesis
import hypothesis.strategies as st
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


@hypothesis.given(PATTERNS, st.sampled_from(["", "(?i)", "(?sm)"]), st.text("aB/1.{\n", max_size=5))
@hypothesis.settings(max_examples=300)
def test_they_say_what_python_says(pattern, flags, text):
    pattern = flags + pattern
    try:
        re.compile(pattern)
    except re.error:  # two groups of one name
        hypothesis.reject()
    assert expressions.fullmatch(pattern, text) == bool(re.fullmatch(pattern, text))
    assert expressions.search(pattern, text) == bool(re.search(pattern, text))


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+b", "(a|a)*b", "(a*)*b", "(.*)*(.*)*(.*)*b", "a*" * 30 + "b", "((a{,99}){,99})*b"],
)
def test_none_takes_long(pattern):
    """Python's own would take longer than the age of the universe."""
    assert not expressions.fullmatch(pattern, "a" * 200)
    assert expressions.fullmatch(pattern, "a" * 99 + "b")
    assert not expressions.search(pattern, "a" * 50)


@pytest.mark.parametrize(
    "pattern", ["(", "a**", r"(a)\1", "(?<=a)a", "a*+", r"\x61", "(?i:a)", "(" * 5000]
)
def test_what_is_not_taken_is_an_error(pattern):
    with pytest.raises((re.error, RecursionError, OverflowError)) as raised:
        expressions.fullmatch(pattern, "aa")
    assert isinstance(raised.value, re.error)


def shared(deep=60):
    value = [1.0]
    for _ in range(deep):
        value = [value, value]
    return value


def cyclic():
    value = {}
    value["config"] = [value, value]
    return value


@pytest.mark.quick(1)
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
