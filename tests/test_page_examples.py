"""Every example of an API page can be pasted: what it reads is imported, or bound by itself."""

import inspect
from pathlib import Path

import pytest

import gradtx

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture
def making(monkeypatch):
    pytest.importorskip("math_core")
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(DOCS))
    from making import examples, pages

    return examples, pages


def described(name, public):
    """What an API page says of a name: itself, the members of a class, a module's functions."""
    yield name, public
    for key, member in vars(public).items() if inspect.isclass(public) else ():
        if not key.startswith("_") and (inspect.isroutine(member) or isinstance(member, property)):
            yield f"{name}.{key}", inspect.getattr_static(public, key)
    if inspect.ismodule(public):
        for key in public.__all__ if hasattr(public, "__all__") else dir(public):
            if not key.startswith("_") and callable(getattr(public, key)):
                yield f"{name}.{key}", getattr(public, key)


def texts(pages):
    """The docstrings with examples that stand on the pages."""
    for name in pages.NAMES:
        for full, public in described(name, pages.public(name)):
            inner = getattr(public, "__func__", public)  # of a class method
            text = inspect.getdoc(inner) or ""
            if ">>> " in text and not (inspect.isclass(inner) and inner.__doc__ is None):
                yield full, inner, text


def test_what_an_example_reads_is_bound_where_it_is_shown(making):
    examples, pages = making
    missing, imported, count = {}, set(), 0
    for name, public, text in texts(pages):
        module = examples.module_of(public)
        if not module.startswith("gradtx"):  # not ours, such as what a NamedTuple inherits
            continue
        shown = examples.pasteable(text.splitlines(), module)
        count += 1
        imported |= {line.strip()[4:] for line in shown} - {
            line.strip()[4:] for line in text.splitlines()
        }
        if unbound := examples.unbound(examples.code("\n".join(shown))):
            missing[name] = unbound
    assert missing == {}
    assert count > 450
    exec("\n".join(sorted(imported)), {})  # each of the lines that the pages add


def test_names_that_an_example_lacks_are_seen(making):
    examples, _ = making
    assert examples.unbound("import jax\ny = jax.numpy.ones(n)\nf = lambda y: y + z") == {"n", "z"}
    assert examples.unbound("def f(a):\n    return a + b\nf(len([i for i in ()]))") == {"b"}
    lines = ["Text.", "", "    >>> tx = lion(0.1)", "    >>> tx.init(jnp.zeros(2))", "    x"]
    module = gradtx.lion.__module__
    assert examples.pasteable(lines, module)[2:5] == [
        "    >>> import jax.numpy as jnp",
        "    >>> from gradtx import lion",
        "    >>> tx = lion(0.1)",
    ]
    with pytest.raises(KeyError):
        examples.pasteable([">>> nowhere_at_all"], module)
