"""Every public function says what it does and takes and where it is from, and shows it."""

import inspect
import re
import typing

import pytest

import gradtx
from gradtx import types
from gradtx.names.namespace import homes

CALLED = [
    name
    for name in homes("gradtx")
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


def raises(function):
    """Whether a function's own body raises what its caller caused."""
    function = inspect.unwrap(getattr(getattr(function, "builder", function), "function", function))
    return bool(re.search(r"^ +raise [A-Z]", inspect.getsource(function), re.MULTILINE))


def faults(function, text):
    """What is missing in the docstring of a function."""
    summary = text.partition("\n\n")[0]
    if not summary.endswith((".", ":")) or len(summary) >= 200:
        yield "a summary of a sentence"
    named = " ".join(re.findall(r"^    (\S.*?):(?: |$)", section(text, "Args"), re.MULTILINE))
    signature = inspect.signature(function)
    for name, argument in signature.parameters.items():
        if not re.search(rf"\b{name}\b", named):
            yield f"the argument {name}"
        if argument.annotation is argument.empty:
            yield f"the type of {name}"
    if signature.return_annotation is signature.empty:
        yield "the type of what it returns"
    said = re.search(r"^    [\w, ]+(Error|Exception): ", section(text, "Raises"), re.MULTILINE)
    if raises(function) and not said:
        yield "what it raises"
    example = re.findall(r"^(?:>>>|\.\.\.) .*", text, re.MULTILINE)
    if not re.search(rf"\b{function.__name__}\b", " ".join(example)):
        yield "an example that calls it"
    if not re.search(r"^(?:>>>|\.\.\.) .*\n(?!>>>|\.\.\.)\S", text, re.MULTILINE):
        yield "what comes out of an example"


@pytest.mark.slow
def test_a_function_says_what_it_does_takes_raises_and_shows_it():
    found = {name: list(faults(getattr(gradtx, name), text_of(name))) for name in CALLED}
    assert {name: missing for name, missing in found.items() if missing} == {}


def test_a_missing_part_is_found():
    def whole(x: int) -> int:
        if x < 0:
            raise ValueError(x)
        return x

    def untyped(x):
        return x

    text = "A sentence.\n\nArgs:\n    x: a number.\n\nRaises:\n    ValueError: below 0.\n\n"
    example = ">>> whole(1)\n1\n"
    assert list(faults(whole, text + example)) == []
    assert list(faults(untyped, (text + example).replace("whole", "untyped"))) == [
        "the type of x",
        "the type of what it returns",
    ]
    for part, without in {
        "a summary of a sentence": (text + example).replace("sentence.", "sentence"),
        "the argument x": (text + example).replace("x: a", "y: a"),
        "what it raises": (text + example).replace("    ValueError: below 0.\n", ""),
        "an example that calls it": (text + example).replace("whole", "other"),
        "what comes out of an example": text + ">>> whole(1)\n",
    }.items():
        assert list(faults(whole, without)) == [part]


CLASSES = [
    name
    for name in homes("gradtx")
    if inspect.isclass(getattr(gradtx, name)) and getattr(gradtx, name).__module__[:6] == "gradtx"
]


def says_what_it_is(cls):
    text = (cls.__dict__.get("__doc__") or "").strip()
    return text and not text.startswith(f"{cls.__name__}(")  # made by NamedTuple


def test_a_class_says_what_it_is():
    assert [name for name in CLASSES if not says_what_it_is(getattr(gradtx, name))] == []


def missing_of_a_rule(text):
    if ".. math::" not in text and ":math:" not in text:
        yield "equations"
    source = re.search(r"^Source: (.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    if not source:
        yield "a source"
    elif not re.search(r"\b(19|20)\d\d\b", source[1]):
        yield "a year"


def test_an_optimizer_has_its_equations_and_its_source():
    found = {name: list(missing_of_a_rule(text_of(name))) for name in RULES}
    assert len(found) > 60
    assert {name: missing for name, missing in found.items() if missing} == {}
    assert [*missing_of_a_rule("a rule")] == ["equations", "a source"]
    assert [*missing_of_a_rule(":math:`x`\n\nSource: a paper")] == ["a year"]


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
    step = inspect.signature(gradtx.make_step)
    assert str(step.parameters["trainable"]) == "trainable: str | PyTree | Callable | None = None"
    assert str(step.parameters["inside"]).endswith("str | PyTree | Callable | bool | None = None")
    assert "TrainStep" in str(step.return_annotation)
    for name in CALLED:
        if hasattr(getattr(gradtx, name), "builder"):
            assert "Range(" not in str(inspect.signature(getattr(gradtx, name))), name


def choosing(name):
    """The arguments of a public function that choose leaves."""
    function = getattr(getattr(gradtx, name), "builder", getattr(gradtx, name))
    function = getattr(function, "function", function)
    hints = typing.get_type_hints(function, include_extras=True)
    return [k for k, hint in hints.items() if types.WHERE in str(hint)]


def leads_to_patterns(name, argument):
    """Whether an argument is said to take path patterns, there or where its entry refers to."""
    entry = rf"^    [^:\n]*\b{argument}\b.*?: .*?(?=^    \S|\Z)"
    said = re.search(entry, section(text_of(name), "Args"), re.MULTILINE | re.DOTALL)
    assert said, f"{name} does not say what {argument} is"
    if "path pattern" in said[0]:
        return True
    other = re.search(r":func:`(\w+)`", said[0])
    return bool(other) and any(leads_to_patterns(other[1], x) for x in choosing(other[1]))


def test_all_that_chooses_leaves_leads_to_the_path_patterns():
    found = [(name, argument) for name in CALLED for argument in choosing(name)]
    assert len(found) > 60
    assert [x for x in found if not leads_to_patterns(*x)] == []
    # And no other word for them.
    named = [name for name in CALLED if re.search(r"\bpatterns?\b", text_of(name))]
    assert [name for name in named if "path pattern" not in text_of(name)] == []
