"""Modules under earlier paths: what names them so finds them where they are now."""

import importlib
import pathlib
import pickle
import subprocess
import sys

import chex
import jax
import pytest

import gradtx
from gradtx.names.earlier import MODULES, in_files
from tests.golden.make_pickles import pickled

ROOT = pathlib.Path(gradtx.__file__).parents[1]
PICKLES = ROOT / "tests" / "golden" / "pickles.bin"


@pytest.mark.parametrize("before", MODULES)
def test_an_earlier_path_is_that_of_the_same_module(before):
    module = importlib.import_module(MODULES[before])
    assert importlib.import_module(before) is module
    assert module.__spec__.name == module.__name__ == MODULES[before]
    package, _, name = before.rpartition(".")
    assert getattr(importlib.import_module(package), name) is module
    assert not (ROOT / before.replace(".", "/")).with_suffix(".py").exists()
    assert in_files(MODULES[before]) == before


@pytest.mark.parametrize("before", MODULES)
def test_a_pickle_finds_each_class_and_function_by_an_earlier_path(before):
    for name, value in vars(importlib.import_module(MODULES[before])).items():
        if (getattr(value, "__module__", ""), getattr(value, "__name__", "")) == (
            MODULES[before],
            name,
        ):
            assert pickle.loads(f"c{before}\n{name}\n.".encode()) is value


def test_pickles_of_earlier_modules_are_read():
    read, now = pickle.loads(PICKLES.read_bytes()), pickled()
    assert read.keys() == now.keys()
    for name, value in read.items():
        assert jax.tree.structure(value) == jax.tree.structure(now[name]), name
        chex.assert_trees_all_close(value, now[name], rtol=1e-6)
    assert read["tx"] == now["tx"]
    again = pickle.dumps(read)
    assert b"gradtx.leaves.rows" in again
    assert b"gradtx.rows" not in again


@pytest.mark.slow
def test_pickles_of_earlier_modules_are_read_before_gradtx_is_imported():
    program = f"import pickle; print(*pickle.load(open({str(PICKLES)!r}, 'rb')))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == [*pickled()]
