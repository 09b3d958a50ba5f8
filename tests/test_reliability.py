"""A short form of each promise of docs/reliability.md; benchmarks/reliability is the long one."""

import importlib
import pathlib

import jax
import jax.numpy as jnp
import pytest

import gradtx
from benchmarks.reliability.__main__ import MODULES
from tests.catalogue import Entry

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "reliability.md"
# These start processes, or take their time.
SLOW = {"elastic", "kills", "plain_kills", "memory", "mutants"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in MODULES]
)
def test_a_promise_holds(name):
    module = importlib.import_module(f"benchmarks.reliability.{MODULES[name]}")
    done = getattr(module, name)(quick=True)
    assert done.tried
    assert not done.failures


@pytest.mark.parametrize("name", MODULES)
def test_the_page_names_the_command(name):
    assert f"`{name}`" in PAGE.read_text()


def test_a_failure_is_told():
    """Of a promise, and of a list of exceptions."""
    from benchmarks.reliability.outcome import Outcome

    done = Outcome()
    done.check(True, "good")
    done.check(False, "bad")
    done.check(False, "listed", known=True)
    done.check(True, "mended", known=True)
    assert (done.tried, done.known) == (4, ["listed"])
    assert done.failures == ["bad", "mended: not so"]


def faulty(updates, params):
    """Promotes types and ranks, and divides by zero."""
    return jax.tree.map(lambda g: g * jnp.arange(g.shape[-1], dtype="int32") / (g - g), updates)


def test_settings_find_what_they_are_for(monkeypatch):
    from benchmarks.reliability import settings

    monkeypatch.setattr(settings, "CATALOGUE", {"faulty": Entry(lambda: gradtx.stateless(faulty))})
    monkeypatch.setattr(settings, "FEW", ("faulty",))
    found = {line.partition(":")[0] for line in settings.settings(quick=True).failures}
    strict = {f"jax_numpy_{kind}_promotion" for kind in ("dtype", "rank")}
    assert found == {*strict, "jax_debug_nans", "jax_debug_infs"}
