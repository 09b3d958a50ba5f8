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
from gradtx.composition.nearest import Nearest, nearest_in
from gradtx.composition.searches import Searches
from gradtx.composition.views import OnPart, TakesNorm
from gradtx.core.communication import Communication
from gradtx.core.expansion import Clock
from gradtx.core.pair import GradientTransformation
from gradtx.core.traits import Links, Traits
from gradtx.estimators.estimator import Estimator
from gradtx.inspection.description import multipliers_in, roles_in
from gradtx.names.earlier import MODULES, RECORD, in_files
from gradtx.training.loss_scale import divides
from tests.golden import make_records as records
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


READ = {
    "step": lambda tx: tx.step,
    "before_gradients": lambda tx: tx.before_gradients,
    "parts": lambda tx: tx.parts,
    "links": lambda tx: tx.facet(Links),
    "on_part": lambda tx: tx.facet(OnPart).function,
    "takes_vectors": lambda tx: tx.takes_vectors,
    "clock": lambda tx: tx.facet(Clock).state,
    "communication": lambda tx: tx.facet(Communication),
    "multipliers": multipliers_in,
    "nearest": nearest_in,
    "roles": lambda tx: roles_in(tx, records.INNER),
    "takes_norm": lambda tx: tx.facet(TakesNorm).use,
    "inner": lambda tx: tx.traits.inner,
    "searches": lambda tx: tx.facet(Searches) is not None,
    "scales_loss": divides,
    "estimator": lambda tx: tx.facet(Estimator),
}


def by_hand(**traits):
    return GradientTransformation(records.init, records.update, **traits)


def replaced(**traits):
    return by_hand()._replace(**traits)


def by_position(**traits):
    empty = dict.fromkeys(RECORD) | {"takes_vectors": False, "inner": ()}
    return by_hand(**Traits(*{**empty, **traits}.values())._asdict())


def unpickled(**traits):
    pairs = pickle.loads(records.PATH.read_bytes())
    return pairs[next(iter(traits))] if len(traits) == 1 else pairs["all" if traits else "none"]


def pickled_again(**traits):
    return pickle.loads(pickle.dumps(unpickled(**traits)))


WAYS = (by_hand, replaced, by_position, unpickled, pickled_again)
always = pytest.mark.parametrize("way", WAYS)


@always
@pytest.mark.parametrize("name", READ)
def test_a_record_of_nineteen_fields_says_the_same(way, name):
    value = records.TRAITS[name]
    want = value(None) if name == "roles" else value
    alone, among_others = way(**{name: value}), way(**records.TRAITS)
    assert READ[name](alone) == READ[name](among_others) == want
    assert tuple(alone) == (records.init, records.update)
    assert len(alone.traits.facets) <= 1


@always
def test_a_record_of_nineteen_fields_that_says_nothing(way):
    assert way().traits == Traits()


def test_an_earlier_name_takes_a_facet_back():
    tx = by_hand(nearest=records.nearest, takes_norm="state", searches=True)
    assert tx._replace(nearest=None, searches=False).traits.facets == (TakesNorm("state"),)
    assert tx._replace(takes_norm="update").facet(TakesNorm).use == "update"
    assert tx._replace(nearest=max).facet(Nearest) == Nearest(max)


def test_an_unknown_field_is_refused():
    with pytest.raises(TypeError, match="near"):
        by_hand(near=records.nearest)
