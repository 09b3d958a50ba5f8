"""A short form of each promise of docs/reliability.md; benchmarks/reliability is the long one."""

import importlib
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import gradtx
from benchmarks.reliability.__main__ import MODULES
from tests.catalogue import Entry

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reliability.md"
# These start processes, or take their time.
SLOW = {"elastic", "kills", "plain_kills", "mutants"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in MODULES if n != "memory"],
)
def test_a_promise_holds(name):
    module = importlib.import_module(f"benchmarks.reliability.{MODULES[name]}")
    done = getattr(module, name)(quick=True)
    assert done.tried
    assert not done.failures


@pytest.mark.slow
def test_nothing_is_left_in_memory():
    """In a process of its own: after thousands of tests its pages come and go."""
    command = [sys.executable, "-m", "benchmarks.reliability", "memory", "--quick"]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert "memory: 450 tried, 0 failed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


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


@pytest.mark.slow
def test_settings_find_what_they_are_for(monkeypatch):
    from benchmarks.reliability import settings

    monkeypatch.setattr(settings, "CATALOGUE", {"faulty": Entry(lambda: gradtx.stateless(faulty))})
    monkeypatch.setattr(settings, "FEW", ("faulty",))
    found = {line.partition(":")[0] for line in settings.settings(quick=True).failures}
    strict = {f"jax_numpy_{kind}_promotion" for kind in ("dtype", "rank")}
    assert found == {*strict, "jax_debug_nans", "jax_debug_infs"}
