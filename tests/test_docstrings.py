"""Every public function says what it does and takes and where it is from, and shows it."""

import inspect
import re

import pytest

import gradtx

CALLED = [
    name
    for name in gradtx.__all__
    if callable(getattr(gradtx, name)) and not inspect.isclass(getattr(gradtx, name))
    if (getattr(gradtx, name).__module__ or "").startswith("gradtx")
]
RULES = [
    name
    for name in CALLED
    if hasattr(getattr(gradtx, name), "builder")
    and getattr(gradtx, name).__module__.startswith("gradtx.optimizers.")
]


def text_of(name):
    return inspect.getdoc(getattr(gradtx, name)) or ""


def section(text, title):
    found = re.search(rf"^{title}:\n(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


@pytest.mark.parametrize("name", CALLED)
def test_a_function_says_what_it_does_and_takes_and_shows_it(name):
    text = text_of(name)
    summary = text.partition("\n\n")[0]
    assert summary.endswith((".", ":"))
    assert len(summary) < 200
    named = " ".join(re.findall(r"^    (\S.*?):(?: |$)", section(text, "Args"), re.MULTILINE))
    for argument in inspect.signature(getattr(gradtx, name)).parameters:
        assert re.search(rf"\b{argument}\b", named), f"{argument} is not among the arguments"
    assert ">>> " in text, "there is no example"


@pytest.mark.parametrize("name", RULES)
def test_an_optimizer_has_its_equations_and_its_source(name):
    text = text_of(name)
    assert ".. math::" in text or ":math:" in text
    source = re.search(r"^Source: (.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    assert source, "there is no source"
    assert re.search(r"\b(19|20)\d\d\b", source[1]), "there is no year"


def test_help_shows_what_may_be_passed():
    found = {k: str(p) for k, p in inspect.signature(gradtx.adamw).parameters.items()}
    assert found["learning_rate"] == "learning_rate: float | Array | Schedule"
    assert found["b1"] == "b1: float | Array | Schedule = 0.9"
    assert found["mu_dtype"] == "mu_dtype: DTypeLike | None = None"
    assert found["mask"] == "mask: str | PyTree | Callable | None = None"
    every = inspect.signature(gradtx.accumulate).parameters["every"]
    assert str(every) == "every: int | Array | Schedule"
    value = inspect.signature(gradtx.linear_schedule).parameters["init_value"]
    assert str(value) == "init_value: float | Array"
    for name in CALLED:
        if hasattr(getattr(gradtx, name), "builder"):
            assert "Range(" not in str(inspect.signature(getattr(gradtx, name))), name
