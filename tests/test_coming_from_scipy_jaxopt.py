"""docs/coming_from_scipy_jaxopt.md: it lists all there is, and what it says to write runs."""

import importlib
import inspect
import pathlib
import re

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import gradtx

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "coming_from_scipy_jaxopt.md"


def rows(title):
    """The cells of the table under a heading."""
    section = PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [line.strip("| ").split(" | ") for line in lines]


CLASSES, FUNCTIONS = rows("Classes of JAXopt"), rows("Functions of scipy.optimize")


def listed(table):
    return sorted(name for row in table for name in re.findall(r"`(\w+)`", row[0]))


def test_every_function_of_scipy_is_listed():
    there = [(name, getattr(scipy.optimize, name)) for name in scipy.optimize.__all__]
    functions = [n for n, x in there if callable(x) and not inspect.isclass(x)]
    assert len(functions) > 50
    assert set(functions) <= set(listed(FUNCTIONS))  # another SciPy may lack some


@pytest.mark.filterwarnings("ignore")
def test_every_class_of_jaxopt_is_listed():
    jaxopt = pytest.importorskip("jaxopt")
    classes = [n for n, x in vars(jaxopt).items() if inspect.isclass(x)]
    assert listed(CLASSES) == sorted(classes)


def codes(prefix):
    cells = [row[1] for row in [*CLASSES, *FUNCTIONS]]
    return sorted({code for cell in cells for code in re.findall(rf"`({prefix}\.[^`]+)`", cell)})


@pytest.mark.quick(1)
@pytest.mark.parametrize("code", codes("gradtx"))
def test_what_to_write_runs(code):
    value = eval(code, {"gradtx": gradtx})
    if isinstance(value, gradtx.GradientTransformation):
        result = gradtx.solve(lambda x: jnp.sum((x - 0.5) ** 2), jnp.ones(2), value, max_steps=3)
        assert np.isfinite(result.params).all()
    else:
        assert callable(value)


@pytest.mark.parametrize("library", ["optimistix", "lineax", "jax"])
def test_what_other_libraries_have_is_there(library):
    names = codes(library)
    assert names
    pytest.importorskip(library)
    for name in names:
        module, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(module), last), name
